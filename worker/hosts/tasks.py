"""The tasks of an agent session: they outlive turn(), which returns at once, and end with the session at the latest."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class SessionTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self, *, grace_s: float = 0.0) -> None:
        """End all but the caller's own; they get this long to end by themselves. What they raise is dropped."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks and grace_s:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
