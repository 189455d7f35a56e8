"""nanny: form, rate, and the end of a whole tree. Its life beside a supervisor: tests/supervisor/test_pool.py."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import encode, frame, from_worker, to_supervisor
from protocol.errors import FailureKind, ProtocolViolation
from protocol.ids import TurnId
from protocol.spec import NannyKeys, WorkerPlan
from protocol.to_supervisor import (
    PIECE_BYTES,
    Boundary,
    FormBroken,
    FromWorker,
    Leaving,
    OpenFailed,
    PieceMade,
    Pulse,
    Ready,
    TurnEnded,
    TurnOutcome,
    WorkerExited,
)
from tests.fakes import workers
from worker import nanny
from worker.nanny import DETAIL_BYTES, Bucket, check

TURN = TurnId("1")


# --- form -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Pulse(),
        PieceMade(TURN, 0, "x" * PIECE_BYTES, Boundary.NONE),
        TurnEnded(TURN, TurnOutcome.FAILED, FailureKind.OTHER, "x" * DETAIL_BYTES),
    ],
)
def test_what_a_worker_may_say_passes(message: FromWorker) -> None:
    check(encode(message))


@pytest.mark.parametrize(
    "message",
    [
        WorkerExited(0),  # the nanny's own words cannot be forged
        FormBroken("x"),
        workers.turn("x"),  # nor the supervisor's
        PieceMade(TURN, 0, "x" * (PIECE_BYTES + 1), Boundary.NONE),
        PieceMade(TURN, 0, "号" * (PIECE_BYTES // 3 + 1), Boundary.NONE),
        TurnEnded(TURN, TurnOutcome.FAILED, FailureKind.OTHER, "x" * (DETAIL_BYTES + 1)),
        OpenFailed(FailureKind.OTHER, "x" * (DETAIL_BYTES + 1)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_a_worker_may_not_say_breaks_form(message: FromWorker) -> None:
    with pytest.raises(ProtocolViolation):
        check(encode(message))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_break_form_and_nothing_else(payload: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        check(payload)
        from_worker.decode(payload)


# --- rate -----------------------------------------------------------------------------------------------------


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    bucket = Bucket(10.0, 100.0, now=0.0)

    bucket.take(100.0, now=0.0)

    assert bucket.wait_s(now=0.0) == pytest.approx(0.1)
    assert bucket.wait_s(now=0.2) == 0.0


def test_an_overdrawn_bucket_waits_until_the_debt_is_paid() -> None:
    bucket = Bucket(10.0, 100.0, now=0.0)

    bucket.take(150.0, now=0.0)

    assert bucket.wait_s(now=0.0) == pytest.approx(5.1)
    assert bucket.wait_s(now=5.2) == 0.0


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 300)), max_size=50))
def test_who_waits_as_told_never_gets_more_than_burst_rate_and_one_last_helping(
    takes: list[tuple[float, float]],
) -> None:
    bucket, now, taken, last = Bucket(10.0, 100.0, now=0.0), 0.0, 0.0, 0.0
    for gap, amount in takes:
        now += gap
        now += bucket.wait_s(now=now)
        bucket.take(amount, now=now)
        taken, last = taken + amount, max(last, amount)

    assert taken <= 100.0 + 10.0 * now + last + 1e-3


# --- the end of a tree ----------------------------------------------------------------------------------------


def in_a_child(act: Callable[[], None]) -> int:
    """Exit code of a process of its own that does this; 1 when it raised."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            act()
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_killing_a_tree_finds_what_hid_in_other_sessions_and_leaves_no_zombie() -> None:
    def act() -> None:
        nanny.linux.become_subreaper()
        reading, writing = os.pipe()
        for _ in range(5):
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if os.fork() == 0:
                    os.setsid()
                    os.write(writing, b"x")
                    time.sleep(3600)
                os._exit(0)
        count = 0
        while count < 5:
            count += len(os.read(reading, 5))

        nanny.kill_tree()

        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)

    assert in_a_child(act) == 0


# --- alone with a bus -----------------------------------------------------------------------------------------


class Alone:
    """A nanny of this process, and the bus that it dials, without a zygote and without ZAP."""

    def __init__(self, folder: Path, plan: WorkerPlan) -> None:
        public, secret = zmq.curve_keypair()
        mine, my_secret = zmq.curve_keypair()
        self.context = zmq.Context()
        self.bus = self.context.socket(zmq.ROUTER)
        self.bus.curve_server = True
        self.bus.curve_secretkey = secret
        self.bus.linger = 0
        self.bus.rcvtimeo = int(workers.DEADLINE_S * 1000)
        self.bus.bind(f"ipc://{folder}/bus")
        self.keys = NannyKeys(f"ipc://{folder}/bus", b"n" * 16, mine.decode(), my_secret.decode(), public.decode())
        self.life, theirs = socket.socketpair()
        self.spec: int | None
        their_spec, self.spec = os.pipe()
        os.write(self.spec, frame(encode(plan)))
        self.pid = os.fork()
        if self.pid == 0:
            try:
                nanny.main(theirs.detach(), their_spec, workers.obedient)
            except SystemExit as end:
                os._exit(int(str(end.code)))
            finally:
                os._exit(99)
        theirs.close()
        os.close(their_spec)

    def arm(self) -> None:
        assert self.spec is not None
        os.write(self.spec, frame(encode(self.keys)))
        self.disarm()

    def disarm(self) -> None:
        if self.spec is not None:
            os.close(self.spec)
            self.spec = None

    def hear(self) -> object:
        _, payload = self.bus.recv_multipart()
        return to_supervisor.decode(payload)

    def say(self, *parts: bytes) -> None:
        self.bus.send_multipart([self.keys.routing_id, *parts])

    def ended(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        self.disarm()
        self.life.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.context.destroy(linger=0)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    made = Alone(tmp_path, workers.plan(tmp_path))
    try:
        yield made
    finally:
        made.close()


def test_a_worker_is_ready_before_it_is_given_anything(alone: Alone) -> None:
    alone.arm()

    assert isinstance(alone.hear(), Ready)


def test_a_worker_that_is_denied_its_grant_says_how_it_ended(alone: Alone) -> None:
    alone.arm()
    alone.hear()

    alone.say(encode(workers.turn("x")))

    assert alone.hear() == WorkerExited(1)
    alone.life.close()
    assert alone.ended() == nanny.LAST_WORD_SAID


def test_messages_from_the_bus_of_more_than_one_part_reach_no_worker(alone: Alone, tmp_path: Path) -> None:
    alone.arm()
    alone.hear()

    alone.say(encode(workers.turn("x")), b"")
    alone.say(encode(workers.grant(tmp_path)))

    assert type(alone.hear()).__name__ == "SessionOpened"


@pytest.mark.parametrize("armed", [False, True])
def test_the_end_of_its_life_socket_ends_the_tree(alone: Alone, armed: bool) -> None:
    if armed:
        alone.arm()
        alone.hear()
    tree = workers.below(alone.pid)

    alone.disarm()  # a supervisor that dies closes both
    alone.life.close()

    assert alone.ended() == 1
    assert [pid for pid in tree if workers.alive(pid)] == []


def test_a_spec_that_never_comes_is_no_worker(tmp_path: Path) -> None:
    made = Alone(tmp_path, workers.plan(tmp_path))
    made.disarm()

    assert made.ended() == 1
    made.close()


def test_its_worker_is_the_first_to_be_killed_when_memory_is_short(alone: Alone) -> None:
    alone.arm()
    alone.hear()
    (worker,) = workers.below(alone.pid)

    assert Path(f"/proc/{worker}/oom_score_adj").read_text() == "1000\n"
    assert Path(f"/proc/{alone.pid}/oom_score_adj").read_text() != "1000\n"


def test_a_nanny_keeps_no_right_that_it_does_not_need(alone: Alone) -> None:
    alone.arm()
    alone.hear()

    status = Path(f"/proc/{alone.pid}/status").read_text()

    assert "CapEff:\t0000000000000000" in status
    assert Path(f"/proc/{alone.pid}/environ").stat().st_uid == 0  # not dumpable: nobody of its own user may look


def test_a_nanny_holds_no_descriptor_of_its_maker(tmp_path: Path) -> None:
    secret = os.open(tmp_path, os.O_RDONLY)
    made = Alone(tmp_path, workers.plan(tmp_path))
    try:
        made.arm()
        made.hear()
        (worker,) = workers.below(made.pid)

        for pid in (made.pid, worker):
            with contextlib.suppress(PermissionError):  # an ordinary user may not look; root's run proves it
                targets = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
                assert str(tmp_path) not in targets
    finally:
        os.close(secret)
        made.close()


def test_leaving_is_relayed_before_the_exit(alone: Alone, tmp_path: Path) -> None:
    alone.arm()
    alone.hear()
    alone.say(encode(workers.grant(tmp_path)))
    alone.hear()

    alone.say(encode(workers.turn("last")))

    assert alone.hear() in (Pulse(), Leaving("goodbye"))
    heard = [alone.hear()]
    while not isinstance(heard[-1], WorkerExited):
        heard.append(alone.hear())
    assert heard[-1] == WorkerExited(5)
