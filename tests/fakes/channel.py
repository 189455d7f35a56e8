"""A channel to people's phones, without a network."""

import asyncio
from collections.abc import Callable, Coroutine

from protocol.ids import Cursor, MessageId, PeerId, SendKey
from supervisor.channels.base import Batch, Limits, NotUploaded, Receipt, ReceiptKind, Route, TypingState, Upload


class Phone:
    """WeChat as one account's sends see it: shows a key once, takes `budget` messages per inbound one, can refuse."""

    def __init__(self, *, budget: int = 10) -> None:
        self.limits = Limits(text_units=2000, body_bytes=16 * 1024)
        self.budget = budget
        self.shown: dict[PeerId, list[str]] = {}
        self.calls: list[tuple[Route, str, SendKey]] = []
        self.script: dict[int, Callable[[], Coroutine[None, None, Receipt | None]]] = {}  # by number of the call
        self.on_call: Callable[[SendKey], None] = lambda key: None
        self.uploads_fail = False
        self._seen: set[SendKey] = set()
        self._taken: dict[PeerId, int] = {}
        self._called = asyncio.Event()

    async def until_called(self, times: int) -> None:
        while len(self.calls) < times:
            self._called.clear()
            await self._called.wait()

    def writes(self, peer: PeerId) -> None:
        self._taken[peer] = 0

    async def send_text(self, route: Route, text: str, send_key: SendKey) -> Receipt:
        self.calls.append((route, text, send_key))
        self._called.set()
        self.on_call(send_key)
        special = self.script.get(len(self.calls))
        if special is not None and (receipt := await special()) is not None:
            return receipt
        if send_key not in self._seen:
            self._taken[route.peer] = self._taken.get(route.peer, 0) + 1
            if self._taken[route.peer] > self.budget:
                return Receipt(ReceiptKind.REJECTED, code=-2)
            self._seen.add(send_key)
            self.shown.setdefault(route.peer, []).append(text)
        return Receipt(ReceiptKind.ACCEPTED, MessageId(f"m{len(self.calls)}"))

    async def send_file(self, route: Route, upload: Upload, send_key: SendKey) -> Receipt:
        if self.uploads_fail:
            raise NotUploaded("the CDN says no")
        kind = "picture" if upload.picture else "file"
        return await self.send_text(route, f"<{kind} {upload.name}: {upload.path.stat().st_size}>", send_key)

    receiving = False

    async def announce_start(self) -> None: ...

    async def announce_stop(self) -> None: ...

    async def fetch(self, cursor: Cursor, *, hold_s: float) -> Batch:
        raise NotImplementedError

    async def show_typing(self, route: Route, state: TypingState) -> None: ...

    async def aclose(self) -> None: ...
