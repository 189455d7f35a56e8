"""What all workers together take of the machine: the disk, and memory while they idle.

In come free bytes, what each tree has written and holds; out go effects for watch.py to perform. A tree's growth is
found by counting its folders once it has written enough to matter. What it hides from a count (a file that has no name
any more) shows in what it wrote and the disk lost. Below min_free no turn begins, and what still writes is killed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.ids import LeaseKey

MIB = 1024 * 1024
COUNTS = 8  # a tree is counted each time that it has written this part of its limit
STEP_BYTES = 4 * MIB  # the trees are asked once the disk has lost so much,
LOOKS = 20  # and at every so many-th look, since somebody else may free what one of them takes
GROWING_BYTES = MIB  # written between two looks: this tree is one that fills the disk
AGAIN = 1.1  # turns begin again above so many times min_free


@dataclass(frozen=True, slots=True)
class Bounds:
    """disk_bytes: one peer's folders. warm_bytes: all idle trees together."""

    disk_bytes: int
    min_free_bytes: int
    warm_bytes: int


@dataclass(frozen=True, slots=True)
class Tree:
    """wrote_bytes: to the disk, in all its life; None = it hides that."""

    key: LeaseKey
    wrote_bytes: int | None


@dataclass(frozen=True, slots=True)
class Warm:
    key: LeaseKey
    idle_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Count:
    """Count this tree's folders, and tell counted()."""

    key: LeaseKey


@dataclass(frozen=True, slots=True)
class Kill:
    """detail: how much of how much."""

    key: LeaseKey
    detail: str


@dataclass(frozen=True, slots=True)
class HoldTurns:
    """No turn is to begin."""

    free_bytes: int


@dataclass(frozen=True, slots=True)
class LetTurns:
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Shed:
    """This idle worker is to leave."""

    key: LeaseKey


@dataclass(slots=True)
class _Known:
    free_at_first: int
    wrote: int = 0  # at the last look
    counted_at: int = 0  # what it had written when it was counted last


class MachineWatch:
    """Knows no clock, no disk and no process."""

    def __init__(self) -> None:
        self._known: dict[LeaseKey, _Known] = {}
        self._asked_at_free: int | None = None
        self._looks = 0
        self.holding = False

    def is_due(self, free_bytes: int, keys: Iterable[LeaseKey], bounds: Bounds) -> bool:
        """Is it worth asking what each tree has written? Cheap: called several times a second."""
        keys = set(keys)
        for gone in self._known.keys() - keys:
            del self._known[gone]
        for key in keys - self._known.keys():
            self._known[key] = _Known(free_bytes)
        if self._asked_at_free is None or free_bytes > self._asked_at_free:
            self._asked_at_free = free_bytes
        self._looks = (self._looks + 1) % LOOKS
        lost = self._asked_at_free - free_bytes >= STEP_BYTES
        return lost or self._looks == 0 or self.holding or free_bytes < bounds.min_free_bytes

    def looked(
        self, free_bytes: int, trees: Iterable[Tree], bounds: Bounds
    ) -> tuple[HoldTurns | LetTurns | Kill | Count, ...]:
        self._asked_at_free = free_bytes
        effects: list[HoldTurns | LetTurns | Kill | Count] = []
        full = free_bytes < bounds.min_free_bytes
        if full and not self.holding:
            effects.append(HoldTurns(free_bytes))
        elif self.holding and free_bytes >= bounds.min_free_bytes * AGAIN:
            effects.append(LetTurns(free_bytes))
        self.holding = full or (self.holding and free_bytes < bounds.min_free_bytes * AGAIN)
        for tree in trees:
            known = self._known.setdefault(tree.key, _Known(free_bytes))
            lost = known.free_at_first - free_bytes
            wrote = max(0, lost) if tree.wrote_bytes is None else max(known.wrote, tree.wrote_bytes)
            growth, known.wrote = wrote - known.wrote, wrote
            if full and growth >= GROWING_BYTES:
                effects.append(Kill(tree.key, f"{free_bytes // MIB} MiB are free, and it writes"))
            elif min(wrote, lost) > bounds.disk_bytes:
                effects.append(Kill(tree.key, f"{wrote // MIB} MiB written of {bounds.disk_bytes // MIB}"))
            elif wrote - known.counted_at >= bounds.disk_bytes // COUNTS:
                known.counted_at = wrote
                effects.append(Count(tree.key))
        return tuple(effects)

    def counted(self, key: LeaseKey, total_bytes: int, bounds: Bounds) -> Kill | None:
        if total_bytes <= bounds.disk_bytes or key not in self._known:
            return None
        return Kill(key, f"{total_bytes // MIB} MiB of {bounds.disk_bytes // MIB}")


def too_warm(idle: Iterable[Warm], bounds: Bounds) -> tuple[Shed, ...]:
    """Who has to leave so that the others fit: the longest idle first."""
    oldest_first = sorted(idle, key=lambda warm: -warm.idle_s)
    over = sum(warm.bytes for warm in oldest_first) - bounds.warm_bytes
    shed: list[Shed] = []
    for warm in oldest_first:
        if over <= 0:
            break
        shed.append(Shed(warm.key))
        over -= warm.bytes
    return tuple(shed)
