"""A worker that does its worst: what the text of its turn names, from inside a real worker.

serve() opens like any host, so that the bridge trusts it with a turn. Everything here is bounded in the end, so that a
limit which does not hold costs a failed test and not the machine.
"""

import asyncio
import contextlib
import errno
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from protocol.codec import HEADER, encode, frame
from protocol.ids import DialogId, SessionId, TurnId
from protocol.to_supervisor import (
    VERSION,
    Asked,
    Boundary,
    DialogGone,
    DialogKind,
    DialogPurpose,
    FormBroken,
    Limit,
    LimitPassed,
    OpenedHow,
    PieceMade,
    Pulse,
    Ready,
    Remarked,
    SessionOpened,
    TurnEnded,
    TurnOutcome,
    UsageSeen,
    WorkerExited,
)
from protocol.to_worker import Grant, Leave, RunTurn
from worker.link import Link
from worker.turn import Pace

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
LIFE_S = 60.0  # nothing here lives longer, whatever fails


def entry() -> str:
    """The zygote's entry. It starts isolated, so that the packages of an interpreter found elsewhere have to be named."""
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    return (
        f"sys.path[:0] = {paths!r}; from tests.attacks import hostile; from worker.zygote import main; "
        f"main(hostile.serve)"
    )


async def serve(link: Link, grant: Grant) -> None:
    link.pace(Pace.BUSY)
    await link.send(SessionOpened(SessionId("s"), OpenedHow.NEW, "hostile", "1"))
    link.pace(Pace.IDLE)
    while True:
        message = await link.receive()
        if message is None or isinstance(message, Leave):
            return
        if isinstance(message, RunTurn):
            order, _, argument = message.prompt.text.partition(" ")
            link.pace(Pace.BUSY)
            if order in WORDS:
                await asyncio.get_running_loop().run_in_executor(None, _pour, link, WORDS[order](message.turn_id))
                continue
            answer = await asyncio.to_thread(DEEDS[order], argument)
            await link.send(PieceMade(message.turn_id, 0, answer, Boundary.END))
            await link.send(TurnEnded(message.turn_id, TurnOutcome.COMPLETED))
            link.pace(Pace.IDLE)


# --- what it takes of the machine: the answer says how far it came ----------------------------------------------


def _say(argument: str) -> str:
    return argument


def _bomb(argument: str) -> str:
    """Children that fork children that fork, each in a session of its own where argument says so."""
    until = time.monotonic() + LIFE_S
    while time.monotonic() < until:
        try:
            pid = os.fork()
        except OSError:
            time.sleep(0.001)
            continue
        if pid == 0 and argument == "sessions":
            os.setsid()
    os._exit(0)


def _eat(argument: str) -> str:
    """Twelve children, each with so many MiB of its own, or of shared memory that no rlimit counts."""
    kind, mib = argument.split()
    flags = mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if kind == "shared" else mmap.MAP_PRIVATE)
    for _ in range(12):
        if os.fork() == 0:
            held = mmap.mmap(-1, int(mib) * MIB, flags=flags)
            for at in range(0, len(held), mmap.PAGESIZE):
                held[at] = 1
            _stay()
    _stay()
    return ""


def _hide_memory(argument: str) -> str:
    """Memory as a file without a name, unmapped: resident nowhere, and counted by nobody."""
    try:
        descriptor = os.memfd_create("hidden")
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    os.write(descriptor, b"x" * MIB)
    return "hidden"


def _spin(argument: str) -> str:
    """So many processes that use the processor, each in a session of its own."""
    for _ in range(int(argument)):
        if os.fork() == 0:
            os.setsid()
            _spin_alone()
    return "spinning"


def _spin_alone() -> None:
    until = time.monotonic() + LIFE_S
    while time.monotonic() < until:
        pass
    os._exit(0)


def _open_all(argument: str) -> str:
    held = []
    with contextlib.suppress(OSError):
        while len(held) < 100_000:
            held.append(os.dup(0))
    for descriptor in held:
        os.close(descriptor)
    return f"{len(held)} of {resource.getrlimit(resource.RLIMIT_NOFILE)[1]}"


def _log(argument: str) -> str:
    """Megabytes to every descriptor that people take for a log."""
    for descriptor in (1, 2):
        for _ in range(int(argument)):
            os.write(descriptor, b"FLOODED LINE\n" * (MIB // 13))
    return "written"


def _run_away(argument: str) -> str:
    """Forked twice, in a session of its own, deaf to every signal that can be ignored, and its children like it."""
    ready, told = os.pipe()
    for _ in range(4):
        if (child := os.fork()) == 0:
            os.setsid()
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_IGN)
            if os.fork() == 0:
                os.fork()
                os.write(told, b"!")
                _stay()
            os._exit(0)
        os.waitpid(child, 0)
    os.close(told)
    for _ in range(8):
        os.read(ready, 1)
    return "gone away"


def _stay() -> None:
    time.sleep(LIFE_S)
    os._exit(0)


DEEDS: dict[str, Callable[[str], str]] = {
    "say": _say,
    "bomb": _bomb,
    "eat": _eat,
    "hide_memory": _hide_memory,
    "spin": _spin,
    "open_all": _open_all,
    "log": _log,
    "run_away": _run_away,
}


# --- what it says over its link: bytes, and silence after them -----------------------------------------------------


def _pour(link: Link, words: bytes) -> None:
    """Past the link's own order, whole or in part, while the loop pulses or not."""
    with contextlib.suppress(OSError):
        link._end.setblocking(True)
        link._end.sendall(words)
    time.sleep(LIFE_S)


def _messages(*messages: msgspec.Struct) -> bytes:
    return b"".join(frame(encode(message)) for message in messages)


OTHER = TurnId("another")

WORDS: dict[str, Callable[[TurnId], bytes]] = {
    "two_gibibytes": lambda turn: HEADER.pack(2**31),
    "a_megabyte_and_one": lambda turn: HEADER.pack(MIB + 1),
    "garbage": lambda turn: frame(b"\xc1\xff\x00!!"),
    "nothing": lambda turn: frame(b""),
    "nested": lambda turn: frame(b"\x81" * 100_000),
    "its_own_end": lambda turn: _messages(WorkerExited(0)),
    "its_own_sentence": lambda turn: _messages(FormBroken("x")),
    "its_own_limit": lambda turn: _messages(LimitPassed(Limit.MEMORY, "x")),
    "the_supervisors_words": lambda turn: _messages(Leave()),
    "ready_again": lambda turn: _messages(Ready(VERSION, (), ())),
    "opened_again": lambda turn: _messages(SessionOpened(SessionId("t"), OpenedHow.NEW, "x", "1")),
    "a_piece_of_another_turn": lambda turn: _messages(PieceMade(OTHER, 0, "x", Boundary.END)),
    "the_end_of_another_turn": lambda turn: _messages(TurnEnded(OTHER, TurnOutcome.COMPLETED)),
    "a_question_of_another_turn": lambda turn: _messages(
        Asked(OTHER, DialogId("d"), DialogKind.SELECT, DialogPurpose.PERMISSION, "x", "y")
    ),
    "a_withdrawal_of_another_turn": lambda turn: _messages(DialogGone(OTHER, DialogId("d"))),
    "usage_of_another_turn": lambda turn: _messages(UsageSeen(OTHER, 1, 1)),
    "a_piece_out_of_order": lambda turn: _messages(PieceMade(turn, 7, "x", Boundary.END)),
    "a_piece_twice": lambda turn: _messages(*[PieceMade(turn, 0, "x", Boundary.END)] * 2),
    "a_piece_after_the_end": lambda turn: _messages(
        TurnEnded(turn, TurnOutcome.COMPLETED), PieceMade(turn, 0, "x", Boundary.END)
    ),
    "two_ends": lambda turn: _messages(*[TurnEnded(turn, TurnOutcome.COMPLETED)] * 2),
    "a_piece_over_its_size": lambda turn: _messages(PieceMade(turn, 0, "x" * 16 * 1024 + "x", Boundary.END)),
    "half_a_frame": lambda turn: frame(encode(Remarked("x", "y" * 1000)))[:500],
    "half_a_header": lambda turn: b"\x01\x00",
    "pulses_without_end": lambda turn: _messages(Pulse()) * 200_000,
}
