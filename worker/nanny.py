"""The trusted parent of one worker: makes it, relays between its socketpair and the bus, kills its whole tree.

In come two descriptors: the life socket, whose end (or a supervisor's death) means "kill the tree", and the spec pipe.
It holds no key while it forks: part two of the spec is read afterwards, so that the worker's memory has none.

Size, rate and form of what the worker says are enforced here: a frame's length before it is read, its type by decoding
it as FromWorker, its rate by not reading on. The bytes are then passed on as they came. What the tree takes of the
machine is watched here too (watch.py), and its way to the gateway is served (passage.py). One plain poll loop, no
asyncio: there is a nanny for every worker, and it has to be small.
"""

import contextlib
import os
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import zmq

from protocol.codec import FRAME_BYTES, HEADER, Unframer, encode, frame, from_worker, to_worker
from protocol.errors import ProtocolViolation
from protocol.spec import (
    LAST_WORD_SAID,
    Layer,
    NannyKeys,
    NetworkMode,
    WorkerLimits,
    WorkerPlan,
    nanny_keys,
    worker_plan,
)
from protocol.to_supervisor import (
    PIECE_BYTES,
    FormBroken,
    FromNanny,
    FromWorker,
    Limit,
    LimitPassed,
    OpenFailed,
    PieceMade,
    TurnEnded,
    WorkerExited,
)
from protocol.to_worker import RunTurn
from worker import entry, turn
from worker.passage import Passage
from worker.sandbox import cgroup, linux, namespaces
from worker.sandbox.facts import facts
from worker.watch import TreeWatch

BYTES_PER_S, BYTES_BURST = 1024 * 1024, 4 * 1024 * 1024
FRAMES_PER_S, FRAMES_BURST = 1000.0, 2000.0  # a warm turn takes three; a flood at this rate costs us 4 % of a core
DETAIL_BYTES = 2 * 1024
READ_BYTES = 64 * 1024
MIB = 1024 * 1024
BUS_FRAMES = 16  # most messages that wait in ZeroMQ, either way
EXIT_S = 1.0  # a worker that has closed its end has so long to exit by itself
LAST_WORD_S = 10.0  # how long a supervisor that is busy may take to hear the last word; the tree is gone by then


def main(life_fd: int, spec_fd: int, serve: entry.Serve = turn.serve) -> None:
    """The whole life of a nanny. Returns by SystemExit: LAST_WORD_SAID, or 1 when killed by order."""
    os.setsid()
    _close_all_but((0, 1, 2, life_fd, spec_fd))
    with contextlib.suppress(OSError):
        linux.become_subreaper()
    life = socket.socket(fileno=life_fd)
    group = None
    try:
        plan = worker_plan.decode(_read_part(spec_fd))
        group = cgroup.make(plan, f"worker-{os.getpid()}")
        link, worker, passage = _start_worker(plan, life, spec_fd, serve, group)
        with contextlib.suppress(OSError):
            namespaces.leave_nanny(plan, facts())
        keys = nanny_keys.decode(_read_part(spec_fd))
        os.close(spec_fd)
        said = _relay(life, link, worker, keys, plan.limits, passage, group)
    except EOFError:  # the supervisor has changed its mind, or is dead
        kill_tree()
        said = False
    if group is not None:
        group.remove()
    raise SystemExit(LAST_WORD_SAID if said else 1)


# --- making the worker ----------------------------------------------------------------------------------------


def _close_all_but(kept: Iterable[int]) -> None:
    start = 0
    for descriptor in sorted(kept):
        if descriptor > start:  # closerange(0, 0) closes everything: CPython passes -1 on, and the kernel takes it
            os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def _read_part(spec_fd: int) -> bytes:
    """One frame and not a byte more: what follows may be the key. raises EOFError"""
    (length,) = HEADER.unpack(_read_exactly(spec_fd, HEADER.size))
    return _read_exactly(spec_fd, length)


def _read_exactly(descriptor: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = os.read(descriptor, count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _start_worker(
    plan: WorkerPlan, life: socket.socket, spec_fd: int, serve: entry.Serve, group: cgroup.Group | None
) -> tuple[socket.socket, int, Passage | None]:
    """Our end of the link, the worker's pid as we see it, and its passage to the gateway where the plan has one.

    raises EOFError when there is no worker

    A process that has unshared its pid namespace can start no thread any more (clone(2): EINVAL), and ZeroMQ needs two.
    So a stem enters the namespaces, forks the worker and ends; the worker becomes ours because we are the subreaper.
    """
    ours, theirs = socket.socketpair()
    door, their_door = socket.socketpair() if plan.network in (NetworkMode.GATEWAY, NetworkMode.PROXY) else (None, None)
    reading, writing = os.pipe()
    stem = os.fork()
    if stem == 0:
        try:
            ours.close()
            life.close()
            if door is not None:
                door.close()
            os.close(spec_fd)
            os.close(reading)
            _stem(plan, theirs, their_door, writing, serve, group)
        except BaseException:
            traceback.print_exc()  # nobody above would: this process must not return into its parent's frames
        finally:
            os._exit(1)
    theirs.close()
    if their_door is not None:
        their_door.close()
    os.close(writing)
    with os.fdopen(reading, "rb") as report:
        told = report.read()
    os.waitpid(stem, 0)
    if not told:
        raise EOFError
    with contextlib.suppress(OSError):  # it may be dead by now, which the relay finds out
        ours.send(b"\0")
    ours.setblocking(False)
    return ours, int(told), None if door is None else Passage(door, plan.gateway_port)


def _stem(
    plan: WorkerPlan,
    theirs: socket.socket,
    door: socket.socket | None,
    report: int,
    serve: entry.Serve,
    group: cgroup.Group | None,
) -> None:
    with contextlib.suppress(OSError):
        linux.set_dumpable(1)  # else root owns our /proc files
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    joined: frozenset[Layer] = frozenset()
    if group is not None:
        with contextlib.suppress(OSError):
            group.join()  # before the worker exists, so that nothing of it is ever elsewhere
            joined = frozenset({Layer.CGROUP})
    try:
        already = namespaces.enter_nanny(plan, facts()) | joined
    except OSError:
        already = joined  # a required layer: the worker will say so, and leave
    worker = os.fork()
    if worker == 0:
        os.close(report)
        entry.main(theirs, plan, already, serve, door)
    os.write(report, str(worker).encode())
    os._exit(0)


# --- the relay ------------------------------------------------------------------------------------------------


class Bucket:
    """Fills steadily up to a burst. May be overdrawn, and is empty then until the debt is filled up."""

    def __init__(self, rate_per_s: float, burst: float, *, now: float) -> None:
        self._rate = rate_per_s
        self._burst = burst
        self._level = burst
        self._at = now

    def take(self, amount: float, *, now: float) -> None:
        self._level = min(self._burst, self._level + (now - self._at) * self._rate) - amount
        self._at = now

    def wait_s(self, *, now: float) -> float:
        """0.0 when there is anything in it."""
        level = self._level + (now - self._at) * self._rate
        return 0.0 if level > 0 else (1 - level) / self._rate


def check(payload: bytes) -> FromWorker:
    """raises ProtocolViolation unless this is something a worker may say, in a size that it may have"""
    message = from_worker.decode(payload)
    match message:
        case PieceMade(text=text) if len(text.encode()) > PIECE_BYTES:
            raise ProtocolViolation("a piece over its size")
        case TurnEnded(detail=detail) | OpenFailed(detail=detail) if len(detail.encode()) > DETAIL_BYTES:
            raise ProtocolViolation("a detail over its size")
        case _:
            return message


@dataclass(frozen=True, slots=True)
class _Killed:
    """By order: nobody listens any more."""


_Ending = FromNanny | _Killed


def _relay(
    life: socket.socket,
    link: socket.socket,
    worker: int,
    keys: NannyKeys,
    limits: WorkerLimits,
    passage: Passage | None,
    group: cgroup.Group | None,
) -> bool:
    """Until worker or supervisor ends; then nothing of the tree is left. True: the last word was heard."""
    # The handler does nothing: the byte in the pipe wakes the poll. Python needs a handler for that.
    woken, waking = socket.socketpair()
    woken.setblocking(False)
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    context = zmq.Context()
    bus = _connect(context, keys)
    relay = _Relay(life, link, woken, bus, worker, limits, passage)
    ending = relay.run()
    kill_tree()
    heard = False
    match ending:
        case _Killed():
            pass
        case WorkerExited():
            relay.drain()
            if group is not None and group.ran_out_of_memory():
                ending = LimitPassed(Limit.MEMORY, f"all of {limits.memory_bytes // MIB} MiB")
            heard = relay.say_last(ending)
        case FormBroken() | LimitPassed():
            heard = relay.say_last(ending)
    bus.close(linger=0)
    context.term()
    return heard


def _connect(context: "zmq.Context[zmq.Socket[bytes]]", keys: NannyKeys) -> "zmq.Socket[bytes]":
    bus = context.socket(zmq.DEALER)
    bus.routing_id = keys.routing_id
    bus.curve_serverkey = keys.server_key.encode()
    bus.curve_publickey = keys.public_key.encode()
    bus.curve_secretkey = keys.secret_key.encode()
    bus.linger = 0
    bus.sndhwm = BUS_FRAMES
    bus.rcvhwm = BUS_FRAMES
    bus.maxmsgsize = FRAME_BYTES
    bus.reconnect_ivl = -1  # a lost link is a dead worker
    bus.connect(keys.endpoint)
    return bus


class _Relay:
    """What the worker says goes up, what the supervisor says goes down; each waits for the other side to read.

    Held at most: upwards the frames of one read, downwards one message, and what ZeroMQ holds (BUS_FRAMES each way).
    """

    def __init__(
        self,
        life: socket.socket,
        link: socket.socket,
        woken: socket.socket,
        bus: "zmq.Socket[bytes]",
        worker: int,
        limits: WorkerLimits,
        passage: Passage | None,
    ) -> None:
        self._life = life
        self._link = link
        self._woken = woken
        self._bus = bus
        self._worker = worker
        self._passage = passage
        self._watch = TreeWatch(worker, limits)
        self._unframer = Unframer()
        self._up: deque[bytes] = deque()
        self._down = bytearray()
        self._closed_at: float | None = None  # when the worker closed its end
        now = time.monotonic()
        self._bytes = Bucket(BYTES_PER_S, BYTES_BURST, now=now)
        self._frames = Bucket(FRAMES_PER_S, FRAMES_BURST, now=now)

    def run(self) -> _Ending:
        poller = zmq.Poller()
        poller.register(self._life, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        if self._passage is not None:
            poller.register(self._passage.fileno(), zmq.POLLIN)
        if (ended := self._reap()) is not None:  # before SIGCHLD had its handler
            return ended
        while True:
            timeout_s = self._arm(poller)
            ready = dict(poller.poll(int(timeout_s * 1000) + 1))
            if self._life.fileno() in ready:
                return _Killed()
            try:
                self._carry(ready)
            except ProtocolViolation as broken:
                return FormBroken(str(broken))
            if self._passage is not None and self._passage.fileno() in ready:
                self._passage.serve()
            if self._woken.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(READ_BYTES)
                if (ended := self._reap()) is not None:
                    return ended
            if self._closed_at is not None and time.monotonic() >= self._closed_at + EXIT_S:
                return FormBroken("the worker closed its link and went on")
            if self._watch.wait_s() == 0.0 and (overrun := self._watch.look()) is not None:
                return LimitPassed(overrun.limit, overrun.detail)

    def drain(self) -> None:
        """Read what the worker said before it ended; its tree is gone, so no more can come. Its own doing if that breaks."""
        with contextlib.suppress(ProtocolViolation, OSError):
            while data := self._link.recv(READ_BYTES):
                self._take(data)

    def say_last(self, ending: FromNanny) -> bool:
        """Hand over what is held, then the ending, and stay until it was heard: the supervisor then ends our life socket.

        A connection that is closed while the receiving end's queue is full loses what the kernel still holds of it
        (libzmq stops reading at its high-water mark and then takes the hang-up for an error).
        """
        self._up.append(encode(ending))
        until = time.monotonic() + LAST_WORD_S
        poller = zmq.Poller()
        poller.register(self._life, zmq.POLLIN)
        while (left_s := until - time.monotonic()) > 0:
            poller.register(self._bus, zmq.POLLOUT if self._up else 0)
            ready = dict(poller.poll(int(left_s * 1000) + 1))
            if self._life.fileno() in ready:
                return not self._up
            self._send_up()
        return False

    def _arm(self, poller: zmq.Poller) -> float:
        """Register what we want to hear of now. Returns how long to wait at most."""
        now = time.monotonic()
        pause_s = max(self._bytes.wait_s(now=now), self._frames.wait_s(now=now))
        reads_link = not self._up and pause_s == 0.0 and self._closed_at is None
        poller.register(self._link, (zmq.POLLIN if reads_link else 0) | (zmq.POLLOUT if self._down else 0))
        poller.register(self._bus, (0 if self._down else zmq.POLLIN) | (zmq.POLLOUT if self._up else 0))
        waits = [self._watch.wait_s()]
        if self._closed_at is not None:
            waits.append(max(0.0, self._closed_at + EXIT_S - now))
        elif pause_s > 0.0 and not self._up:
            waits.append(pause_s)
        return min(waits)

    def _carry(self, ready: dict[object, int]) -> None:
        """raises ProtocolViolation"""
        from_link = ready.get(self._link.fileno(), 0)
        from_bus = ready.get(self._bus, 0)
        if from_link & zmq.POLLIN:
            self._read_link()
        if self._up and (from_bus & zmq.POLLOUT or from_link & zmq.POLLIN):
            self._send_up()
        if from_bus & zmq.POLLIN:
            self._read_bus()
        if self._down:
            self._send_down()

    def _read_link(self) -> None:
        try:
            data = self._link.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self._closed_at = time.monotonic()

    def _take(self, data: bytes) -> None:
        payloads = self._unframer.feed(data)
        for payload in payloads:
            if isinstance(check(payload), TurnEnded):
                self._watch.turn_ended()
        now = time.monotonic()
        self._bytes.take(len(data), now=now)
        self._frames.take(len(payloads), now=now)
        self._up.extend(payloads)

    def _send_up(self) -> None:
        while self._up:
            try:
                self._bus.send(self._up[0], zmq.DONTWAIT)
            except zmq.Again:
                return
            self._up.popleft()

    def _read_bus(self) -> None:
        try:
            parts = self._bus.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return
        if len(parts) == 1:
            if isinstance(to_worker.decode(parts[0]), RunTurn):
                self._watch.turn_began()
            self._down += frame(parts[0])

    def _send_down(self) -> None:
        try:
            sent = self._link.send(self._down)
        except BlockingIOError:
            return
        except OSError:
            self._down.clear()  # the worker has closed its end; reading finds that out
            return
        del self._down[:sent]

    def _reap(self) -> WorkerExited | None:
        """Collect whatever has ended, orphans of the tree included."""
        ended: WorkerExited | None = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._worker:
                    ended = WorkerExited(os.waitstatus_to_exitcode(status))
        return ended


def kill_tree() -> None:
    """On return no descendant of this process is left, whatever sessions or groups it made, and none is a zombie."""
    while True:
        for pid in list(linux.descendants(os.getpid())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)
