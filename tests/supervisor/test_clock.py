"""Waiting for whichever comes first: something happens, or its time has come."""

import asyncio

import pytest

from supervisor.clock import woken_or_due
from tests.fakes.clock import FakeClock


@pytest.mark.parametrize("at_s", [None, 60.0], ids=["no time set", "a time ahead"])
def test_something_happening_ends_the_wait_before_its_time(at_s: float | None) -> None:
    async def scenario() -> None:
        wake, clock = asyncio.Event(), FakeClock()
        waiting = asyncio.create_task(woken_or_due(wake, clock, None if at_s is None else clock.now() + at_s))
        await asyncio.sleep(0)
        assert not waiting.done()
        wake.set()
        await waiting

    asyncio.run(scenario())


def test_its_time_ends_the_wait_and_not_a_moment_earlier() -> None:
    async def scenario() -> None:
        wake, clock = asyncio.Event(), FakeClock()
        waiting = asyncio.create_task(woken_or_due(wake, clock, clock.now() + 60.0))
        await clock.until_somebody_sleeps()
        clock.advance(59.0)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        clock.advance(1.0)
        await waiting
        assert not wake.is_set()

    asyncio.run(scenario())
