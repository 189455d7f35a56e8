"""The typing indicator: the latest wish of each peer, sent in the background.

A slow or refusing network never holds up a turn: wishes replace one another while a call is on its way, and a failed
call is forgotten (the next refresh comes in five seconds). "Stopped" is sent only where "typing" may have been shown.
What is answered within a beat is never shown as being typed: nobody would see it, and its two calls are half the network's
work of such a turn.
"""

import asyncio
import logging
from collections.abc import Callable

from protocol.ids import PeerKey
from supervisor.channels.base import Channel, ChannelError, Route, TypingState
from supervisor.clock import Clock

log = logging.getLogger(__name__)

BEAT_S = 0.1


class Indicator:
    """route: where the peer is reached now, and by which channel; None while its account is not signed in."""

    def __init__(
        self, tasks: asyncio.TaskGroup, route: Callable[[PeerKey], tuple[Channel, Route] | None], clock: Clock
    ) -> None:
        self._tasks = tasks
        self._route = route
        self._clock = clock
        self._wish: dict[PeerKey, TypingState] = {}
        self._shown: set[PeerKey] = set()
        self._busy: set[PeerKey] = set()

    def show(self, who: PeerKey) -> None:
        self._wish[who] = TypingState.TYPING
        self._wake(who)

    def end(self, who: PeerKey) -> None:
        if who in self._shown:
            self._wish[who] = TypingState.STOPPED
            self._wake(who)
        else:
            self._wish.pop(who, None)

    def _wake(self, who: PeerKey) -> None:
        if who not in self._busy:
            self._busy.add(who)
            self._tasks.create_task(self._send(who), name=f"typing {who.peer}")

    async def _send(self, who: PeerKey) -> None:
        try:
            if who not in self._shown:
                await self._clock.sleep_until(self._clock.now() + BEAT_S)
            while (state := self._wish.pop(who, None)) is not None:
                way = self._route(who)
                if way is None:
                    continue
                channel, route = way
                if state is TypingState.TYPING:
                    self._shown.add(who)
                else:
                    self._shown.discard(who)
                try:
                    await channel.show_typing(route, state)
                except ChannelError as error:
                    log.debug("typing_failed peer=%s reason=%s account=%s", who.peer, error, who.account)
        finally:
            self._busy.discard(who)
