"""Performs core/recovery: what the journal holds at start is carried on before anything new comes in.

Interrupted turns are told to their peers once and to their agents in the next turn; what waited runs; parts go out
again under their own send keys. Called once, after the journal is open and before the first poll.
"""

import logging
from collections.abc import Iterable
from typing import assert_never

from protocol.ids import AccountId
from supervisor import notices
from supervisor.clock import Clock
from supervisor.core.poll import Arrival
from supervisor.core.recovery import Handle, Interrupt, RunAgain, SetAside, recover
from supervisor.core.scheduler import AccountHeld
from supervisor.core.states import MessageRow, MessageState, PartKind
from supervisor.delivery import Delivery
from supervisor.intake import Intake
from supervisor.peers import PeerBook
from supervisor.scheduler import SchedulerLoop
from supervisor.store import BeginHandling, Change, Journal, SetInterruptedNote, SetMessage, Store

log = logging.getLogger(__name__)


async def carry_on(
    *,
    journal: Journal,
    book: PeerBook,
    loop: SchedulerLoop,
    delivery: Delivery,
    intake: Intake,
    expired: Iterable[AccountId],
    clock: Clock,
) -> None:
    """Feed every open message and part back into the stage it had reached.

    expired   accounts whose login has expired: what waits there goes on waiting
    """
    for account in expired:
        loop.post(AccountHeld(account))
    await journal.do(Store.end_lost_dialogs, clock.wall())
    messages = {message.row: message for message in await journal.do(Store.open_messages)}
    parts = await journal.do(Store.open_parts)
    records = [record for who in book.known() if (record := book.record(who)) is not None]
    for record in records:
        loop.core.seed(record.who, record.generation)
    delivery.restore(parts, records, await journal.do(Store.landed))
    wall = clock.wall()
    unseen: list[MessageRow] = []
    for order in recover(messages.values(), parts):
        match order:
            case Interrupt(row, who, told, earlier):
                log.warning("turn_interrupted peer=%s message=%d account=%s", who.peer, row, who.account)
                changes: list[Change] = [
                    SetMessage(row, MessageState.INTERRUPTED, wall),
                    SetInterruptedNote(who, earlier),
                ]
                if told:
                    await journal.do(Store.apply, changes)
                else:
                    await delivery.notice(who, notices.interrupted(), PartKind.OUTCOME, extra=changes)
            case SetAside(row, who):
                log.error(
                    "message_dead peer=%s message=%d account=%s: set aside after two deaths", who.peer, row, who.account
                )
                dead = SetMessage(row, MessageState.DEAD, wall)
                if book.policy(who).admitted:
                    await delivery.notice(who, notices.failed(), PartKind.OUTCOME, extra=[dead])
                else:
                    await journal.do(Store.apply, [dead])
            case RunAgain(row):
                intake.again(messages[row])
            case Handle(row):
                unseen.append(messages[row])
            case _:
                assert_never(order)
    if unseen:
        await journal.do(Store.apply, [BeginHandling(unseen[0].row)])
        intake.take(unseen, Arrival.LIVE)
