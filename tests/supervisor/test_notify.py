"""notify: what a service manager hears. A datagram socket of the test listens."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import BridgeError
from supervisor.clock import SystemClock
from supervisor.notify import Notifier

DEADLINE_S = 30.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "n"))
        listening.settimeout(DEADLINE_S)
        yield listening


def notifier(manager: socket.socket, watchdog_s: float | None = None) -> Notifier:
    return Notifier(manager.getsockname(), watchdog_s, SystemClock())


async def running(
    one: Notifier, manager: socket.socket, heard: int, line: str = "well", error: bool = False
) -> list[str]:
    """The first messages of run()."""

    async def state() -> str:
        if error:
            raise BridgeError("the disk says no")
        return line

    task = asyncio.ensure_future(one.run(state))
    try:
        return [(await asyncio.to_thread(manager.recv, 4096)).decode() for _ in range(heard)]
    finally:
        task.cancel()


def test_ready_and_stopping_are_told(manager: socket.socket) -> None:
    notifier(manager).ready()
    notifier(manager).stopping()

    assert manager.recv(4096) == b"READY=1"
    assert manager.recv(4096).startswith(b"STOPPING=1\nSTATUS=")


def test_a_name_with_an_at_sign_is_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # the kernel picks an abstract name
        listening.settimeout(DEADLINE_S)

        Notifier("@" + listening.getsockname()[1:].decode(), None, SystemClock()).ready()

        assert listening.recv(4096) == b"READY=1"


def test_the_state_is_one_line_whatever_stands_in_it(manager: socket.socket) -> None:
    (heard,) = asyncio.run(running(notifier(manager), manager, 1, "a\nWATCHDOG=trigger \udc80"))

    assert heard == "STATUS=a WATCHDOG=trigger \\udc80"


def test_with_a_watchdog_signs_of_life_come_well_within_its_time(manager: socket.socket) -> None:
    heard = asyncio.run(running(notifier(manager, watchdog_s=0.03), manager, 6))

    assert heard == ["WATCHDOG=1", "STATUS=well"] * 3


def test_a_journal_that_cannot_be_read_is_no_sign_of_death(manager: socket.socket) -> None:
    heard = asyncio.run(running(notifier(manager, watchdog_s=0.03), manager, 3, error=True))

    assert heard == ["WATCHDOG=1"] * 3


def test_nobody_listening_costs_a_log_line_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier(str(tmp_path / "gone"), None, SystemClock()).ready()
    Notifier(None, None, SystemClock()).ready()

    assert [record.getMessage().split()[0] for record in caplog.records] == ["notify_failed"]
