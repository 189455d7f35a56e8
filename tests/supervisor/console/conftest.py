"""A scripted supervisor on a real control socket, in a thread of its own."""

import asyncio
import contextlib
import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.ctlserver import CtlServer
from supervisor.home import Home
from tests.fakes.ctl import ScriptedSupervisor


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[ScriptedSupervisor]:
    home = Home(tmp_path / "b")
    home.make()
    home.make_sockets(None)
    scripted = ScriptedSupervisor(home)
    started = threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    async def serve() -> None:
        server = CtlServer(home)
        task = asyncio.create_task(server.serve(scripted.handle, keepalive_s=0.05))
        stop.append((asyncio.get_running_loop(), task))
        started.set()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        finally:
            server.close()

    with open(home.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: asyncio.run(serve()), name="supervisor")
        thread.start()
        assert started.wait(20)
        yield scripted
        loop, task = stop[0]
        loop.call_soon_threadsafe(task.cancel)
        thread.join(20)
        assert not thread.is_alive()
