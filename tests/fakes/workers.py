"""Real workers for tests: plans, grants, and a pool with its own zygote and bus, whose events are awaited by name.

A worker's behaviour is a function of this module, named in the zygote's entry text: the same way in which the product's
own serve() gets there.
"""

import asyncio
import contextlib
import functools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from protocol.codec import encode, frame
from protocol.content import Access, Prompt
from protocol.ids import AccountId, Generation, LeaseKey, PeerId, SessionId, TurnId
from protocol.spec import IsolationMode, Layer, NetworkMode, WorkerLimits, WorkerPlan
from protocol.to_supervisor import (
    Boundary,
    Leaving,
    OpenedHow,
    PieceMade,
    Remarked,
    SessionOpened,
    TurnEnded,
    TurnOutcome,
)
from protocol.to_worker import AgentSpec, Grant, Leave, RunTurn
from supervisor.clock import SystemClock
from supervisor.core.lease import Gone, Limits, Opened, PoolEvent, Said
from supervisor.launcher import Zygote
from supervisor.pool import Pool, WorkerView
from supervisor.router import Router
from worker.link import Link
from worker.turn import Pace

ROOT = str(Path(__file__).resolve().parent.parent.parent)
DEADLINE_S = 20.0
MIB = 1024 * 1024

BARE = (Layer.DESCRIPTORS, Layer.ENVIRONMENT, Layer.RLIMITS, Layer.NO_NEW_PRIVS)
WALLED = (*BARE, Layer.LANDLOCK, Layer.SECCOMP, Layer.USER_NS, Layer.PID_NS, Layer.MOUNT_NS)

Event = TypeVar("Event", bound=PoolEvent)


def entry(behaviour: str) -> str:
    """The zygote's entry for a behaviour of this module."""
    return (
        f"sys.path.insert(0, {ROOT!r}); from tests.fakes import workers; from worker.zygote import main; "
        f"main(workers.{behaviour})"
    )


def key(peer: str = "alice", generation: int = 1) -> LeaseKey:
    return LeaseKey(AccountId("account"), PeerId(peer), Generation(generation))


def plan(folder: Path, *, wanted: Iterable[Layer] = BARE, required: Iterable[Layer] = ()) -> WorkerPlan:
    for name in ("session", "workspace", "media"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return WorkerPlan(
        access=Access.WORKSPACE,
        mode=IsolationMode.BEST_EFFORT,
        network=NetworkMode.NONE,
        session_dir=str(folder / "session"),
        workspace=str(folder / "workspace"),
        media_dir=str(folder / "media"),
        read=(ROOT,),
        write=(),
        execute=(),
        hide=(),
        limits=WorkerLimits(1024 * MIB, 512, 64 * MIB, 256, 3600),
        wanted=tuple(wanted),
        required=tuple(required),
    )


def grant(folder: Path, *, stop_grace_s: float = 2.0) -> Grant:
    return Grant(
        session_dir=str(folder / "session"),
        workspace=str(folder / "workspace"),
        media_dir=str(folder / "media"),
        session_id=None,
        access=Access.WORKSPACE,
        agent=AgentSpec("echo"),
        contract="",
        tools=None,
        stop_grace_s=stop_grace_s,
    )


def turn(text: str, number: int = 1) -> RunTurn:
    return RunTurn(TurnId(str(number)), Prompt(text))


# --- behaviours of workers ------------------------------------------------------------------------------------


async def obedient(link: Link, grant: Grant) -> None:
    """Does with each turn what its text says: the name of a function below, and its argument."""
    link.pace(Pace.BUSY)
    await link.send(SessionOpened(SessionId("s"), OpenedHow.NEW, "obedient", "1"))
    link.pace(Pace.IDLE)
    while True:
        message = await link.receive()
        if message is None or isinstance(message, Leave):
            return
        if isinstance(message, RunTurn):
            link.pace(Pace.BUSY)
            order, _, argument = message.prompt.text.partition(" ")
            answer = ORDERS[order](argument, link)
            if answer is not None:
                await link.send(PieceMade(message.turn_id, 0, answer, Boundary.END))
                await link.send(TurnEnded(message.turn_id, TurnOutcome.COMPLETED))
                link.pace(Pace.IDLE)


async def dies_at_once(link: Link, grant: Grant) -> None:
    os._exit(3)


async def talks_and_dies(link: Link, grant: Grant) -> None:
    """Says 200 pieces and the end of its turn, and is gone in the same moment."""
    await link.send(SessionOpened(SessionId("s"), OpenedHow.NEW, "talks", "1"))
    message = await link.receive()
    assert isinstance(message, RunTurn)
    for number in range(200):
        await link.send(PieceMade(message.turn_id, number, str(number), Boundary.LINE))
    await link.send(TurnEnded(message.turn_id, TurnOutcome.COMPLETED))
    os._exit(7)


async def never_opens(link: Link, grant: Grant) -> None:
    link.pace(Pace.BUSY)
    await link.receive()


async def stays(link: Link, grant: Grant) -> None:
    """Opens, and then obeys nobody."""
    await link.send(SessionOpened(SessionId("s"), OpenedHow.NEW, "stays", "1"))
    link.pace(Pace.BUSY)
    await asyncio.Event().wait()


def _raw(link: Link) -> socket.socket:
    end: socket.socket = link._end
    end.setblocking(True)
    return end


def _say(argument: str, link: Link) -> str:
    return argument


def _last(argument: str, link: Link) -> None:
    """Says goodbye and is gone."""
    _raw(link).sendall(frame(encode(Leaving("goodbye"))))
    os._exit(5)


def _sleep(argument: str, link: Link) -> None:
    """Hangs the whole loop, so that no pulse goes out."""
    time.sleep(float(argument))


def _wait(argument: str, link: Link) -> None:
    """Goes on pulsing and never ends."""


def _die(argument: str, link: Link) -> None:
    if argument.startswith("-"):
        os.kill(os.getpid(), signal.SIGKILL)  # nothing, as pid 1 of a namespace
    os._exit(abs(int(argument)))


def _daemon(argument: str, link: Link) -> str:
    """Double fork, a session of its own, TERM ignored. Says its pid, as this namespace sees it."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() != 0:
            os._exit(0)
        os.write(writing, str(os.getpid()).encode())
        while True:
            time.sleep(60)
    os.wait()
    return os.read(reading, 20).decode()


def _orphan(argument: str, link: Link) -> str:
    """Leaves so many orphans behind that end at once."""
    if (child := os.fork()) == 0:
        for _ in range(int(argument)):
            if os.fork() == 0:
                os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
    return "done"


def _garbage(argument: str, link: Link) -> None:
    _raw(link).sendall(struct.pack("<I", 5) + b"\xc1\xff\x00!!")


def _oversize(argument: str, link: Link) -> None:
    _raw(link).sendall(struct.pack("<I", 2**31))


def _flood(argument: str, link: Link) -> None:
    """Valid frames without end, from a thread, while the loop pulses."""
    piece = frame(encode(Remarked("x", "y" * int(argument or 1))))
    end = os.dup(link._end.fileno())

    def pour() -> None:
        raw = socket.socket(fileno=end)
        raw.setblocking(True)
        while True:
            raw.sendall(piece)

    threading.Thread(target=pour, daemon=True).start()
    time.sleep(3600)


def _closed(argument: str, link: Link) -> None:
    """Closes its end and goes on living."""
    end = link._end.detach()
    os.close(end)
    while True:
        time.sleep(60)


def _out_of_turn(argument: str, link: Link) -> None:
    _raw(link).sendall(frame(encode(PieceMade(TurnId("another"), 0, "x", Boundary.NONE))))


def _descriptors(argument: str, link: Link) -> str:
    return " ".join(sorted(os.listdir("/proc/self/fd")))


def _environment(argument: str, link: Link) -> str:
    return " ".join(sorted(os.environ))


def _modules(argument: str, link: Link) -> str:
    return " ".join(sorted(sys.modules))


def _fill(argument: str, link: Link) -> None:
    """Writes files of 8 MiB: named ones, nameless ones (512 MiB at most), or one again and again without end."""
    number = 0
    held: list[BinaryIO] = []
    while number < 64:
        number = 0 if argument == "rewrite" else number + 1
        file = open(f"filling-{number}", "wb", buffering=0)  # noqa: SIM115 - kept open on purpose
        held[: len(held) if argument == "rewrite" else 0] = [file]
        if argument == "nameless":
            os.unlink(file.name)
        for _ in range(8):
            file.write(b"x" * MIB)
            time.sleep(0.01)


ORDERS: dict[str, Callable[[str, Link], str | None]] = {
    name.removeprefix("_"): function
    for name, function in list(globals().items())
    if name in {
        "_say", "_last", "_sleep", "_wait", "_die", "_daemon", "_orphan", "_garbage", "_oversize", "_flood", "_closed",
        "_out_of_turn", "_descriptors", "_environment", "_modules", "_fill",
    }
}  # fmt: skip


# --- a pool to try them in ------------------------------------------------------------------------------------


class Bench:
    """A pool with what it needs. events: all that it said, in order."""

    def __init__(self, folder: Path, router: Router, zygote: Zygote, limits: Limits) -> None:
        self.folder = folder
        self.router = router
        self.zygote = zygote
        self.events: list[PoolEvent] = []
        self._more = asyncio.Event()
        self.pool = Pool(limits, zygote, router, SystemClock(), self._on_event)

    def _on_event(self, event: PoolEvent) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, kind: type[Event], lease: LeaseKey, nth: int = 1) -> Event:
        """The nth event of this kind about this lease."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = [event for event in self.events if isinstance(event, kind) and event.key == lease]
                if len(found) >= nth:
                    return found[nth - 1]
                self._more.clear()
                await self._more.wait()

    async def started(
        self, lease: LeaseKey, *, wanted: Iterable[Layer] = BARE, required: Iterable[Layer] = (), **granted: float
    ) -> Opened:
        await self.pool.start(lease, plan(self.folder, wanted=wanted, required=required), grant(self.folder, **granted))
        return await self.until(Opened, lease)

    async def answer(self, lease: LeaseKey, text: str, number: int = 1) -> str:
        """Run one turn to its end."""
        before = self._ended(lease)
        self.pool.give(lease, turn(text, number))
        async with asyncio.timeout(DEADLINE_S):
            while self._ended(lease) == before:
                assert not any(isinstance(e, Gone) and e.key == lease for e in self.events), self.events
                self._more.clear()
                await self._more.wait()
        said = [e.message for e in self.events if isinstance(e, Said) and e.key == lease]
        pieces = [message for message in said if isinstance(message, PieceMade)]
        return "".join(piece.text for piece in pieces if piece.turn_id == TurnId(str(number)))

    def _ended(self, lease: LeaseKey) -> int:
        return sum(isinstance(e, Said) and e.key == lease and isinstance(e.message, TurnEnded) for e in self.events)

    async def view(self, lease: LeaseKey) -> WorkerView:
        return (await self.pool.views())[lease.who]


@contextlib.asynccontextmanager
async def bench(
    folder: Path, behaviour: str | None = "obedient", *, code: str | None = None, limits: Limits | None = None
) -> AsyncIterator[Bench]:
    """behaviour None: the product's own serve(). code: a zygote's entry of the caller's own."""
    bus = folder / "run"
    bus.mkdir(mode=0o700, parents=True, exist_ok=True)
    code = code or (entry(behaviour) if behaviour else None)
    zygote = Zygote.start(code) if code else Zygote.start()
    try:
        async with Router.open(bus) as router, asyncio.TaskGroup() as tasks:
            made = Bench(folder, router, zygote, limits or Limits())
            tasks.create_task(made.pool.run(), name="pool")
            try:
                yield made
            finally:
                await made.pool.close()
    finally:
        zygote.close()


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def alive(pid: int) -> bool:
    """A zombie is not: it holds nothing any more."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def below(pid: int) -> list[int]:
    """Living descendants."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split():
                found += [int(child), *below(int(child))]
    return [one for one in found if alive(one)]


def remove_deep(folder: Path) -> None:
    """Folders nested deeper than a path may be long."""
    subprocess.run(["rm", "-rf", str(folder)], check=True)


async def until(true: Callable[[], bool], *, within_s: float = DEADLINE_S) -> None:
    """For facts that no event tells, such as an entry of /proc."""
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)
