"""The event stream: every log line of ours that states a fact, numbered and kept.

A line `worker_ready peer=%s generation=%d account=%s` is the event worker_ready with that data: whoever logs a fact in this
form tells the stream too, and there is no second place to tell. A number is shown to nobody before it is on disk, so that
it always means the same event. What people wrote is in no log line, and so in no event.
"""

import asyncio
import json
import logging
import re
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import lru_cache

from protocol.ids import MessageId
from supervisor.clock import Clock
from supervisor.store import EVENTS_KEPT, EventRecord, Journal, JournalUnavailable, Store

log = logging.getLogger(__name__)

GATHER_S = 0.1  # what happens meanwhile is kept in one transaction
RETRY_S = 1.0
VALUE_CHARS = 200
MESSAGES_KNOWN = 20_000  # row numbers of the journal whose WeChat ids are at hand
BATCH = 200

Plain = str | int | float | bool | None

_KEY = re.compile(r"([a-z_]+)=(%[-.\d]*[a-z])(?=\W|$)")
_NAME = re.compile(r"^(?:[a-z%][a-z_]*_[a-z_]+)(?=[ :]|$)")
_PLACE = re.compile(r"%[-.\d]*[a-z]")


@dataclass(frozen=True, slots=True)
class Form:
    """How a line's template is taken apart. name: itself a template. keys: (key, which argument)"""

    name: str
    keys: tuple[tuple[str, int], ...]
    rest: int | None  # the argument that stands there without a key


@lru_cache(maxsize=512)
def form_of(template: str) -> Form | None:
    """None: this line tells no event."""
    found = _NAME.match(template)
    if found is None:
        return None
    places = [place.start() for place in _PLACE.finditer(template)]
    keys = tuple((one[1], places.index(one.start(2))) for one in _KEY.finditer(template))
    named = {number for _, number in keys} | {n for n, at in enumerate(places) if at < found.end()}
    rest = [number for number in range(len(places)) if number not in named]
    return Form(found[0], keys, rest[0] if len(rest) == 1 else None)


class EventLog(logging.Handler):
    """Hang it on the logger whose lines count; run() numbers and keeps them. Lines may come from any thread."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        super().__init__()
        self._journal = journal
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pending: deque[EventRecord] = deque(maxlen=EVENTS_KEPT)  # of a long outage the newest are kept
        self._ids: OrderedDict[int, MessageId] = OrderedDict()
        self._came = asyncio.Event()
        self._kept = asyncio.Condition()
        self.last = 0  # the newest number on disk
        self.listeners: list[Callable[[EventRecord], None]] = []  # each event at once, still without a number

    async def open(self) -> None:
        self.last = await self._journal.do(Store.last_event)

    def emit(self, record: logging.LogRecord) -> None:
        form = form_of(record.msg) if isinstance(record.msg, str) else None
        values = record.args if isinstance(record.args, tuple) else ()
        if form is None or len(values) < len(form.keys):
            return
        data = {key: _plain(values[number]) for key, number in form.keys}
        if form.rest is not None:
            data["detail"] = _plain(values[form.rest])
        name = form.name % values[: form.name.count("%")]
        account, peer = data.pop("account", None), data.pop("peer", None)
        message = self._message(name, data)
        event = EventRecord(0, record.created, name, _text(account), _text(peer), message, json.dumps(data))
        self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: EventRecord) -> None:
        self._pending.append(event)
        self._came.set()
        for hear in self.listeners:
            hear(event)

    def _message(self, name: str, data: dict[str, Plain]) -> MessageId | None:
        """The log names a message by its row in the journal, people by WeChat's id, which one line ties together."""
        row = data.pop("message", None)
        if row is None:
            return None
        number = int(str(row))
        if name == "message_received":
            self._ids[number] = MessageId(str(data.pop("id")))
            if len(self._ids) > MESSAGES_KNOWN:
                self._ids.popitem(last=False)
        return self._ids.get(number)

    async def run(self) -> None:
        """Until cancelled; then whatever is still there is kept."""
        try:
            while True:
                await self._came.wait()
                await self._clock.sleep_until(self._clock.now() + GATHER_S)
                self._came.clear()
                await self._keep()
        finally:
            await asyncio.shield(self._keep(tries=1))

    async def _keep(self, tries: int | None = None) -> None:
        while self._pending and tries != 0:
            batch, self._pending = self._pending, deque(maxlen=EVENTS_KEPT)
            try:
                self.last = await self._journal.do(Store.add_events, tuple(batch))
            except JournalUnavailable:  # named by whoever needs the journal for more than this
                self._pending = deque([*batch, *self._pending], maxlen=EVENTS_KEPT)
                tries = None if tries is None else tries - 1
                await self._clock.sleep_until(self._clock.now() + RETRY_S)
                continue
            async with self._kept:
                self._kept.notify_all()

    async def after(self, seq: int) -> AsyncIterator[tuple[EventRecord, ...]]:
        """What is kept after this number, in batches, up to the newest."""
        while batch := await self._journal.do(Store.events_after, seq, BATCH):
            yield batch
            seq = batch[-1].seq

    async def grown(self, seq: int) -> None:
        """Wait for a number above this one."""
        async with self._kept:
            await self._kept.wait_for(lambda: self.last > seq)


def _plain(value: object) -> Plain:
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:VALUE_CHARS].encode("utf-8", "replace").decode()


def _text(value: object) -> str | None:
    return None if value is None else str(value)
