"""A simulated WeChat for each test, and stages beside it: the real program with its workers, and people with phones."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB, for the home alone."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system small enough to be filled")
    place = Path(f"/tmp/bridge-disk-{os.getpid()}-{os.urandom(3).hex()}")
    place.mkdir(mode=0o755)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs", str(place)], check=False)
    if mounted.returncode != 0:
        place.rmdir()
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        shutil.rmtree(place, ignore_errors=True)
