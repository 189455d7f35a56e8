"""Tokens used, per peer and day of this machine's calendar: in memory for who asks, in the journal for good.

The gatekeeper adds what the gateway reports; intake and the gatekeeper ask. One task writes, and gathers what came while
the disk was busy, so that a turn of many model calls is a few transactions.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from protocol.ids import PeerKey
from supervisor.clock import Clock
from supervisor.store import AddUsage, Journal, JournalUnavailable, Store

log = logging.getLogger(__name__)

RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Day:
    """name: as 2026-11-30. ends_at: Unix seconds"""

    name: str
    ends_at: float


def day_of(at: float) -> Day:
    """The calendar day here. at: Unix seconds"""
    date = datetime.fromtimestamp(at).date()
    return Day(date.isoformat(), datetime.combine(date + timedelta(days=1), time.min).timestamp())


class Usage:
    """run() writes, until cancelled; what is then still unwritten is written first."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._used: dict[tuple[PeerKey, str], int] = {}  # of today alone
        self._unwritten: dict[tuple[PeerKey, str], tuple[int, int]] = {}
        self._changed = asyncio.Event()

    def today(self) -> Day:
        return day_of(self._clock.wall())

    async def used(self, who: PeerKey) -> int:
        """Tokens of this peer since the day began, those not yet written included."""
        place = (who, self.today().name)
        if place not in self._used:
            known = await self._journal.do(Store.tokens_of, *place)
            if place not in self._used:
                waiting = sum(self._unwritten.get(place, (0, 0)))
                self._used = {one: tokens for one, tokens in self._used.items() if one[1] == place[1]}
                self._used[place] = known + waiting
        return self._used[place]

    def add(self, who: PeerKey, input_tokens: int, output_tokens: int) -> None:
        place = (who, self.today().name)
        if place in self._used:
            self._used[place] += input_tokens + output_tokens
        before = self._unwritten.get(place, (0, 0))
        self._unwritten[place] = (before[0] + input_tokens, before[1] + output_tokens)
        self._changed.set()

    async def run(self) -> None:
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._write()
        finally:
            await self._write()

    async def _write(self) -> None:
        while self._unwritten:
            written = dict(self._unwritten)
            changes = [AddUsage(who, day, *tokens) for (who, day), tokens in written.items()]
            try:
                await self._journal.do(Store.apply, changes)
            except JournalUnavailable as error:
                log.error("journal_unavailable reason=%s", error)
                await self._clock.sleep_until(self._clock.now() + RETRY_S)
                continue
            for place, (taken_in, taken_out) in written.items():
                left_in, left_out = self._unwritten[place]
                if (left_in, left_out) == (taken_in, taken_out):
                    del self._unwritten[place]
                else:
                    self._unwritten[place] = (left_in - taken_in, left_out - taken_out)
