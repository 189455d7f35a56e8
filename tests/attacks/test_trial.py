"""Every attempt of the trial, in a sandbox and out of it: what stops it has to be the sandbox."""

import os
import socket
from collections.abc import Iterator

import pytest

from protocol.content import Access
from protocol.probe import STOPPED_BY, Attempt, Targets
from tests.attacks.sandboxed import SHAPES, Stage, outside
from worker.sandbox import probe

# Outside, these take rights that an ordinary user has not got, or that a container or kernel withholds from everybody.
ROOTS = {Attempt.CHANGE_CODE, Attempt.BECOME_ROOT, Attempt.REGAIN_CAPABILITY}
SYSTEMS = {Attempt.NEW_NAMESPACE, Attempt.KERNEL_QUEUE, Attempt.KNOW_USERS, Attempt.RAISE_LIMIT}


@pytest.fixture
def targets(stage: Stage) -> Iterator[Targets]:
    ctl = str(stage.home / "ctl")
    with socket.socket(socket.AF_UNIX) as unix, socket.create_server(("127.0.0.1", 0)) as tcp:
        unix.bind(ctl)
        unix.listen()
        yield Targets(
            journal=str(stage.home / "state.db"),
            other_file=str(stage.folder("workspaces", "other") / "kept"),
            workspace_file=str(stage.workspace / "kept"),
            home=str(stage.home),
            ctl_socket=ctl,
            pid=stage.sibling,
            tcp_port=tcp.getsockname()[1],
        )


def test_in_a_sandbox_nothing_works_that_one_of_its_layers_is_there_to_stop(stage: Stage, targets: Targets) -> None:
    def attack() -> dict[str, int]:
        return {name.value: probe.tried(one) for name, one in probe.attacks(Access.CHAT, targets).items()}

    ends = stage.inside(attack, stage.plan(Access.CHAT)).value

    assert isinstance(ends, dict)
    assert set(ends) == {attempt.value for attempt in Attempt}
    worked = {Attempt(name) for name, code in ends.items() if code == 0}
    assert not {attempt for attempt in worked if set(STOPPED_BY[attempt]) & set(SHAPES[stage.shape])}


@pytest.mark.parametrize("stage", ["namespaces"], indirect=True)
def test_without_one_the_same_attempts_work(stage: Stage, targets: Targets) -> None:
    """As the user who owns the files and the processes."""
    keep_open = os.open(targets.journal, os.O_RDONLY)  # for INHERIT_FILES

    def attack() -> dict[str, int]:
        return {name.value: probe.tried(one) for name, one in probe.attacks(Access.CHAT, targets).items()}

    ends = outside(attack).value
    os.close(keep_open)

    assert isinstance(ends, dict)
    allowed = SYSTEMS if os.geteuid() == 0 else SYSTEMS | ROOTS
    assert {name for name, code in ends.items() if code} <= {attempt.value for attempt in allowed}


@pytest.mark.parametrize("stage", ["namespaces"], indirect=True)
def test_what_an_access_level_is_for_is_no_attempt_on_it(stage: Stage, targets: Targets) -> None:
    assert Attempt.READ_WORKSPACE not in probe.attacks(Access.READONLY, targets)
    assert Attempt.CHANGE_WORKSPACE in probe.attacks(Access.READONLY, targets)
    assert Attempt.CHANGE_WORKSPACE not in probe.attacks(Access.WORKSPACE, targets)
