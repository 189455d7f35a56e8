"""One simulated service per test file, and a fresh person with a bot for each test."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.ilink_bot import IlinkBot, sign_in
from tests.fakes.wechat import SimulatedWeChat


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    path = Path(__file__).parents[2] / "data" / "ilink-vectors.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def service() -> Iterator[SimulatedWeChat]:
    with SimulatedWeChat(hold_s=0.3) as wechat:
        yield wechat


@pytest.fixture
def wechat(service: SimulatedWeChat) -> Iterator[SimulatedWeChat]:
    settings = service.settings()
    yield service
    service.clear_faults()
    service.shift_clock(0)
    service.login_script([])
    service.change_settings(**settings)


@pytest.fixture
def bot(wechat: SimulatedWeChat) -> IlinkBot:
    return sign_in(wechat, wechat.add_person())
