"""The bridge goes away: one line to each peer with unfinished work, and the journal agrees with what it says.

A turn that is cut becomes interrupted here, so that the next start does not tell its peer again; what only waits stays
queued and runs then.
"""

import asyncio
from collections.abc import Callable

from protocol.ids import AccountId, PeerKey
from supervisor import notices
from supervisor.clock import Clock
from supervisor.core.scheduler import TurnCut
from supervisor.core.states import MessageState, PartKind
from supervisor.delivery import Delivery
from supervisor.indicator import Indicator
from supervisor.peers import PeerBook
from supervisor.scheduler import SchedulerLoop
from supervisor.store import Change, Journal, SetInterruptedNote, SetMessage, Store


async def close_peers(
    loop: SchedulerLoop,
    delivery: Delivery,
    journal: Journal,
    book: PeerBook,
    indicator: Indicator,
    reachable: Callable[[AccountId], bool],
    clock: Clock,
) -> None:
    """After the drain: no new turn starts any more. reachable: can anything be sent on this account?"""
    core = loop.core
    cut = set(core.busy())
    for who in dict.fromkeys((*cut, *core.queued())):
        waiting = core.waiting_of(who)
        if who in cut:
            notice = notices.closing_both(waiting) if waiting else notices.closing_running()
            await _cut(who, notice, loop, delivery, journal, clock)
        elif reachable(who.account):  # else it would read of this end long after the bridge is back
            await delivery.notice(who, notices.closing_waiting(waiting), PartKind.OUTCOME)
        indicator.end(who)


async def _cut(
    who: PeerKey,
    notice: notices.Notice,
    loop: SchedulerLoop,
    delivery: Delivery,
    journal: Journal,
    clock: Clock,
) -> None:
    turn = loop.core.turn_of(who)
    if turn is None:
        return
    row = turn[0]
    # From here on its worker's end, which is near, is no news: the peer would be told twice.
    cut = asyncio.Event()
    loop.post(TurnCut(who), after=cut.set)
    await cut.wait()
    if loop.core.turn_of(who) is None:
        return  # it has ended meanwhile, and its peer has the answer
    message = await journal.do(Store.message, row)
    changes: list[Change] = [SetMessage(row, MessageState.INTERRUPTED, clock.wall())]
    if message is not None:
        changes.append(SetInterruptedNote(who, message.text))
    await delivery.finish(who, row, notice=notice, extra=changes)
