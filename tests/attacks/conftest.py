"""The stage of every attack: a home with secrets and two peers' folders, once for each shape of sandbox."""

import contextlib
import dataclasses
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.spec import Layer
from tests.attacks.sandboxed import OTHER_UID, OURS, PEER_UID, SHAPES, Cage, Stage, lacking
from tests.attacks.summary import STAGED_ONLY
from worker.sandbox import linux

SECRET = b"canary-of-the-supervisor"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if STAGED_ONLY in os.environ:
        others = [item for item in items if "stage" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture
def home() -> Iterator[Path]:
    """Not below pytest's own folder: as root a peer's uid has to pass the parents."""
    home = Path(tempfile.mkdtemp(prefix="attacked-", dir="/var/tmp"))
    home.chmod(0o711 if os.geteuid() == 0 else 0o700)
    for name in ("token", "state.db"):
        (home / name).write_bytes(SECRET)
        (home / name).chmod(0o600)
    for kind in ("sessions", "workspaces", "media"):
        (home / kind).mkdir(mode=0o711)
        for peer in ("mine", "other"):
            folder = home / kind / peer
            folder.mkdir(mode=0o700)
            (folder / "kept").write_bytes(SECRET)
    yield home
    shutil.rmtree(home)


@pytest.fixture(scope="session")
def cage() -> Iterator[Cage]:
    with cage_of_its_own() as cage:
        yield cage


@contextlib.contextmanager
def cage_of_its_own() -> Iterator[Cage]:
    bus = Path(tempfile.mkdtemp(prefix="bus-", dir="/var/tmp"))
    cage = Cage(bus)
    try:
        yield cage
    finally:
        cage.close()
        shutil.rmtree(bus)


@pytest.fixture
def mortal(stage: Stage) -> Iterator[Stage]:
    """The stage with a supervisor that this test may kill."""
    with cage_of_its_own() as cage:
        yield dataclasses.replace(stage, cage=cage, shared=[])


@pytest.fixture(params=sorted(OURS))
def stage(request: pytest.FixtureRequest, home: Path, cage: Cage) -> Iterator[Stage]:
    if why := lacking(request.param):
        pytest.skip(why)
    own_uids = Layer.OWN_UID in SHAPES[request.param]
    if own_uids:
        for kind in ("sessions", "workspaces", "media"):
            for peer, uid in (("mine", PEER_UID), ("other", OTHER_UID)):
                for path in (home / kind / peer, home / kind / peer / "kept"):
                    os.chown(path, uid, uid)
    sibling = _sibling(OTHER_UID if own_uids else None)
    request.node.user_properties.append(("attack", request.param))
    stage = Stage(home, request.param, sibling, cage)
    yield stage
    for worker in stage.shared:
        worker.end()
    os.kill(sibling, signal.SIGKILL)
    os.waitpid(sibling, 0)


def _sibling(uid: int | None) -> int:
    """Another peer's process: an ordinary, dumpable one, that waits to be killed."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        linux.die_with_parent()
        if uid is not None:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            linux.set_dumpable(1)
        os.write(told, b"!")
        while True:
            signal.pause()
    os.close(told)
    os.read(ready, 1)
    os.close(ready)
    return pid
