"""Performs core/watch: looks at the disk and at the idle workers' memory, holds turns back, ends trees.

Free space is one call, four times a second while a worker has something to do, else once; a tree's processes are asked
only when the disk loses space. Folders, which may hold many files, are counted in a thread.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import assert_never

from protocol.ids import LeaseKey
from supervisor import platform
from supervisor.clock import Clock
from supervisor.config import Workers
from supervisor.core.lease import GoneWhy, LeaseState
from supervisor.core.scheduler import DiskFilled, DiskFreed, ShedAsked
from supervisor.core.watch import Bounds, Count, HoldTurns, Kill, LetTurns, MachineWatch, Tree, Warm, too_warm
from supervisor.pool import Pool, WorkerTree

log = logging.getLogger(__name__)

LOOK_S, IDLE_S = 0.25, 1.0  # between two looks; while every worker is idle
WARM_S = 30.0  # asking for shared memory is work for the kernel: a millisecond a worker
MIB = 1024 * 1024
ENTRY_BYTES = 512  # of a file without contents: at least its inode
WARM_SHARE = 4  # of the machine's memory, where warm_mb is 0

SchedulerWord = DiskFilled | DiskFreed | ShedAsked


class Watcher:
    """home: it is its disk that counts, and of a tree's folders those below it; the operator's own workspace is theirs."""

    def __init__(
        self,
        home: Path,
        pool: Pool,
        settings: Callable[[], Workers],
        post: Callable[[SchedulerWord], None],
        clock: Clock,
    ) -> None:
        self._home = home
        self._pool = pool
        self._settings = settings
        self._post = post
        self._clock = clock
        self._core = MachineWatch()

    async def run(self) -> None:
        warm_at = self._clock.now() + WARM_S
        while True:
            await self.look()
            if self._clock.now() >= warm_at:
                await self.weigh()
                warm_at = self._clock.now() + WARM_S
            idle = all(tree.state is LeaseState.IDLE for tree in self._pool.trees())
            await self._clock.sleep_until(self._clock.now() + (IDLE_S if idle else LOOK_S))

    async def look(self) -> None:
        """At the disk, once."""
        trees = {tree.key: tree for tree in self._pool.trees()}
        bounds = self._bounds()
        try:
            free = platform.free_bytes(str(self._home))
        except OSError as error:
            log.error("disk_unknown reason=%s", error.strerror)
            return
        if not self._core.is_due(free, trees, bounds):
            return
        told = [Tree(key, platform.tree_wrote_bytes(tree.nanny_pid)) for key, tree in trees.items()]
        for effect in self._core.looked(free, told, bounds):
            match effect:
                case HoldTurns(free_bytes=free_bytes):
                    log.error("disk_full free_mb=%d min_free_mb=%d", free_bytes // MIB, bounds.min_free_bytes // MIB)
                    self._post(DiskFilled())
                case LetTurns(free_bytes=free_bytes):
                    log.warning("disk_has_room free_mb=%d", free_bytes // MIB)
                    self._post(DiskFreed())
                case Kill(key=key, detail=detail):
                    self._pool.kill(key, GoneWhy.LIMIT, f"disk {detail}")
                case Count(key=key):
                    await self._count(key, trees[key])
                case _:
                    assert_never(effect)

    async def _count(self, key: LeaseKey, tree: WorkerTree) -> None:
        folders = (Path(tree.session_dir), Path(tree.workspace))
        own = [folder for folder in folders if folder.is_relative_to(self._home)]
        bounds = self._bounds()
        total = await asyncio.to_thread(folders_bytes, own, bounds.disk_bytes)
        if (kill := self._core.counted(key, total, bounds)) is not None:
            self._pool.kill(key, GoneWhy.LIMIT, f"disk {kill.detail}")

    async def weigh(self) -> None:
        """The idle workers, once."""
        idle = [tree for tree in self._pool.trees() if tree.state is LeaseState.IDLE]
        sizes = await asyncio.to_thread(lambda: [platform.tree_bytes(tree.nanny_pid) for tree in idle])
        warm = [Warm(tree.key, tree.idle_s, size) for tree, size in zip(idle, sizes, strict=True)]
        for shed in too_warm(warm, self._bounds()):
            log.info(
                "worker_shed peer=%s generation=%d account=%s", shed.key.peer, shed.key.generation, shed.key.account
            )
            self._post(ShedAsked(shed.key.who, shed.key.generation))

    def _bounds(self) -> Bounds:
        workers = self._settings()
        return Bounds(
            disk_bytes=workers.disk_mb * MIB,
            min_free_bytes=workers.min_free_mb * MIB,
            warm_bytes=workers.warm_mb * MIB or platform.memory_bytes() // WARM_SHARE,
        )


def folders_bytes(folders: Iterable[Path], enough_bytes: int) -> int:
    """What these folders and all below them take of the disk. Stops once it is more than enough.

    A link is never followed. What cannot be entered (closed by its owner, or nested deeper than a path may be long) is
    not counted; in the end it shows in what its tree has written.
    """
    total = 0
    waiting = [os.fspath(folder) for folder in folders]
    while waiting and total <= enough_bytes:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    total += found.st_blocks * 512 + ENTRY_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return total
