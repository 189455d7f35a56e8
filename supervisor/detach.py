"""--detach: the bridge goes on in the background, and the command returns once it is ready or has failed.

The first process waits at a pipe; the second leads a session of its own and tells through the pipe how the start went.
Called before the zygote exists, while there is one thread and nothing is open.
"""

import os
import sys
from pathlib import Path
from typing import Protocol


class Announcer(Protocol):
    """Where the outcome of a start is told."""

    def ready(self) -> None: ...

    def failed(self, line: str) -> None: ...


class Foreground:
    """Nobody waits; a failure's line goes to stderr."""

    def ready(self) -> None:
        pass

    def failed(self, line: str) -> None:
        print(line.encode("utf-8", "backslashreplace").decode(), file=sys.stderr, flush=True)


class Background:
    """The waiting process gets one line: `ready`, or why not."""

    def __init__(self, pipe: int) -> None:
        self._pipe: int | None = pipe

    def ready(self) -> None:
        self._say("ready\n")

    def failed(self, line: str) -> None:
        self._say(line + "\n")

    def _say(self, line: str) -> None:
        if self._pipe is not None:
            os.write(self._pipe, line.encode("utf-8", "backslashreplace"))
            os.close(self._pipe)
            self._pipe = None


def detach(log_file: Path) -> Background:
    """Returns in the background process; the caller's own never comes back: it exits with the start's outcome.

    The background process sends its exit code through the pipe's end and its wait status; stderr goes to log_file, so
    that even a crash of the interpreter leaves a trace.
    """
    reading, writing = os.pipe()
    os.set_inheritable(writing, False)
    child = os.fork()
    if child:
        os.close(writing)
        _wait(child, reading)
    os.close(reading)
    os.setsid()
    log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for target, source in ((0, null), (1, null), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    return Background(writing)


def _wait(child: int, reading: int) -> None:
    with os.fdopen(reading, "rb") as pipe:
        line = pipe.readline().decode("utf-8", "replace").rstrip("\n")
    if line == "ready":
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(line or "bridge-supervisor: the start failed; see its log", file=sys.stderr, flush=True)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) and os.WEXITSTATUS(status) else 1)
