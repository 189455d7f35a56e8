"""A nanny's passage from its worker to the gateway: whatever the worker asks for, it leads there and nowhere else.

Two ways (sandbox/plan.py, Way). LISTENER: the worker's own network namespace has a listener in the gateway's place; what
is accepted there is carried to the gateway. ASKED: each connect() of the worker comes here as a seccomp notification; one
that names the gateway is answered with a socket that was connected here, any other is refused. The nanny never dials
what a worker named, so that nothing the worker changes meanwhile matters.

One descriptor (fileno) to be watched, serve() when it is readable; nothing here waits for the worker.
"""

import contextlib
import errno
import os
import select
import socket
import struct
import time

from worker.sandbox import linux
from worker.sandbox.plan import Way

HOST = "127.0.0.1"
PAIRS = 64  # carried at once; more wait in the listener's queue
BUFFER_BYTES = 64 * 1024  # held for a side that does not read
ROUNDS = 4  # of reading and writing before others have their turn
BURST, WINDOW_S = 100, 1.0  # connects answered in one window; a flood is refused, not served
DIAL_S = 0.5  # loopback answers at once, unless the gateway's queue is full
ADDRESS_BYTES = 128  # no address is longer

_SOCKADDR_IN = struct.Struct("=H2s4s")
_LATER = (BlockingIOError, InterruptedError)


def hand_over(door: socket.socket, way: Way, descriptor: int) -> None:
    """The worker's part, before it says Ready: our copy is closed afterwards. raises OSError"""
    socket.send_fds(door, [way.value.encode()], [descriptor])
    os.close(descriptor)


class Passage:
    """door: where the worker hands over what the way needs. port: the gateway's"""

    def __init__(self, door: socket.socket, port: int) -> None:
        door.setblocking(False)
        self._door = door
        self._port = port
        self._poll = select.epoll()
        self._poll.register(door, select.EPOLLIN)
        self._listener: socket.socket | None = None
        self._notices = -1
        self._pairs: dict[int, _Pair] = {}  # by the descriptor of either side
        self._window_began = time.monotonic()
        self._answered = 0

    def fileno(self) -> int:
        return self._poll.fileno()

    def serve(self) -> None:
        """All that can be done now."""
        for descriptor, events in self._poll.poll(0):
            pair = self._pairs.get(descriptor)
            if pair is not None:
                pair.carry()
                self._watch(pair)
            elif self._listener is not None and descriptor == self._listener.fileno():
                self._accept()
            elif descriptor == self._notices:
                self._answer(events)
            elif descriptor == self._door.fileno():
                self._open()

    def close(self) -> None:
        for pair in set(self._pairs.values()):
            pair.close()
        if self._listener is not None:
            self._listener.close()
        if self._notices >= 0:
            os.close(self._notices)
        self._door.close()
        self._poll.close()

    def _open(self) -> None:
        """The worker's trusted first steps speak, or have died. Nothing is taken from this door again."""
        with contextlib.suppress(OSError):
            said, descriptors, _, _ = socket.recv_fds(self._door, 64, 1)
            if descriptors:
                match Way(said.decode()):
                    case Way.LISTENER:
                        self._listener = socket.socket(fileno=descriptors[0])
                        self._listener.setblocking(False)
                        self._poll.register(self._listener, select.EPOLLIN)
                    case Way.ASKED:
                        self._notices = descriptors[0]
                        self._poll.register(self._notices, select.EPOLLIN)
        self._poll.unregister(self._door)
        self._door.close()

    # -- a listener in the worker's network

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            near, _ = self._listener.accept()
        except OSError:
            return
        far = _dial(self._port)
        if far is None:
            near.close()
            return
        near.setblocking(False)
        pair = _Pair(near, far)
        for side in (near, far):
            self._pairs[side.fileno()] = pair
        self._watch(pair)
        if len(self._pairs) >= 2 * PAIRS:
            self._poll.modify(self._listener, 0)

    def _watch(self, pair: "_Pair") -> None:
        """Hear of what this pair waits for, and of nothing else: a side that hung up would wake us for ever."""
        if pair.over:
            for descriptor in pair.watched:
                del self._pairs[descriptor]
            pair.close()  # which takes it from the poll, too
            if self._listener is not None:
                self._poll.modify(self._listener, select.EPOLLIN)
            return
        for descriptor, events in pair.waits_for().items():
            before = pair.watched[descriptor]
            if events == before:
                continue
            if not events:
                self._poll.unregister(descriptor)
            elif before:
                self._poll.modify(descriptor, events)
            else:
                self._poll.register(descriptor, events)
            pair.watched[descriptor] = events

    # -- a worker whose connects are ours to answer

    def _answer(self, events: int) -> None:
        if not events & select.EPOLLIN:  # nobody is left behind the filter
            self._poll.unregister(self._notices)
            return
        try:
            asked = linux.receive_notification(self._notices)
        except OSError:
            return  # its thread was killed meanwhile
        code = self._admit(asked)
        with contextlib.suppress(OSError):
            linux.answer_notification(self._notices, asked.id, code)

    def _admit(self, asked: linux.Notification) -> int:
        """The errno that this connect() ends with; 0: the gateway is at the other end now.

        By the time we look the number may be another thread's, or the address another one: that decides between the
        gateway and a refusal, and nothing else can come of it.
        """
        target, address, length = asked.arguments[:3]
        if not self._names_gateway(asked.pid, address, length):
            return errno.EACCES
        now = time.monotonic()
        if now - self._window_began >= WINDOW_S:
            self._window_began, self._answered = now, 0
        self._answered += 1
        if self._answered > BURST:
            return errno.ECONNREFUSED
        far = _dial(self._port)
        if far is None:
            return errno.ECONNREFUSED
        with far:
            far.setblocking(not _is_nonblocking(asked.pid, target))
            try:
                linux.install_descriptor(self._notices, asked.id, far.fileno(), target & 0xFFFFFFFF)
            except OSError as error:
                return error.errno or errno.ECONNREFUSED
        return 0

    def _names_gateway(self, pid: int, address: int, length: int) -> bool:
        """A nanny that may not read its worker's memory (root in a container) takes every address for the gateway's."""
        try:
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                named = os.pread(memory.fileno(), min(length & 0xFFFFFFFF, ADDRESS_BYTES), address)
        except PermissionError:
            return True
        except (OSError, OverflowError):
            return False
        if len(named) < _SOCKADDR_IN.size:
            return False
        family, port, host = _SOCKADDR_IN.unpack_from(named)
        return (family, int.from_bytes(port, "big"), socket.inet_ntoa(host)) == (socket.AF_INET, self._port, HOST)


def _is_nonblocking(pid: int, descriptor: int) -> bool:
    """How the worker's own socket was set, for the one that takes its place. Where nobody tells: it blocks."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        with open(f"/proc/{pid}/fdinfo/{descriptor & 0xFFFFFFFF}", encoding="ascii") as file:
            flags = next(line for line in file if line.startswith("flags:"))
        return bool(int(flags.split()[1], 8) & os.O_NONBLOCK)
    return False


def _dial(port: int) -> socket.socket | None:
    """The gateway, and never anything else."""
    far = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        far.settimeout(DIAL_S)
        far.connect((HOST, port))
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far.setblocking(False)
    except (OSError, OverflowError):
        far.close()
        return None
    return far


class _Flow:
    """Bytes on their way from one side to the other."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.held = bytearray()
        self.ended = False  # the source has said its last
        self.over = False  # and the target knows

    def carry(self) -> None:
        """raises OSError: one of them is gone"""
        for _ in range(ROUNDS):
            if self.over:
                return
            came = False
            if not self.ended and len(self.held) < BUFFER_BYTES:
                with contextlib.suppress(*_LATER):
                    data = self.source.recv(BUFFER_BYTES)
                    self.held += data
                    self.ended = not data
                    came = True
            if self.held:
                with contextlib.suppress(*_LATER):
                    del self.held[: self.target.send(self.held)]
            if self.ended and not self.held:
                self.over = True
                self.target.shutdown(socket.SHUT_WR)
            if not came or self.held:
                return


class _Pair:
    """One connection of the worker's and ours to the gateway. watched: what epoll was told of each side"""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self._sides = (near, far)
        self._flows = (_Flow(near, far), _Flow(far, near))
        self._broken = False
        self.watched = {near.fileno(): 0, far.fileno(): 0}

    @property
    def over(self) -> bool:
        return self._broken or all(flow.over for flow in self._flows)

    def carry(self) -> None:
        try:
            for flow in self._flows:
                flow.carry()
        except OSError:
            self._broken = True

    def waits_for(self) -> dict[int, int]:
        events = dict.fromkeys(self.watched, 0)
        for flow in self._flows:
            if not flow.ended and len(flow.held) < BUFFER_BYTES:
                events[flow.source.fileno()] |= select.EPOLLIN
            if flow.held:
                events[flow.target.fileno()] |= select.EPOLLOUT
        return events

    def close(self) -> None:
        for side in self._sides:
            side.close()
