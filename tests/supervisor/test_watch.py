"""watch: real workers that fill the disk or idle too large, and folders that are hard to count."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.clock import SystemClock
from supervisor.config import Workers
from supervisor.core.lease import Gone, GoneWhy
from supervisor.core.scheduler import DiskFilled, DiskFreed, ShedAsked
from supervisor.watch import Watcher, folders_bytes
from tests.fakes import workers
from tests.fakes.workers import BARE, Bench, bench, in_a_loop, key

MIB = 1024 * 1024
SETTINGS = Workers(disk_mb=4096, min_free_mb=0, warm_mb=4096)


class Watching:
    """A watcher beside a bench, whose settings may be changed. posted: all that the scheduler was told."""

    def __init__(self, made: Bench, settings: Workers) -> None:
        self.settings = settings
        self.posted: list[DiskFilled | DiskFreed | ShedAsked] = []
        self.watcher = Watcher(made.folder, made.pool, lambda: self.settings, self.posted.append, SystemClock())

    async def look_until(self, made: Bench, lease: workers.LeaseKey) -> Gone:
        async with asyncio.timeout(workers.DEADLINE_S):
            while not any(isinstance(event, Gone) for event in made.events):
                await self.watcher.look()
                await asyncio.sleep(0.02)
        return await made.until(Gone, lease)


@pytest.mark.parametrize("how", ["named", "nameless"])
@in_a_loop
async def test_a_tree_that_fills_its_folders_is_ended_and_another_stays(tmp_path: Path, how: str) -> None:
    async with bench(tmp_path) as made:
        watching = Watching(made, replace(SETTINGS, disk_mb=32))
        await made.started(key("quiet"), wanted=BARE)
        await made.started(key(), wanted=BARE)
        await watching.watcher.look()

        made.pool.give(key(), workers.turn(f"fill {how}"))
        gone = await watching.look_until(made, key())

        assert gone.why is GoneWhy.LIMIT
        assert gone.detail.startswith("disk ")
        assert await made.answer(key("quiet"), "say still here") == "still here"


@in_a_loop
async def test_below_the_reserve_turns_are_held_and_what_writes_is_ended(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        watching = Watching(made, SETTINGS)
        await made.started(key(), wanted=BARE)
        await watching.watcher.look()
        made.pool.give(key(), workers.turn("fill rewrite"))

        watching.settings = replace(SETTINGS, min_free_mb=1 << 30)
        gone = await watching.look_until(made, key())
        watching.settings = SETTINGS
        await watching.watcher.look()

        assert gone.why is GoneWhy.LIMIT
        assert watching.posted == [DiskFilled(), DiskFreed()]


@in_a_loop
async def test_idle_workers_over_their_memory_are_asked_to_leave_the_longest_idle_first(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        watching = Watching(made, replace(SETTINGS, warm_mb=1))
        for name in ("first", "second"):
            await made.started(key(name), wanted=BARE)
            await made.answer(key(name), "say hello")

        await watching.watcher.weigh()
        told = list(watching.posted)
        watching.settings = SETTINGS
        await watching.watcher.weigh()

        assert told == [ShedAsked(key(name).who, key(name).generation) for name in ("first", "second")]
        assert watching.posted == told


def test_folders_are_counted_with_all_below_and_links_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (inside / "a" / "b" / "file").write_bytes(b"x" * 4 * MIB)
    (outside / "file").write_bytes(b"x" * 16 * MIB)
    (inside / "link").symlink_to(outside)
    (inside / "file").symlink_to(outside / "file")

    assert 4 * MIB <= folders_bytes([inside], 1 << 40) < 5 * MIB


def test_many_empty_files_count(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).touch()

    assert folders_bytes([tmp_path], 1 << 40) >= 100 * 512


def test_folders_nested_without_end_and_files_that_block_stop_no_count(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"x" * MIB)
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)

    assert folders_bytes([tmp_path, tmp_path / "absent"], 1 << 40) >= MIB
    workers.remove_deep(tmp_path)


def test_counting_stops_when_it_is_enough(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").write_bytes(b"x" * MIB)

    assert folders_bytes([tmp_path], MIB) < 4 * MIB
