"""The stage of every attack: a home with secrets and two peers' folders, once for each shape of sandbox."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.spec import Layer
from tests.attacks.sandboxed import OTHER_UID, PEER_UID, SHAPES, Stage
from worker.sandbox import linux

SECRET = b"canary-of-the-supervisor"


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


@pytest.fixture(params=sorted(SHAPES))
def stage(request: pytest.FixtureRequest, home: Path) -> Iterator[Stage]:
    own_uids = Layer.OWN_UID in SHAPES[request.param]
    if own_uids:
        for kind in ("sessions", "workspaces", "media"):
            for peer, uid in (("mine", PEER_UID), ("other", OTHER_UID)):
                for path in (home / kind / peer, home / kind / peer / "kept"):
                    os.chown(path, uid, uid)
    sibling = _sibling(OTHER_UID if own_uids else None)
    yield Stage(home, request.param, sibling)
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
