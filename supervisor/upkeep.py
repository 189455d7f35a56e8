"""Keeps the home small: every hour the journal drops what is too old, and what nobody fetched for a week is given up."""

import logging
from collections import Counter
from collections.abc import Callable

from supervisor.clock import Clock
from supervisor.delivery import Delivery
from supervisor.store import Journal, JournalUnavailable, Store

log = logging.getLogger(__name__)

EVERY_S = 3600.0


class Upkeep:
    """keep_days: of texts, as the settings have it now."""

    def __init__(self, journal: Journal, delivery: Delivery, keep_days: Callable[[], float], clock: Clock) -> None:
        self._journal = journal
        self._delivery = delivery
        self._keep_days = keep_days
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled: at once, then every hour."""
        while True:
            try:
                await self.tidy()
            except JournalUnavailable as error:
                log.warning("upkeep_postponed reason=%s", error)
            await self._clock.sleep_until(self._clock.now() + EVERY_S)

    async def tidy(self) -> None:
        """raises JournalUnavailable"""
        dead = await self._journal.do(Store.prune, self._clock.wall(), self._keep_days())
        self._delivery.lapse(dead)
        for who, count in Counter(part.who for part in dead).items():
            log.error("parts_dead peer=%s count=%d account=%s", who.peer, count, who.account)
