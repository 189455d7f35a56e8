"""Where workers run: the Launcher interface (launch, exited, kill), and the local zygote behind it.

The zygote is started before any setting is read, and again at the next start when it has died; running workers are not
touched by that. It is named here as text alone: nothing of worker/ is imported on this side. All pipes and sockets to a
nanny are made here: the life socket, whose end kills its tree, and the spec pipe.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Protocol, Self

from protocol.codec import encode, frame
from protocol.errors import BridgeError, ProtocolViolation
from protocol.spec import NannyKeys, Preload, Reaped, Spawn, Spawned, SpawnFailed, WorkerPlan, from_zygote

PACKET_BYTES = 64 * 1024
SPEC_BYTES = 32 * 1024  # of part one; both parts fit into a pipe, so that writing never waits
KILL_S = 2.0  # a nanny that has not gone so long after its order is killed itself
CLOSE_S = 2.0
ENTRY = "from worker.zygote import main; main()"
PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent)


class WorkerError(BridgeError):
    """Costs one peer a notice, never the bridge."""


class StartFailed(WorkerError):
    """No worker was started; nothing of it is left."""


class Launched(Protocol):
    """A nanny that has been started and waits for its keys."""

    pid: int

    def hand_over(self, keys: NannyKeys) -> None:
        """Part two of the spec, once keys and pid are known to the router. Does nothing once it was killed."""
        ...

    def kill(self) -> None:
        """Order the whole tree dead. A plain call, and may be repeated; exited() tells when it is."""
        ...

    async def exited(self) -> int | None:
        """Wait until no process of the tree is left. Returns the nanny's exit code, None where nobody knows it."""
        ...


class Launcher(Protocol):
    async def launch(self, plan: WorkerPlan) -> Launched:
        """raises StartFailed"""
        ...

    def close(self) -> None:
        """After the last worker's end. May be repeated."""
        ...


class _Nanny:
    """Knows two facts: the process has ended (pidfd), and the zygote has reaped it and what it left (Reaped)."""

    def __init__(self, pid: int, pidfd: int | None, life: socket.socket, spec_fd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._life = life
        self._spec_fd: int | None = spec_fd
        self._loop = asyncio.get_running_loop()
        self._insist: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._settled = asyncio.Event()
        self._code: int | None = None
        if pidfd is not None:
            self._loop.add_reader(pidfd, self._on_end)

    def hand_over(self, keys: NannyKeys) -> None:
        if self._spec_fd is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died already, which exited() tells
                os.write(self._spec_fd, frame(encode(keys)))
            self._close_spec()

    def kill(self) -> None:
        if self._ended.is_set():
            return
        self._close_spec()
        self._life.close()
        if self._insist is None and self._pidfd is not None:
            self._insist = self._loop.call_later(KILL_S, self._kill_itself)

    async def exited(self) -> int | None:
        await self._ended.wait()
        await self._settled.wait()
        return self._code

    def reaped(self, code: int) -> None:
        """The zygote's word: nothing of it is left."""
        self._code = code
        self._on_end()
        self._settled.set()

    def orphaned(self) -> None:
        """The zygote is gone: nobody will reap it for us. Whoever inherits it, the end of the process has to do."""
        if self._pidfd is None:
            self.kill()  # nothing would tell us when it ends
            self._on_end()
        self._settled.set()

    def _on_end(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        if self._insist is not None:
            self._insist.cancel()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._close_spec()
        self._life.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)  # ours only if we are pid 1 and the zygote died before it

    def _kill_itself(self) -> None:
        assert self._pidfd is not None
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _close_spec(self) -> None:
        if self._spec_fd is not None:
            os.close(self._spec_fd)
            self._spec_fd = None


class Zygote:
    """start() needs no event loop and is called before any secret is read; the rest runs in the loop.

    entry   the zygote's code, as text
    """

    def __init__(self, entry: str = ENTRY) -> None:
        self._entry = entry
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # while it reads our socket
        self._hosts: list[str] = []
        self._asked: deque[asyncio.Future[_Nanny]] = deque()  # answered in order
        self._given: deque[tuple[socket.socket, int]] = deque()  # our ends, for each of them
        self._nannies: dict[int, _Nanny] = {}

    @classmethod
    def start(cls, entry: str = ENTRY) -> Self:
        """Main thread only: the zygote's death signal is tied to the thread that forks."""
        zygote = cls(entry)
        zygote._open()
        return zygote

    @property
    def pid(self) -> int | None:
        """The zygote's."""
        return None if self._process is None else self._process.pid

    def _open(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r}); {self._entry}"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", code, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            )
        ours.setblocking(False)
        self._control = ours
        for host in self._hosts:
            ours.send(encode(Preload(host)))

    def preload(self, host: str) -> None:
        """Have every later worker share this host's library. host: a key of protocol.agents.HOSTS"""
        if host not in self._hosts:
            self._hosts.append(host)
            if self._control is not None:
                with contextlib.suppress(OSError):  # a zygote that has just died is told when it is started again
                    self._control.send(encode(Preload(host)))

    async def launch(self, plan: WorkerPlan) -> Launched:
        """raises StartFailed"""
        part_one = frame(encode(plan))
        if len(part_one) > SPEC_BYTES:
            raise StartFailed(f"a plan of {len(part_one)} bytes")
        control = self._attached()
        life, their_life = socket.socketpair()
        their_spec, spec_fd = os.pipe()
        asked: asyncio.Future[_Nanny] = asyncio.get_running_loop().create_future()
        try:
            os.write(spec_fd, part_one)
            socket.send_fds(control, [encode(Spawn())], [their_life.fileno(), their_spec])
        except OSError as error:
            life.close()
            os.close(spec_fd)
            raise StartFailed(f"the zygote takes no order: {error.strerror}") from error
        finally:
            their_life.close()
            os.close(their_spec)
        self._asked.append(asked)
        self._given.append((life, spec_fd))
        return await asked

    def close(self) -> None:
        """End the zygote: the end of its socket is its order to go. The caller has ended the workers. May be repeated."""
        process, self._process = self._process, None
        self._lose()
        if process is not None:
            try:
                process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _attached(self) -> socket.socket:
        """The socket to a living zygote, read by this loop."""
        if self._control is None or self._process is None or self._process.poll() is not None:
            self._lose()
            self._open()
        assert self._control is not None
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._control, self._read)
        return self._control

    def _read(self) -> None:
        """One packet."""
        assert self._control is not None
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            packet, descriptors = b"", []
        if not packet:
            self._lose()
            return
        try:
            message = from_zygote.decode(packet)
        except ProtocolViolation:
            self._lose()
            return
        match message:
            case Spawned(pid=pid):
                asked, (life, spec_fd) = self._asked.popleft(), self._given.popleft()
                nanny = _Nanny(pid, descriptors[0] if descriptors else None, life, spec_fd)
                self._nannies[pid] = nanny
                if asked.cancelled():
                    nanny.kill()
                else:
                    asked.set_result(nanny)
            case SpawnFailed(reason=reason):
                self._refuse(f"the zygote could not fork: {reason}")
            case Reaped(pid=pid, code=code):
                gone = self._nannies.pop(pid, None)
                if gone is not None:
                    gone.reaped(code)

    def _refuse(self, reason: str) -> None:
        asked, (life, spec_fd) = self._asked.popleft(), self._given.popleft()
        life.close()
        os.close(spec_fd)
        if not asked.done():
            asked.set_exception(StartFailed(reason))

    def _lose(self) -> None:
        """The zygote is dead, dying, or to be ended."""
        if self._control is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._control)
            self._control.close()
        if self._process is not None:
            self._process.poll()
        self._control = None
        self._loop = None
        while self._asked:
            self._refuse("the zygote has died")
        for nanny in self._nannies.values():
            nanny.orphaned()
        self._nannies.clear()
