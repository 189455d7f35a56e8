"""The hostile half's first steps: apply the plan, say Ready, read the Grant, serve.

The nanny's stem forks a process that calls main() and never returns. Until the plan is applied only our own code runs;
the first peer byte comes with the Grant, which the supervisor sends after it has seen Ready.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

from protocol.spec import LAYER_FAILED, Layer, WorkerPlan
from protocol.to_supervisor import VERSION, Leaving, Ready
from protocol.to_worker import Grant
from worker import turn
from worker.link import Link
from worker.passage import hand_over
from worker.sandbox import LayerFailed, apply, linux

SWEEP_S = 0.1  # between two looks at what waits to be reaped
REASON_CHARS = 300

Serve = Callable[[Link, Grant], Awaitable[None]]


def main(
    end: socket.socket,
    plan: WorkerPlan,
    already: frozenset[Layer],
    serve: Serve = turn.serve,
    door: socket.socket | None = None,
) -> NoReturn:
    """end: our end of the socketpair, blocking. already: what the stem achieved before the fork. door: to the nanny's
    passage, where the plan has one
    """
    code = 1
    try:
        code = _live(end, plan, already, serve, door)
    finally:
        # Whatever happened, the frames of the processes that we were forked from must not go on here.
        os._exit(code)


def _live(
    end: socket.socket, plan: WorkerPlan, already: frozenset[Layer], serve: Serve, door: socket.socket | None
) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in the zygote; what the agent starts must not inherit that
    if not end.recv(1):  # the nanny's go: the stem is gone, so the death signal is about the nanny
        return 1
    with contextlib.suppress(OSError):
        linux.die_with_parent()  # no check of the parent afterwards: the link's end tells it
    link = Link(end)
    try:
        applied = apply(plan, already=already, keep=(end.fileno(), *([] if door is None else [door.fileno()])))
        if door is not None:
            if applied.way is not None and applied.hand_over is not None:
                hand_over(door, applied.way, applied.hand_over)
            door.close()
    except LayerFailed as error:
        link.tell(Leaving(str(error)[:REASON_CHARS]))
        return LAYER_FAILED
    except Exception as error:
        # No peer byte has been seen, so that the text can only be about our own set-up.
        link.tell(Leaving(f"{type(error).__name__}: {error}"[:REASON_CHARS]))
        return 1
    link.tell(Ready(VERSION, _names(applied.layers), _names(applied.missing), applied.network.value))
    grant = link.wait_for_grant()
    if grant is None:
        return 1
    asyncio.run(work(link, grant, serve))
    return 0


def _names(layers: tuple[Layer, ...]) -> tuple[str, ...]:
    return tuple(layer.value for layer in layers)


async def work(link: Link, grant: Grant, serve: Serve) -> None:
    """A worker's whole life behind its walls."""
    async with asyncio.TaskGroup() as tasks:
        helpers = [tasks.create_task(link.pulses(), name="pulses")]
        if os.getpid() == 1:
            helpers.append(tasks.create_task(_reap_orphans(), name="orphans"))
        await serve(link, grant)
        for helper in helpers:
            helper.cancel()


async def _reap_orphans() -> None:
    """First process of a pid namespace: what the agent leaves behind becomes our child, and nobody waits for it.

    A child of our own is reaped by asyncio or subprocess as soon as it ends, and one reaped here would have lost its
    exit code for them. So only a zombie that is still there at the next look is taken.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGCHLD, ended.set)
    ended.set()  # for what has ended before this task had its first turn
    while True:
        await ended.wait()
        ended.clear()
        while (seen := _zombie()) is not None:
            await asyncio.sleep(SWEEP_S)
            if _zombie() == seen:
                _reap(seen)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _zombie() -> int | None:
    """A child that has ended and is not reaped; it stays so."""
    if sys.platform != "linux":
        return None
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found is not None else None
