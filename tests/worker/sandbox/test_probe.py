"""worker/sandbox/probe.py: what it measures is in tests/attacks/test_hard_machines.py; here, what is left beside."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from protocol.content import Access
from protocol.probe import Attempt, Targets
from protocol.spec import Layer
from tests.worker.sandbox.test_namespaces import PLAN
from worker.sandbox import linux, probe


@pytest.fixture
def plan(tmp_path: Path) -> object:
    return msgspec.structs.replace(
        PLAN,
        session_dir=str(tmp_path),
        workspace=str(tmp_path),
        media_dir=str(tmp_path),
        wanted=(Layer.ENVIRONMENT, Layer.NO_NEW_PRIVS, Layer.CGROUP),
    )


def test_a_measurement_names_both_what_holds_and_what_is_missing_and_leaves_no_child(plan: msgspec.Struct) -> None:
    before = len(os.listdir("/proc/self/fd"))
    children = set(linux.descendants(os.getpid()))

    measured = probe.measure(plan)  # type: ignore[arg-type]

    assert measured == probe.Measured((Layer.NO_NEW_PRIVS, Layer.ENVIRONMENT), (Layer.CGROUP,))
    assert len(os.listdir("/proc/self/fd")) == before
    assert set(linux.descendants(os.getpid())) == children


def test_a_child_that_cannot_tell_is_an_error(plan: msgspec.Struct) -> None:
    impossible = msgspec.structs.replace(plan, required=(Layer.CGROUP,))

    with pytest.raises(OSError, match="could not be built"):
        probe.measure(impossible)  # type: ignore[arg-type]


def test_a_private_folder_of_the_homes_name_is_not_the_home(tmp_path: Path) -> None:
    """Below a home in /tmp a worker's own /tmp has folders on the way to its session: what it puts there nobody sees."""
    found = tmp_path.stat()
    ends = []
    for identity in ((found.st_dev, found.st_ino), (found.st_dev, found.st_ino + 1)):
        targets = Targets("", "", "", str(tmp_path), "", 1, 1, identity)
        ends.append(probe.tried(probe.attacks(Access.WORKSPACE, targets)[Attempt.PLANT_FILE]))

    assert ends == [0, errno.ENOENT]
