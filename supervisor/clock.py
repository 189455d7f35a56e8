"""The time, as shells read it: monotonic seconds for decisions, Unix seconds for what is written down.

Tests give shells a clock of their own; nothing else in the supervisor asks the system for the time.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def wall(self) -> float:
        """Unix seconds, UTC; may jump."""
        ...

    async def sleep_until(self, at: float) -> None:
        """Return at about that moment, not noticeably before."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep_until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - time.monotonic()))


async def woken_or_due(wake: asyncio.Event, clock: Clock, at: float | None) -> None:
    """Until something happens or the moment has come, whichever is first; None: only something happening counts."""
    if at is None:
        await wake.wait()
        return
    waiter = asyncio.ensure_future(wake.wait())
    sleeper = asyncio.ensure_future(clock.sleep_until(at))
    try:
        await asyncio.wait({waiter, sleeper}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
        sleeper.cancel()
