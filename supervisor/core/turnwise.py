"""A queue that serves its peers in turn: whoever brings much waits behind himself alone. Pure."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from protocol.ids import PeerKey

T = TypeVar("T")


class Turnwise(Generic[T]):
    """Each peer's items in their order, one of each peer's after the other. What next() names stays next until taken."""

    def __init__(self) -> None:
        self._peers: dict[PeerKey, deque[T]] = {}  # in the order of their turns; none is empty

    def put(self, who: PeerKey, item: T) -> None:
        self._peers.setdefault(who, deque()).append(item)

    def next(self) -> T | None:
        return next((items[0] for items in self._peers.values()), None)

    def take(self) -> T:
        """raises StopIteration where nothing waits"""
        who = next(iter(self._peers))
        items = self._peers.pop(who)
        item = items.popleft()
        if items:
            self._peers[who] = items
        return item

    def __bool__(self) -> bool:
        return bool(self._peers)

    def __iter__(self) -> Iterator[T]:
        return (item for items in self._peers.values() for item in items)
