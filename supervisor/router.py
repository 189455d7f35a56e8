"""The worker bus: one ZeroMQ ROUTER, and who may speak on it.

Who a message is from is proved, never read from a field: ZAP accepts a CURVE key only from the pid that the kernel
names for that key, and answers with the lease's own name, which ZeroMQ hands out with every message (User-Id). The
routing id, which a client chooses, has to be the one minted for that lease. In come payloads of nannies, out go
(lease, ToSupervisor) or a violation; what came of it is pool.py's business.

The socket is read by the loop directly (add_reader on its descriptor), not through zmq.asyncio: no future and no task
per message, and one reading takes a bounded number of messages, so that a flood cannot keep the loop from its work. The
handshakes are answered by a thread: they have two seconds, and a loop that is busy for three must not cost a worker.
"""

import asyncio
import contextlib
import os
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import zmq
from zmq.utils import z85

from protocol.codec import FRAME_BYTES, encode, to_supervisor
from protocol.errors import BridgeError, ProtocolViolation
from protocol.ids import LeaseKey
from protocol.spec import NannyKeys
from protocol.to_supervisor import ToSupervisor
from protocol.to_worker import ToWorker

BUS_NAME = "bus"
PATH_BYTES = 103  # sockaddr_un on macOS; 107 on Linux
BATCH = 64  # most messages of one reading; then the loop gets its turn
IN_FRAMES, OUT_FRAMES = 16, 64  # most that wait in ZeroMQ for each worker
HANDSHAKE_MS = 2000
BACKLOG = 1024  # a nanny that finds the queue full is refused at once, and does not try again

OnHeard = Callable[[LeaseKey, ToSupervisor | ProtocolViolation], None]


class Lost(BridgeError):
    """This worker cannot be told anything: gone, not there yet, or it does not read."""


@dataclass(slots=True)
class _Member:
    """A lease's place on the bus.

    name     what ZAP answers for its key; no other process knows it
    spoke    it has been heard, so that its routing id surely is its own
    """

    lease: LeaseKey
    name: str
    public_key: str
    routing_id: bytes
    pid: int
    spoke: bool = False


class Router:
    """`async with Router.open(folder)`, then attach(). folder: 0700, of our own."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BUS_NAME
        self._on_heard: OnHeard = lambda lease, message: None
        self._members: dict[LeaseKey, _Member] = {}
        self._by_name: dict[str, _Member] = {}
        self._by_key: dict[str, _Member] = {}  # read by the ZAP thread: replaced entries, never a torn one
        self._refused = 0
        self._dropped = 0

    @property
    def refused(self) -> int:
        """Handshakes refused so far."""
        return self._refused

    @property
    def dropped(self) -> int:
        """Messages dropped so far: of nobody, or not in the form of the bus."""
        return self._dropped

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator[Self]:
        """raises BridgeError, zmq.ZMQError: it cannot be bound there"""
        router = cls(folder)
        router._bind()
        try:
            yield router
        finally:
            router._close()

    def attach(self, on_heard: OnHeard) -> None:
        """Who is told of what was heard. Until then it is dropped."""
        self._on_heard = on_heard

    def _bind(self) -> None:
        """raises BridgeError: the path is too long; zmq.ZMQError: it cannot be bound"""
        if len(os.fsencode(self._path)) > PATH_BYTES:
            raise BridgeError(f"the path of a socket may have {PATH_BYTES} bytes: {self._path}")
        self._context = zmq.Context()  # not the shared one: its ZAP handler answers for this socket alone
        handler = self._context.socket(zmq.REP)
        handler.linger = 0
        handler.bind("inproc://zeromq.zap.01")
        self._thread = threading.Thread(target=self._answer_handshakes, args=(handler,), name="zap", daemon=True)
        self._thread.start()
        public, secret = zmq.curve_keypair()
        self._server_key = public.decode()
        bus = self._context.socket(zmq.ROUTER)
        bus.linger = 0
        bus.curve_server = True
        bus.curve_secretkey = secret
        bus.zap_domain = b"workers"
        bus.router_mandatory = True
        bus.router_handover = False
        bus.maxmsgsize = FRAME_BYTES
        bus.rcvhwm = IN_FRAMES
        bus.sndhwm = OUT_FRAMES
        bus.handshake_ivl = HANDSHAKE_MS
        bus.backlog = BACKLOG
        before = os.umask(0o077)
        try:
            bus.bind(f"ipc://{self._path}")
        except zmq.ZMQError:
            bus.close()
            self._end_context()
            raise
        finally:
            os.umask(before)
        self._bus = bus
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.Handle | None = None
        self._loop.add_reader(bus.fileno(), self._on_readable)

    def _close(self) -> None:
        """Nothing waits: what was not sent is dropped."""
        self._loop.remove_reader(self._bus.fileno())
        if self._again is not None:
            self._again.cancel()
        self._bus.close()
        self._end_context()
        self._members.clear()
        self._by_name.clear()
        self._by_key.clear()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def register(self, lease: LeaseKey, pid: int) -> NannyKeys:
        """Mint a place on the bus for this one spawn. pid: the nanny's, the only process that may use it"""
        public, secret = zmq.curve_keypair()
        member = _Member(lease, secrets.token_hex(16), public.decode(), b"n" + secrets.token_bytes(15), pid)
        self._members[lease] = member
        self._by_name[member.name] = member
        self._by_key[member.public_key] = member
        return NannyKeys(
            endpoint=f"ipc://{self._path}",
            routing_id=member.routing_id,
            public_key=member.public_key,
            secret_key=secret.decode(),
            server_key=self._server_key,
        )

    def revoke(self, lease: LeaseKey) -> None:
        """Its key opens nothing any more, and what it still says is dropped."""
        member = self._members.pop(lease, None)
        if member is not None:
            del self._by_name[member.name]
            del self._by_key[member.public_key]

    def send(self, lease: LeaseKey, message: ToWorker) -> None:
        """raises Lost"""
        member = self._members.get(lease)
        if member is None or not member.spoke:
            raise Lost("not on the bus")
        try:
            self._bus.send_multipart([member.routing_id, encode(message)], zmq.DONTWAIT)
        except zmq.Again as error:
            raise Lost("does not read") from error
        except zmq.ZMQError as error:
            raise Lost("its link is gone") from error
        finally:
            self._look_again()

    def read(self) -> bool:
        """Hear what has arrived, at most BATCH messages. True: the bus is empty now"""
        for _ in range(BATCH):
            try:
                frames = self._bus.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return True
            self._hear(frames)
        self._look_again()
        return False

    def _on_readable(self) -> None:
        self.read()

    def _look_again(self) -> None:
        """The descriptor tells of a change only once, and any call to the socket may have used that up."""
        if self._again is None:
            self._again = self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._again = None
        self.read()

    def _hear(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 2:
            self._dropped += 1
            return
        try:
            name = frames[1].get("User-Id")
        except zmq.ZMQError:
            name = None
        member = self._by_name.get(str(name))
        if member is None or frames[0].bytes != member.routing_id:
            self._dropped += 1  # revoked meanwhile, or with a routing id of its own choice
            return
        member.spoke = True
        try:
            message: ToSupervisor | ProtocolViolation = to_supervisor.decode(frames[1].buffer)
        except ProtocolViolation as violation:
            message = violation
        self._on_heard(member.lease, message)

    def _answer_handshakes(self, handler: "zmq.Socket[bytes]") -> None:
        """The ZAP thread (rfc.zeromq.org/spec/27), until the context ends."""
        with contextlib.suppress(zmq.ContextTerminated), handler:
            while True:
                frames = handler.recv_multipart()
                member = self._claimed(frames)
                if member is None:
                    self._refused += 1
                status, name = (b"200", member.name.encode()) if member else (b"400", b"")
                handler.send_multipart([frames[0], frames[1], status, b"", name, b""])

    def _claimed(self, frames: list[bytes]) -> _Member | None:
        """Whose key this is, if it is used by the process it was minted for."""
        if len(frames) != 7 or frames[5] != b"CURVE":
            return None
        member = self._by_key.get(z85.encode(frames[6]).decode())
        pid = frames[3].rpartition(b":")[2]  # libzmq ends an ipc address with the pid of SO_PEERCRED
        return member if member is not None and pid == str(member.pid).encode() else None

    def _end_context(self) -> None:
        self._context.term()
        self._thread.join()
