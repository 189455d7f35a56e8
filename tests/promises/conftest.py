"""A simulated WeChat for each test, and stages beside it: the real program with its workers, and people with phones."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.stage import Stage
from tests.fakes.wechat import SimulatedWeChat


@pytest.fixture
def wechat() -> Iterator[SimulatedWeChat]:
    with SimulatedWeChat(hold_s=2.0) as service:
        yield service


@pytest.fixture
def stage(wechat: SimulatedWeChat) -> Iterator[Callable[..., Stage]]:
    """Makes stages (arguments as for Stage); all are taken down at the end, and no process may be left then."""
    with contextlib.ExitStack() as stages:
        yield lambda **settings: stages.enter_context(Stage(wechat, **settings))
