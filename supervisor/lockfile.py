"""One bridge per home and one poller per account: kernel locks, held for as long as the process lives.

The lock is flock on a file that is never removed; what stands in it (pid, start time) is for people. No time rule frees
a held lock, and no left-over file holds one. Account locks lie outside the home, so that two homes with one account
exclude each other. Somebody may still remove a file by hand: LockWatch notices and takes the lock again at its path.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from protocol.errors import BridgeError
from protocol.ids import AccountId
from supervisor import platform
from supervisor.clock import Clock

log = logging.getLogger(__name__)

WATCH_S = 30.0

_PEEK_TRIES, _PEEK_S = 100, 0.005
_MINE_TRIES = 20  # how often a file may be replaced under us before something is wrong


class AlreadyRunning(BridgeError):
    """Another process holds it. pid: as it wrote itself down; None when it has not yet, or cannot be read."""

    def __init__(self, what: str, pid: int | None) -> None:
        super().__init__(f"{what} is in use by process {pid}" if pid else f"{what} is in use by another process")
        self.pid = pid


class LockUnusable(BridgeError):
    """The place of the lock cannot be used; the line names it."""


class Kept(StrEnum):
    """What became of a held lock whose file anybody may have removed."""

    OURS = "ours"
    TAKEN_AGAIN = "taken_again"  # the path holds another file now, and we hold that one
    LOST = "lost"  # somebody else holds the file at the path, or none can be put there


class _FileLock:
    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """raises AlreadyRunning, LockUnusable"""
        for _ in range(_MINE_TRIES):
            descriptor = self._open()
            try:
                _lock(descriptor)
            except OSError as error:
                holder = _read_holder(descriptor)
                os.close(descriptor)
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise AlreadyRunning(self._what, holder) from None
                raise LockUnusable(f"{self.path}: cannot be locked: {error.strerror}") from error
            if self._is_the_one(descriptor):
                self._descriptor = descriptor
                self._sign(descriptor)
                return
            os.close(descriptor)  # somebody put another file in its place between our open and our lock
        raise LockUnusable(f"{self.path}: is replaced again and again")

    def release(self) -> None:
        """The file stays. Nothing happens when it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def keep(self) -> Kept:
        """Of a lock that is held: see that it still excludes whoever opens its path."""
        before = self._descriptor
        if before is None or self._is_the_one(before):
            return Kept.OURS
        try:
            self.acquire()
        except BridgeError:
            return Kept.LOST
        os.close(before)
        return Kept.TAKEN_AGAIN

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Close-on-exec by default: no worker and no hook inherits it.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise LockUnusable(f"{self.path}: the lock cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise LockUnusable(f"{self.path}: is no plain file; move it away")
        return descriptor

    def _is_the_one(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path, follow_symlinks=False))
        except FileNotFoundError:
            return False

    def _sign(self, descriptor: int) -> None:
        with contextlib.suppress(OSError):  # a full disk does not make the lock less held
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {platform.start_time(os.getpid())}\n".encode(), 0)


class HomeLock(_FileLock):
    """<home>/run/lock."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, f"{path.parent.parent}")


class AccountLock(_FileLock):
    """Keyed by the WeChat user who scanned. user_home: of the password database, whatever $HOME says."""

    def __init__(self, account: AccountId, user_home: Path) -> None:
        name = hashlib.sha256(account.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        folder = user_home / ".local" / "state" / "bridge-supervisor-locks"
        super().__init__(folder / f"{name}.lock", "the account")


class LockWatch:
    """Looks after all held locks every WATCH_S. locks: those held at that moment. problems: lines for `status`."""

    def __init__(self, locks: Callable[[], Iterable[_FileLock]], clock: Clock) -> None:
        self._locks = locks
        self._clock = clock
        self._lost: set[Path] = set()

    async def run(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.now() + WATCH_S)
            self.look()

    def look(self) -> None:
        lost = set()
        for lock in self._locks():
            match lock.keep():
                case Kept.OURS:
                    continue
                case Kept.TAKEN_AGAIN:
                    log.warning("lock_taken_again path=%s: its file had been removed or replaced", lock.path)
                case Kept.LOST:
                    lost.add(lock.path)
                    if lock.path not in self._lost:
                        log.error("lock_lost path=%s: another bridge may run beside this one", lock.path)
        self._lost = lost

    @property
    def problems(self) -> list[str]:
        return [
            f"{path}: the lock was replaced: another bridge may run beside this one; stop both, start one"
            for path in sorted(self._lost)
        ]


def _lock(descriptor: int) -> None:
    """Exclusive, at once. A lock that is only shared is bridge-ctl looking whether anybody runs: it is gone in an instant."""
    for _ in range(_PEEK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # BlockingIOError: a real holder
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_PEEK_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _read_holder(descriptor: int) -> int | None:
    """Empty or garbage is no holder."""
    try:
        words = os.pread(descriptor, 64, 0).split()
        return int(words[0]) if words else None
    except (OSError, ValueError):
        return None
