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
