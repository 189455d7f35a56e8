"""The control socket: a ZeroMQ ROUTER of its own, for the operator's bridge-ctl alone.

In come requests of protocol.ctl, each of which opens a conversation that a handler (ctl.py) answers; out go its replies.
Here are the keys, the socket file, frames, and who is still listening; what a verb does is none of this module's
business. While a conversation is open an empty frame goes to its client every second: so a client can tell a slow verb
from a dead supervisor, and we notice a client that has gone.
"""

import asyncio
import contextlib
import errno
import os
import socket as sockets
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import zmq
import zmq.asyncio
from zmq.utils import z85

from protocol import home as names
from protocol.codec import FRAME_BYTES, encode
from protocol.ctl import FINAL, CtlReply, CtlRequest, Failed, VerifyCode, ctl_request
from protocol.errors import BridgeError, ProtocolViolation
from supervisor.home import Home

KEEPALIVE_S = 1.0
CONVERSATIONS = 32  # at once; one more is refused, the operator has as many terminals
_CODES = 4  # waiting for a handler to take them
_ZAP = "inproc://zeromq.zap.01"
_ENVELOPE_BYTES = 1024  # what CURVE adds to a frame, generously


class CtlSocketError(BridgeError):
    """The control socket cannot be opened; the bridge must not start without it. Names the path and what to do."""


class Conversation:
    """One request and its replies. Belongs to the handler's task."""

    def __init__(self, server: "CtlServer", identity: bytes) -> None:
        self.over = False
        self.last: CtlReply | None = None
        self._server = server
        self._identity = identity
        self._codes: asyncio.Queue[VerifyCode] = asyncio.Queue(_CODES)

    def reply(self, reply: CtlReply) -> None:
        """Send one reply; one of FINAL ends the conversation. Never waits, and never fails: a client that has gone
        makes the handler's task be cancelled."""
        if self.over:
            raise RuntimeError(f"{type(reply).__name__} after the last reply")
        self.over, self.last = isinstance(reply, FINAL), reply
        self._server.send(self._identity, _encoded(reply))

    async def next(self) -> VerifyCode:
        """What the human answered to CodeWanted."""
        return await self._codes.get()

    def hear(self, code: VerifyCode) -> None:
        if not self._codes.full():  # whoever types more codes than are asked for loses them
            self._codes.put_nowait(code)


Handler = Callable[[CtlRequest, Conversation], Awaitable[None]]


class CtlServer:
    """Open it once the home's lock is held, then serve(); close() after serve() has been cancelled."""

    def __init__(self, home: Home) -> None:
        """Bind the socket and write the keys.

        home     its lock is held by us: nothing else would make a left-over socket file ours to remove
        raises   CtlSocketError
        """
        self._home = home
        self._path = home.ctl_socket
        self._bound = False
        self._open: dict[bytes, tuple[Conversation, asyncio.Task[None]]] = {}
        # A context of its own: libzmq has one ZAP handler per context, and the workers' bus has another rule.
        self._context = zmq.asyncio.Context()
        self._zap = self._context.socket(zmq.ROUTER)
        self._socket = self._context.socket(zmq.ROUTER)
        try:
            _clear(self._path)
            self._client_key = self._write_keys()
            self._zap.bind(_ZAP)
            self._socket.zap_domain = b"ctl"
            self._socket.maxmsgsize = FRAME_BYTES + _ENVELOPE_BYTES
            self._socket.router_mandatory = True
            self._socket.handshake_ivl = 5000
            self._socket.bind(f"ipc://{self._path}")
            self._bound = True
            self._path.chmod(0o600)
        except (OSError, zmq.ZMQError) as error:
            self.close()
            raise CtlSocketError(
                f"{self._path}: the control socket cannot be opened: {error.strerror}; check owner and mode of its folder"
            ) from error
        except CtlSocketError:
            self.close()
            raise

    async def serve(self, handler: Handler, *, keepalive_s: float = KEEPALIVE_S) -> None:
        """Answer until cancelled. An exception of a handler that is no BridgeError is a bug and ends this."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._admit(), name="ctl-zap")
            tasks.create_task(self._keep_alive(keepalive_s), name="ctl-keepalive")
            while True:
                frames = await self._socket.recv_multipart()
                if len(frames) != 2:
                    continue  # no client of ours; it learns nothing
                self._receive(tasks, handler, *frames)

    def close(self) -> None:
        """Send what is still unsent, and leave neither socket nor keys behind. Only after serve() has ended."""
        self._zap.close(linger=0)
        self._socket.close(linger=500)
        self._context.term()
        ours = [self._home.run / names.CTL_CLIENT_KEY, self._home.run / names.CTL_SERVER_KEY]
        if self._bound:
            ours.append(self._path)
        for file in ours:
            with contextlib.suppress(OSError):
                file.unlink()

    def send(self, identity: bytes, payload: bytes) -> None:
        """For conversations. With NOBLOCK the future is done at once, so that no reply ever waits for a slow reader."""
        sent = cast("asyncio.Future[Any]", self._socket.send_multipart([identity, payload], flags=zmq.NOBLOCK))
        error = sent.exception()
        if error is None:
            return
        if not isinstance(error, zmq.ZMQError) or error.errno not in (errno.EHOSTUNREACH, errno.EAGAIN):
            raise error
        if identity in self._open:
            self._open[identity][1].cancel()

    def _receive(self, tasks: asyncio.TaskGroup, handler: Handler, identity: bytes, payload: bytes) -> None:
        try:
            request = ctl_request.decode(payload)
        except ProtocolViolation:
            self._refuse(identity, "unknown request; are bridge-ctl and bridge-supervisor of the same version?")
            return
        running = self._open.get(identity)
        if isinstance(request, VerifyCode):
            if running is None:
                self._refuse(identity, "no login is waiting for a code")
            else:
                running[0].hear(request)
        elif running is not None:
            running[1].cancel()
            self._refuse(identity, "one request at a time on one connection")
        elif len(self._open) >= CONVERSATIONS:
            self._refuse(identity, "too many calls of bridge-ctl at once; try again")
        else:
            conversation = Conversation(self, identity)
            task = tasks.create_task(
                self._converse(handler, request, conversation), name=f"ctl-{type(request).__name__.lower()}"
            )
            self._open[identity] = (conversation, task)
            # A callback, not a finally: a task cancelled before its first step never gets to one.
            task.add_done_callback(lambda _: self._open.pop(identity, None))

    async def _converse(self, handler: Handler, request: CtlRequest, conversation: Conversation) -> None:
        try:
            await handler(request, conversation)
        except BridgeError as error:
            if not conversation.over:
                conversation.reply(Failed(code=1, line=str(error)))
        if not conversation.over:
            raise RuntimeError(f"{type(request).__name__} was left without an answer")

    def _refuse(self, identity: bytes, line: str) -> None:
        self.send(identity, encode(Failed(code=1, line=line)))

    async def _keep_alive(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            for identity in tuple(self._open):
                self.send(identity, b"")

    async def _admit(self) -> None:
        """ZAP (RFC 27): only the operator's key comes in."""
        while True:
            frames = await self._zap.recv_multipart()
            sender, version, request_id, mechanism, credentials = (
                frames[0],
                frames[2],
                frames[3],
                frames[7] if len(frames) > 7 else b"",
                frames[8:],
            )
            welcome = mechanism == b"CURVE" and credentials == [self._client_key]
            status = (b"200", b"OK", b"operator") if welcome else (b"400", b"not the operator's key", b"")
            await self._zap.send_multipart([sender, b"", version, request_id, *status, b""])

    def _write_keys(self) -> bytes:
        """Two fresh pairs: ours stays in memory, the operator's goes to a file. returns the operator's public key, raw"""
        our_public, our_secret = zmq.curve_keypair()
        their_public, their_secret = zmq.curve_keypair()
        self._socket.curve_server = True
        self._socket.curve_publickey = our_public
        self._socket.curve_secretkey = our_secret
        _write_private(self._home.run / names.CTL_CLIENT_KEY, their_public + b"\n" + their_secret + b"\n")
        _write_private(self._home.run / names.CTL_SERVER_KEY, our_public + b"\n")
        return z85.decode(their_public)


def _encoded(reply: CtlReply) -> bytes:
    try:
        return encode(reply)
    except ProtocolViolation:
        return encode(Failed(code=1, line="the answer is too long"))
    except UnicodeEncodeError:
        return encode(msgspec.convert(_whole(msgspec.to_builtins(reply)), type(reply)))


def _whole(value: Any) -> Any:
    """The same builtins without lone surrogates, which no UTF-8 can carry."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, (list, tuple)):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(one) for key, one in value.items()}
    return value


def _clear(path: Path) -> None:
    """Remove the socket file of a supervisor that is dead. Whatever else lies there stays, and stops us."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise CtlSocketError(f"{path}: something that is no socket lies there; move it away")
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise CtlSocketError(f"{path}: another process listens there; stop it or choose another --home")


def _write_private(file: Path, data: bytes) -> None:
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(data)
    fresh.replace(file)
