"""bridge-ctl's end of the control socket: synchronous, since importing asyncio alone would cost a third of our time.

In go requests of protocol.ctl, out come its replies, or an error that carries the exit code. Where the socket and its
keys lie is said in protocol/home.py.
"""

import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq

from protocol import home as names
from protocol.codec import FRAME_BYTES, encode
from protocol.ctl import FINAL, CtlReply, CtlRequest, VerifyCode, ctl_reply
from protocol.errors import BridgeError, ProtocolViolation

SILENCE_S = 5.0  # the supervisor sends an empty frame every second while it works on an answer
_KEYS_POLL_S = 0.05
_GIVE_UP_S = 0.5
_EVENT = struct.Struct("=HI")  # zmq_socket_monitor(3); zmq.utils.monitor would read it too, but imports asyncio


class NoSupervisor(BridgeError):
    """None runs on this home, or it does not answer. Exit code 3."""

    exit_code = 3


class NotAdmitted(BridgeError):
    """This user or key may not talk to it. Exit code 1."""

    exit_code = 1


class Client:
    """One connection. Use it as a context manager."""

    def __init__(
        self, home: Path, *, silence_s: float = SILENCE_S, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """given_up: asked while we wait, from whoever may lose patience. raises NoSupervisor, NotAdmitted"""
        self._given_up = given_up
        self._home = home
        self._silence_s = silence_s
        self._run = home / names.RUN
        _must_be_held(self._run / names.LOCK, home)
        server_key, public, secret = self._keys()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.maxmsgsize = FRAME_BYTES + 1024
        self._socket.curve_serverkey, self._socket.curve_publickey, self._socket.curve_secretkey = (
            server_key,
            public,
            secret,
        )
        self._monitor = self._socket.get_monitor_socket()
        self._connected = False
        self._socket.connect(f"ipc://{_sockets(self._run) / names.CTL_SOCKET}")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def ask(self, request: CtlRequest) -> Iterator[CtlReply]:
        """Its replies, the last one of FINAL. raises NoSupervisor, NotAdmitted"""
        self.say(request)
        while True:
            payload = self._receive()
            try:
                reply = ctl_reply.decode(payload)
            except ProtocolViolation as error:
                raise NotAdmitted(
                    "unknown answer; are bridge-ctl and bridge-supervisor of the same version?"
                ) from error
            yield reply
            if isinstance(reply, FINAL):
                return

    def say(self, message: CtlRequest | VerifyCode) -> None:
        self._socket.send(encode(message))

    def _receive(self) -> bytes:
        """The next frame with something in it."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        deadline = time.monotonic() + self._silence_s
        while (left := deadline - time.monotonic()) > 0:
            if self._given_up():
                raise NoSupervisor("given up")
            ready = dict(poller.poll(max(1, int(min(left, _GIVE_UP_S) * 1000))))
            if self._socket in ready:
                if payload := self._socket.recv():
                    return payload
                deadline = time.monotonic() + self._silence_s
            elif self._monitor in ready:
                event, _ = _EVENT.unpack(self._monitor.recv_multipart()[0])
                self._watch(event)
        _must_be_held(self._run / names.LOCK, self._home)
        raise NoSupervisor(f"the supervisor on {self._home} does not answer")

    def _watch(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected = True
        elif event in (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL) or (
            # A server that cannot read our first frame, meant for another key, hangs up without a word.
            event == zmq.EVENT_DISCONNECTED and not self._connected
        ):
            _must_be_held(self._run / names.LOCK, self._home)
            raise NotAdmitted(
                f"the supervisor on {self._home} does not accept the key in {self._run / names.CTL_CLIENT_KEY}"
            )
        elif event == zmq.EVENT_DISCONNECTED:
            # It went in the middle of our request; another one would not know of it.
            raise NoSupervisor(f"the supervisor on {self._home} went away before it answered")

    def _keys(self) -> tuple[bytes, bytes, bytes]:
        """The server's public key and our pair. A supervisor that is just starting has not written them yet."""
        deadline = time.monotonic() + self._silence_s
        while True:
            try:
                server = (self._run / names.CTL_SERVER_KEY).read_bytes().split()
                ours = (self._run / names.CTL_CLIENT_KEY).read_bytes().split()
                break
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    raise NoSupervisor(
                        f"the supervisor on {self._home} does not answer: no keys in {self._run}"
                    ) from None
                time.sleep(_KEYS_POLL_S)
            except OSError as error:
                raise NotAdmitted(f"{error.filename}: {error.strerror}") from error
        if [len(key) for key in (*server, *ours)] != [40, 40, 40]:
            raise NotAdmitted(f"{self._run / names.CTL_CLIENT_KEY}: holds no key")
        return server[0], ours[0], ours[1]


def _must_be_held(lock: Path, home: Path) -> None:
    """Raises NoSupervisor unless somebody holds the home's lock. Lets go of it at once: a starting supervisor tries
    more than once for that reason."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSupervisor(f"no supervisor runs on {home}; start one with: bridge-supervisor start") from None
    except OSError as error:
        raise NotAdmitted(f"{lock}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)
    raise NoSupervisor(f"no supervisor runs on {home}; start one with: bridge-supervisor start")


def _sockets(run: Path) -> Path:
    link = run / names.SOCKETS
    return Path(os.readlink(link)) if link.is_symlink() else run
