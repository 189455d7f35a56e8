"""Attachments that can never be had: for tests of what happens around them."""

import asyncio
from collections.abc import Awaitable, Callable

from protocol.content import Inbound
from protocol.ids import PeerKey
from supervisor.attachments import Saved


class NothingSaved:
    def __init__(self) -> None:
        self._fetching: list[asyncio.Future[None]] = []

    def saved(self, who: PeerKey, row: int, inbound: Inbound) -> tuple[Saved, ...]:
        return tuple(Saved(media, None) for media in inbound.media)

    def fetch(self, who: PeerKey, row: int, inbound: Inbound, done: Callable[[], Awaitable[None]]) -> None:
        self._fetching.append(asyncio.ensure_future(done()))

    async def all_fetched(self) -> None:
        await asyncio.gather(*self._fetching)

    def size_of(self, who: PeerKey) -> int:
        return 0
