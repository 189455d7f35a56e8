"""Time that a test moves."""

import asyncio


class FakeClock:
    """Time stands still until a test moves it."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []
        self._somebody_sleeps = asyncio.Event()

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return 1_700_000_000.0 + self._now

    async def sleep_until(self, at: float) -> None:
        if at <= self._now:
            return
        sleeper = (at, asyncio.Event())
        self._sleepers.append(sleeper)
        self._somebody_sleeps.set()
        try:
            await sleeper[1].wait()
        finally:
            self._sleepers.remove(sleeper)

    async def until_somebody_sleeps(self) -> None:
        while not self._sleepers:
            self._somebody_sleeps.clear()
            await self._somebody_sleeps.wait()

    def advance(self, seconds: float) -> None:
        self._now += seconds
        for at, woken in self._sleepers:
            if at <= self._now:
                woken.set()
