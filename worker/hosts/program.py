"""An agent program as a process: started, read, told to go, killed, and described after its death.

A host starts one with its SessionSpec and speaks over stdin and stdout; stderr is read here. In the program's
environment is what the spec says and nothing else; its home and temporary folder lie below the session folder.
"""

import asyncio
import contextlib
import os
import signal
from collections import deque
from pathlib import Path

from protocol.errors import FailureKind
from worker.hosts.base import HostError, SessionSpec, for_the_log, gateway_environment

READ_BYTES = 64 * 1024
TAIL_BYTES = 16 * 1024
TAIL_SHOWN_CHARS = 400
OBITUARY_S = 1.0  # between the end of the stream and the exit of its program
TERM_S = 0.2  # a stopped turn's program: between the polite signal and the other
CLOSE_EOF_S, CLOSE_TERM_S = 1.5, 1.0  # an orderly close; most agents clean up at the end of their input
REAP_S = 1.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # where the spec names none


class _Exit(asyncio.subprocess.SubprocessStreamProtocol):
    """asyncio's own wait() returns only after every pipe is closed, which a child of the agent can put off for ever."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=limit, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class AgentProgram:
    """The agent program: a process group of its own, stderr always read, its end told with code and last words."""

    def __init__(self, process: asyncio.SubprocessTransport, streams: _Exit) -> None:
        loop = asyncio.get_running_loop()
        pipes = asyncio.subprocess.Process(process, streams, loop)
        assert pipes.stdin is not None and pipes.stdout is not None and pipes.stderr is not None
        self.stdin = pipes.stdin
        self.stdout = pipes.stdout
        self._stderr = pipes.stderr
        self._process = process
        self._pid = pipes.pid
        self._exited = streams.exited
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0

    @classmethod
    async def start(cls, spec: SessionSpec) -> "AgentProgram":
        """raises HostError"""
        loop = asyncio.get_running_loop()
        try:
            home, temporary = spec.session_dir / "home", spec.session_dir / "tmp"
            for folder in (home, temporary):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            own = {"HOME": str(home), "TMPDIR": str(temporary)}
            env = {"PATH": PATH, "LANG": "C.UTF-8"} | gateway_environment(spec) | dict(spec.env) | own
            process, streams = await loop.subprocess_exec(
                lambda: _Exit(READ_BYTES, loop),  # we never ask the readers for a whole line
                *spec.command,
                cwd=spec.workspace,
                env=env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise HostError(
                FailureKind.NOT_CONFIGURED, f"{Path(spec.command[0]).name} does not start: {reason}"
            ) from error
        return cls(process, streams)

    async def read_stderr(self) -> None:
        """An agent that logs into a full pipe would freeze."""
        while data := await self._stderr.read(READ_BYTES):
            self._tail.append(data[-TAIL_BYTES:])
            self._tail_bytes += len(self._tail[-1])
            while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
                self._tail_bytes -= len(self._tail.popleft())

    async def exited(self) -> None:
        await self._exited.wait()

    async def obituary(self) -> str:
        """How it ended, for the log. A program that closed its stream but lives on is ended first."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OBITUARY_S):
                await self._exited.wait()
        if not self._exited.is_set():
            await self.end(TERM_S)
            told = "closed its output and was ended"
        else:
            told = f"exit code {self._process.get_returncode()}"
        tail = b"".join(self._tail).decode("utf-8", "replace").strip()[-TAIL_SHOWN_CHARS:]
        return for_the_log(f"{told}; last words: {tail}" if tail else told)

    async def end(self, term_s: float) -> None:
        """Ask by signal, wait, insist. On return it is reaped, or as dead as SIGKILL can make it."""
        for sign, wait_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, REAP_S)):
            self._signal(sign)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._exited.wait()
                    break
        self.kill()

    async def close(self) -> None:
        """In order: the end of its input, SIGTERM, SIGKILL."""
        with contextlib.suppress(OSError):
            self.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_EOF_S):
                await self._exited.wait()
        if not self._exited.is_set():
            await self.end(CLOSE_TERM_S)
        self.discard()

    def discard(self) -> None:
        """Kill the group and let go of the pipes, whoever else holds them. A plain call: it cannot be cancelled."""
        self.kill()
        self._process.close()

    def kill(self) -> None:
        """The whole group, also where the program itself has ended and left children behind."""
        self._signal(signal.SIGKILL)

    def _signal(self, sign: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, sign)
