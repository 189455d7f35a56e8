"""supervisor/usage.py: tokens of a day, in memory and in the journal."""

import asyncio
from datetime import datetime
from pathlib import Path

from protocol.ids import AccountId, PeerId, PeerKey
from supervisor.store import Journal, Store
from supervisor.usage import Usage, day_of
from tests.fakes.workers import in_a_loop

ALICE, BOB = PeerKey(AccountId("a"), PeerId("alice")), PeerKey(AccountId("a"), PeerId("bob"))
NOON = datetime(2026, 11, 30, 12).timestamp()


class Wall:
    def __init__(self) -> None:
        self.at = NOON

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return self.at

    async def sleep_until(self, at: float) -> None:
        await asyncio.sleep(0)


def test_a_day_is_the_calendars_here() -> None:
    day = day_of(NOON)

    assert day.name == "2026-11-30"
    assert day.ends_at == datetime(2026, 12, 1).timestamp()
    assert day_of(day.ends_at).name == "2026-12-01"
    assert day_of(day.ends_at - 0.001) == day


@in_a_loop
async def test_what_is_added_counts_at_once_and_outlives_the_process(tmp_path: Path) -> None:
    journal, _ = await Journal.open(tmp_path / "state.db")
    await journal.do(Store.apply, [])
    usage = Usage(journal, Wall())
    writing = asyncio.ensure_future(usage.run())
    assert await usage.used(ALICE) == 0
    usage.add(ALICE, 100, 10)
    usage.add(BOB, 5, 0)
    assert await usage.used(ALICE) == 110
    usage.add(ALICE, 1, 1)
    writing.cancel()
    await asyncio.wait({writing})

    after = Usage(journal, Wall())

    assert (await after.used(ALICE), await after.used(BOB)) == (112, 5)
    await journal.close()


@in_a_loop
async def test_what_waits_for_the_disk_counts_as_well(tmp_path: Path) -> None:
    journal, _ = await Journal.open(tmp_path / "state.db")
    usage = Usage(journal, Wall())  # nobody writes

    usage.add(ALICE, 100, 10)

    assert await usage.used(ALICE) == 110
    await journal.close()


@in_a_loop
async def test_a_new_day_begins_at_nothing(tmp_path: Path) -> None:
    journal, _ = await Journal.open(tmp_path / "state.db")
    clock = Wall()
    usage = Usage(journal, clock)
    usage.add(ALICE, 100, 10)
    assert await usage.used(ALICE) == 110

    clock.at = usage.today().ends_at + 1

    assert await usage.used(ALICE) == 0
    usage.add(ALICE, 1, 0)
    assert await usage.used(ALICE) == 1
    await journal.close()
