"""probe: trials by real throw-away workers. What each attempt does is in tests/attacks/test_trial.py."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.content import Access
from protocol.probe import attempts_at
from protocol.spec import IsolationMode, Layer
from supervisor.clock import SystemClock
from supervisor.config import Workers
from supervisor.core.lease import Limits, PoolEvent
from supervisor.core.starts import Starts
from supervisor.home import Home
from supervisor.isolation import Isolation
from supervisor.launcher import ENTRY, Zygote
from supervisor.pool import Pool
from supervisor.probe import PREFIX, Probe
from supervisor.router import Router
from tests.fakes.workers import in_a_loop, key

DISHONEST = (  # Landlock is not applied, and claimed; the kernel tells nobody which processes it binds
    "from worker.sandbox import landlock; landlock.apply = lambda *_, **__: None; " + ENTRY
)
DYING = "import os; from worker import entry; entry.main = lambda *_: os._exit(3); " + ENTRY


@pytest.fixture
def home() -> Iterator[Home]:
    """Where a worker with a uid of its own can pass."""
    with tempfile.TemporaryDirectory(prefix="trial-", dir="/var/tmp") as folder:
        home = Home(Path(folder) / "home")
        Path(folder).chmod(0o711)
        home.make()
        home.journal.touch(mode=0o600)
        yield home


@dataclass
class Bench:
    probe: Probe
    pool: Pool
    isolation: Isolation
    starts: Starts


@contextlib.asynccontextmanager
async def bench(home: Home, *, entry: str = ENTRY, workers: Workers | None = None) -> AsyncIterator[Bench]:
    workers = workers or Workers()
    zygote = Zygote.start(entry)
    try:
        async with Router.open(home.run) as router, asyncio.TaskGroup() as tasks:
            isolation, starts = Isolation(workers), Starts()
            probe = Probe(home, lambda: workers, isolation, tasks)

            def hear(event: PoolEvent) -> None:
                probe.hear(event)

            pool = Pool(Limits(), zygote, router, SystemClock(), hear, starts=starts)
            tasks.create_task(pool.run(), name="pool")
            try:
                yield Bench(probe, pool, isolation, starts)
            finally:
                await pool.close()
    finally:
        zygote.close()


@in_a_loop
async def test_every_attempt_of_every_access_level_is_made_and_nothing_that_is_in_place_is_broken(home: Home) -> None:
    async with bench(home) as b:
        for access in (Access.CHAT, Access.READONLY, Access.WORKSPACE):
            trial = await b.probe.run(b.pool, access)

            assert trial.failed == ""
            assert tuple(attempt for attempt, _ in trial.ends) == attempts_at(access)
            assert trial.broken == frozenset()

        left = [path for parent in (home.sessions, home.workspaces, home.media) for path in parent.iterdir()]
        assert left == []


@in_a_loop
async def test_a_layer_that_is_claimed_and_does_not_hold_counts_as_missing(home: Home) -> None:
    async with bench(home, entry=DISHONEST) as b:
        await b.probe.at_start(b.pool)

        assert Layer.LANDLOCK in b.probe.first.layers
        assert b.probe.first.broken == {Layer.LANDLOCK}
        assert Layer.LANDLOCK in b.isolation.missing
        assert Layer.LANDLOCK not in b.isolation.layers


@in_a_loop
async def test_without_a_worker_there_is_no_isolation_to_speak_of(home: Home) -> None:
    async with bench(home, entry=DYING) as b:
        await b.probe.at_start(b.pool)

        assert b.probe.first.failed
        assert b.isolation.level == "weak"
        assert b.isolation.layers == ()


@in_a_loop
async def test_isolation_that_is_switched_off_stops_nothing_and_the_trial_says_so(home: Home) -> None:
    async with bench(home, workers=Workers(isolation=IsolationMode.OFF)) as b:
        trial = await b.probe.run(b.pool, Access.CHAT)

        ends = {attempt.value: end for attempt, end in trial.ends}
        assert ends["read_journal"] == ends["read_other_peer"] == ends["connect_tcp"] == ends["trace"] == "worked"
        assert ends["signal_bridge"] == ends["see_processes"] == "worked"


@in_a_loop
async def test_a_trial_that_comes_up_ends_a_stop_of_all_starts_and_one_that_does_not_leaves_it(home: Home) -> None:
    for entry, stopped in ((DYING, True), (ENTRY, False)):
        async with bench(home, entry=entry) as b:
            for name in ("x", "y", "z"):
                b.starts.died(key(name).who, now=SystemClock().now())
            assert b.pool.stopped

            trial = await b.probe.run(b.pool, Access.CHAT)

            assert bool(trial.failed) is stopped
            assert b.pool.stopped is stopped


@in_a_loop
async def test_a_trial_that_nobody_waits_for_any_more_still_cleans_up(home: Home) -> None:
    async with bench(home) as b:
        asked = asyncio.create_task(b.probe.run(b.pool, Access.CHAT))
        await asyncio.sleep(0)
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked

        trial = await b.probe.run(b.pool, Access.CHAT)  # waits its turn

        assert trial.failed == ""
        assert not list(home.sessions.glob(f"{PREFIX}*"))


@in_a_loop
async def test_folders_that_a_killed_bridge_left_are_removed(home: Home) -> None:
    (home.sessions / f"{PREFIX}abc").mkdir()
    async with bench(home) as b:
        await b.probe.at_start(b.pool)

    assert list(home.sessions.iterdir()) == []
