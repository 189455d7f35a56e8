"""Performs core/poll, one per account: fetches from the channel, records into the journal, hands the rows on.

In: a Channel, the Journal, the cursor. Out: rows of committed messages, in the channel's order; log lines of outages;
the view that `status` shows. It decides nothing: each effect is performed and its outcome fed back.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import assert_never

from protocol.ids import AccountId, Cursor
from supervisor.channels.base import Batch, Channel, ChannelError, SignedOut, Unavailable
from supervisor.clock import Clock
from supervisor.core.poll import (
    Announced,
    AnnounceStart,
    AnnounceStop,
    Arrival,
    Failed,
    Fetch,
    Fetched,
    GiveUp,
    NotRecorded,
    OutageBegan,
    OutageEnded,
    Over,
    Poll,
    PollEffect,
    PollEvent,
    PollLimits,
    PollView,
    Record,
    Recorded,
    Started,
    StopAsked,
    TokenRefused,
    Wait,
    Woke,
)
from supervisor.store import Journal, JournalUnavailable, MessageRow, Store

log = logging.getLogger(__name__)

LAST_ANSWER_S = 2.0  # how long a stop waits for an answer that has begun to arrive

OnRecorded = Callable[[tuple[MessageRow, ...], Arrival], None]


class Polling:
    """One account's poll, from `run` to its end.

    on_recorded  called after each commit that brought new rows; must not block
    on_back      called when an outage of the polls has ended; must not block
    """

    def __init__(
        self,
        account: AccountId,
        channel: Channel,
        journal: Journal,
        cursor: Cursor,
        on_recorded: OnRecorded,
        *,
        clock: Clock,
        on_back: Callable[[], None] = lambda: None,
        limits: PollLimits | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._account = account
        self._channel = channel
        self._journal = journal
        self._on_recorded = on_recorded
        self._on_back = on_back
        self._clock = clock
        self._chance = chance
        self._core: Poll[Batch] = Poll(cursor, limits)
        self._stop = asyncio.Event()
        self._stop_told = False

    def ask_to_stop(self) -> None:
        """`run` ends soon: at once while it polls, within some seconds while a batch waits for the disk."""
        self._stop.set()

    def view(self) -> PollView:
        return self._core.view(self._clock.now())

    async def run(self) -> Over:
        """Until ask_to_stop or until WeChat no longer takes the token. Cancelled, it loses what was being fetched."""
        event: PollEvent[Batch] = Started()
        while True:
            for effect in self._core.step(event, self._clock.now()):
                if isinstance(effect, Over):
                    log.info("poll_over account=%s state=%s %s", self._account, effect.state.value, effect.reason)
                    return effect
                event = await self._perform(effect) or event

    async def _perform(self, effect: PollEffect[Batch]) -> PollEvent[Batch] | None:
        match effect:
            case AnnounceStart():
                return await self._unless_stopped(self._announce())
            case Fetch():
                return await self._unless_stopped(self._fetch(effect))
            case Record(batch, arrival):
                return await self._record(batch, arrival)
            case Wait(until):
                return await self._unless_stopped(self._wait(until))
            case AnnounceStop():
                try:
                    await self._channel.announce_stop()
                except ChannelError as error:
                    log.info("poll_stop_not_announced account=%s %s", self._account, error)
            case OutageBegan(what, reason):
                log.warning("%s_outage_began account=%s %s", what, self._account, reason)
            case OutageEnded(what, lasted_s):
                log.warning("%s_outage_ended account=%s after_s=%.1f", what, self._account, lasted_s)
                if what == "poll":
                    self._on_back()
            case GiveUp(batch):
                names = " ".join(message.message_id for message in batch.messages)
                log.error(
                    "messages_lost account=%s count=%d not_recorded=%s", self._account, len(batch.messages), names
                )
            case Over():
                raise AssertionError("run returns on Over")
            case unknown:
                assert_never(unknown)
        return None

    async def _unless_stopped(self, work: Coroutine[None, None, PollEvent[Batch]]) -> PollEvent[Batch]:
        """What work came to, or StopAsked, once, if that comes first. Work that has a result keeps it: it may be a
        batch, which WeChat will not hand out again."""
        if self._stop_told:
            return await work
        if self._stop.is_set():
            work.close()
            self._stop_told = True
            return StopAsked()
        async with asyncio.TaskGroup() as tasks:
            doing = tasks.create_task(work, name=f"poll {self._account}")
            stopping = tasks.create_task(self._stop.wait(), name=f"poll stop {self._account}")
            await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if self._channel.receiving:
                await asyncio.wait({doing}, timeout=LAST_ANSWER_S)
            stopping.cancel()
            doing.cancel()  # does nothing to work that is done
        if not doing.cancelled():
            return doing.result()
        self._stop_told = True
        return StopAsked()

    async def _announce(self) -> PollEvent[Batch]:
        try:
            await self._channel.announce_start()
        except ChannelError as error:
            log.info("poll_start_not_announced account=%s %s", self._account, error)
        return Announced()

    async def _fetch(self, effect: Fetch) -> PollEvent[Batch]:
        try:
            # The channel bounds itself. This is for the day it does not: cutting it also drops its connection.
            async with asyncio.timeout(effect.within_s):
                batch = await self._channel.fetch(effect.cursor, hold_s=effect.hold_s)
        except TimeoutError:
            return Failed(f"a poll hung for {effect.within_s:.0f} s", self._chance())
        except SignedOut as error:
            return TokenRefused(str(error))
        except Unavailable as error:
            return Failed(str(error), self._chance(), error.retry_after_s)
        except ChannelError as error:
            return Failed(str(error), self._chance())
        return Fetched(batch, len(batch.messages), batch.cursor, batch.hold_s)

    async def _record(self, batch: Batch, arrival: Arrival) -> PollEvent[Batch]:
        try:
            recorded = await self._journal.do(Store.record_batch, self._account, batch, self._clock.wall())
        except JournalUnavailable as error:
            return NotRecorded(str(error))
        if recorded.rows:
            self._on_recorded(recorded.rows, arrival)
        return Recorded()

    async def _wait(self, until: float) -> PollEvent[Batch]:
        await self._clock.sleep_until(until)
        return Woke()
