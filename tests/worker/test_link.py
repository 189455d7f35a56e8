"""link: the worker's end of the socketpair."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from protocol.codec import Unframer, encode, frame, from_worker
from protocol.errors import ProtocolViolation
from protocol.ids import TurnId
from protocol.to_supervisor import Leaving, Pulse, Remarked
from protocol.to_worker import AbortTurn, Leave
from tests.fakes import workers
from worker.link import Link
from worker.turn import Pace


@pytest.fixture
def ends() -> Iterator[tuple[Link, socket.socket]]:
    theirs, ours = socket.socketpair()
    theirs.settimeout(workers.DEADLINE_S)
    with theirs, ours:
        yield Link(ours), theirs


def read(end: socket.socket, count: int) -> list[object]:
    """The next count messages."""
    unframer, payloads = Unframer(), []
    while len(payloads) < count:
        payloads += unframer.feed(end.recv(1 << 20))
    return [from_worker.decode(payload) for payload in payloads]


def test_before_the_loop_runs_it_tells_and_waits_for_the_grant(ends: tuple[Link, socket.socket]) -> None:
    link, theirs = ends
    theirs.sendall(frame(encode(GRANT)) + frame(encode(Leave())))

    link.tell(Leaving("x"))

    assert read(theirs, 1) == [Leaving("x")]
    assert link.wait_for_grant() == GRANT
    assert asyncio.run(link.receive()) == Leave()  # what came along in the same read is not lost


@pytest.mark.parametrize("first", [b"", frame(encode(Leave()))], ids=["the end", "another message"])
def test_no_grant_no_work(ends: tuple[Link, socket.socket], first: bytes) -> None:
    link, theirs = ends
    theirs.sendall(first)
    theirs.shutdown(socket.SHUT_WR)

    assert link.wait_for_grant() is None


def test_the_end_of_the_other_side_is_received_as_none(ends: tuple[Link, socket.socket]) -> None:
    link, theirs = ends

    theirs.close()

    assert asyncio.run(link.receive()) is None


def test_a_frame_over_its_size_is_refused_before_it_is_read(ends: tuple[Link, socket.socket]) -> None:
    link, theirs = ends
    theirs.sendall(b"\xff\xff\xff\x7f")

    with pytest.raises(ProtocolViolation):
        asyncio.run(link.receive())


def test_a_cancelled_receive_loses_nothing(ends: tuple[Link, socket.socket]) -> None:
    link, theirs = ends

    async def story() -> object:
        first = asyncio.create_task(link.receive())
        await asyncio.sleep(0)
        theirs.sendall(frame(encode(AbortTurn(TurnId("1")))))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await link.receive()

    assert asyncio.run(story()) == AbortTurn(TurnId("1"))


def test_what_a_cancelled_sender_leaves_behind_goes_out_before_the_next_frame(
    ends: tuple[Link, socket.socket],
) -> None:
    link, theirs = ends
    long = Remarked("info", "x" * 900_000)  # more than a socket holds

    async def story() -> list[object]:
        sending = asyncio.create_task(link.send(long))
        await asyncio.sleep(0)
        sending.cancel()
        reading = asyncio.get_running_loop().run_in_executor(None, read, theirs, 2)
        await link.send(Leaving("after"))
        return await reading

    assert asyncio.run(story()) == [long, Leaving("after")]


def test_pulses_go_out_while_busy_and_only_then(ends: tuple[Link, socket.socket]) -> None:
    link, theirs = ends

    async def story() -> object:
        pulsing = asyncio.create_task(link.pulses())
        for _ in range(5):
            await asyncio.sleep(0)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        link.pace(Pace.BUSY)
        theirs.settimeout(workers.DEADLINE_S)
        first = await asyncio.get_running_loop().run_in_executor(None, read, theirs, 1)
        link.pace(Pace.IDLE)
        pulsing.cancel()
        return first

    assert asyncio.run(story()) == [Pulse()]


GRANT = workers.grant(workers.Path("/nowhere"))
