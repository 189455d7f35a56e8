"""From the journal on: what each message is, each peer's in the order they came. Performs core/admission and core/commands.

Each row is judged once: admitted or not, a command or a prompt, room for it or none. The verdict, what it changes for
the peer and the mark that the next row is now being handled go into one transaction, so that a restart finds every row
either untouched or judged. Neighbours: poll.py hands rows on, scheduler.py and conversations.py take them over.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from protocol.content import Inbound, MediaKind, Unreadable
from protocol.ids import AccountId, PeerKey
from supervisor import attachments, notices
from supervisor.accounts import Accounts
from supervisor.attachments import Attachments, Saved
from supervisor.channels.base import Reader
from supervisor.clock import Clock
from supervisor.conversations import Conversations
from supervisor.core import commands
from supervisor.core.admission import (
    Admit,
    Door,
    Full,
    Ignore,
    Load,
    PeerPolicy,
    Refuse,
    Said,
    TurnAway,
    WrittenAs,
    cap,
    is_late,
    language_after,
    may_speak,
    sanitise,
    written_at,
)
from supervisor.core.poll import Arrival
from supervisor.core.scheduler import Fetched, Queued, Told
from supervisor.core.states import MessageState, PartKind
from supervisor.core.turnwise import Turnwise
from supervisor.delivery import Delivery
from supervisor.dialogs import DialogLoop, ReplyWas
from supervisor.notices import Notice
from supervisor.peers import PeerBook
from supervisor.scheduler import SchedulerLoop
from supervisor.store import (
    BeginHandling,
    Change,
    CountRefused,
    Heard,
    Journal,
    JournalUnavailable,
    MessageRow,
    PeerRecord,
    PutBack,
    SetLimitTold,
    SetMessage,
    Store,
)
from supervisor.usage import Usage

log = logging.getLogger(__name__)

RETRY_S = 1.0


@dataclass(slots=True)
class _Batch:
    """What one poll brought. left: rows of it that are not judged yet"""

    left: int


@dataclass(slots=True)
class _Arrived:
    row: MessageRow
    first_answer: bool  # of the poll after it began: may have waited for us
    batch: "_Batch"
    marked: bool  # the journal counts it as being handled


class Intake:
    """One for all accounts: rows are judged one after the other, a few milliseconds each, and the peers take turns."""

    def __init__(
        self,
        *,
        journal: Journal,
        book: PeerBook,
        loop: SchedulerLoop,
        delivery: Delivery,
        conversations: Conversations,
        dialogs: DialogLoop,
        accounts: Accounts,
        attachments: Attachments,
        reader: Reader,
        usage: Usage,
        clock: Clock,
    ) -> None:
        self._attachments = attachments
        self._journal = journal
        self._book = book
        self._loop = loop
        self._delivery = delivery
        self._conversations = conversations
        self._dialogs = dialogs
        self._accounts = accounts
        self._reader = reader
        self._usage = usage
        self._clock = clock
        self._door = Door()
        # Bounded by what polls hand over: each account polls again only once its batch is in the journal, and this
        # queue holds no more than the journal does.
        self._rows: Turnwise[_Arrived] = Turnwise()
        self._next: _Arrived | None = None  # marked together with the verdict on the row before it
        self._wake = asyncio.Event()
        self._closing_down = False
        self._over = asyncio.Event()
        self._over.set()
        self._named: set[PeerKey] = set()  # refused senders that the log has named

    def take(self, rows: Sequence[MessageRow], arrival: Arrival) -> None:
        """New rows stand in the journal, the first of them marked as being handled; must not block."""
        batch = _Batch(len(rows))
        for number, row in enumerate(rows):
            log.debug(
                "message_received peer=%s message=%d id=%s account=%s",
                row.who.peer,
                row.row,
                row.message_id,
                row.who.account,
            )
            self._rows.put(row.who, _Arrived(row, arrival is Arrival.BACKLOG, batch, marked=number == 0))
        self._wake.set()

    def again(self, row: MessageRow) -> None:
        """At start: this one was admitted and waits for its turn; what it brings is fetched again where it is missing."""
        inbound = self._reader.parse(row.raw)
        held = not isinstance(inbound, Unreadable) and attachments.hold(inbound)
        self._loop.post(Queued(row.who, row.row, held=held))
        if not isinstance(inbound, Unreadable) and held:
            self._attachments.fetch(row.who, row.row, inbound, partial(self._fetched, row.who, row.row, inbound))

    async def run(self) -> None:
        """Until close()."""
        self._over.clear()
        try:
            while not self._closing_down:
                if self._rows:
                    await self._handle(self._rows.take())
                else:
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            self._over.set()

    async def close(self) -> None:
        """Judge no further row. What is marked as being handled and is not any more does not count against it: only a
        death of ours does."""
        self._closing_down = True
        self._wake.set()
        await self._over.wait()
        unjudged = [PutBack(arrived.row.row) for arrived in self._rows if arrived.marked]
        if unjudged:
            await self._journal.do(Store.apply, unjudged)

    async def _handle(self, arrived: _Arrived) -> None:
        await self._judge(arrived)
        if self._next is not None:
            self._next.marked, self._next = True, None
        arrived.batch.left -= 1
        if arrived.batch.left == 0:
            for who, count in self._door.backlog_closed().items():
                await self._delivery.notice(who, notices.backlog_closed(count), PartKind.OUTCOME)

    async def _judge(self, arrived: _Arrived) -> None:
        row = arrived.row
        inbound = self._reader.parse(row.raw)
        if isinstance(inbound, Unreadable):
            log.warning("message_unreadable account=%s message=%d reason=%s", row.who.account, row.row, inbound.reason)
            await self._apply(self._closing(arrived, MessageState.IGNORED))
            return
        policy = self._book.policy(row.who)
        match may_speak(echo=inbound.echo, group_id=inbound.group_id, policy=policy):
            case Ignore(why):
                log.info("message_ignored account=%s message=%d why=%s", row.who.account, row.row, why)
                await self._apply(self._closing(arrived, MessageState.IGNORED))
            case Refuse():
                self._name_refused(row.who)
                changes = [*self._closing(arrived, MessageState.REFUSED), CountRefused(row.who, self._clock.wall())]
                await self._apply(changes)
            case Admit():
                await self._admitted(arrived, inbound, policy)
            case verdict:
                assert_never(verdict)

    async def _admitted(self, arrived: _Arrived, inbound: Inbound, policy: PeerPolicy) -> None:
        row, who = arrived.row, arrived.row.who
        record = self._book.record(who) or await self._book.refresh(who)
        text, _ = cap(sanitise(inbound.text), self._book.settings.wechat.max_inbound_chars)
        media = commands.Media.SOME if inbound.media else commands.Media.NONE
        command = commands.parse(text, media, self._book.settings.snippets)
        as_command = command is not None and not isinstance(command, commands.Snippet)
        language = language_after(text, WrittenAs.COMMAND if as_command else WrittenAs.WORDS, before=record.language)
        written = await self._written_at(arrived)
        late = is_late(
            written,
            received_at=row.received_at,
            first_answer=arrived.first_answer,
            late_s=self._book.settings.timers.late_s,
        )
        at = self._clock.wall()
        heard = Heard(row.row, who, at, inbound.reply_token, language, text, late, written)
        if command is not None and not isinstance(command, commands.Snippet):
            self._peer_wrote(heard)
            await self._conversations.obey(who, command, [heard, *self._closing(arrived, MessageState.COMMAND)])
            await self._book.refresh(who)
            return
        mute = _unheard(inbound)
        if not text and mute is not None:
            self._peer_wrote(heard)
            changes = [heard, *self._closing(arrived, MessageState.COMMAND)]
            await self._delivery.notice(who, mute, PartKind.COMMAND, extra=changes)
            await self._book.refresh(who)
            self._attachments.fetch(who, row.row, inbound, _nothing)
            return
        if commands.may_answer(command, media) and await self._answers(arrived, heard):
            await self._book.refresh(who)
            return
        asked = self._dialogs.visible(who)
        held = attachments.hold(inbound)
        queued = await self._prompt(arrived, policy, record, heard, late, Told.YES if asked else Told.NO, held)
        if queued and asked:
            await self._delivery.notice(who, notices.queued_behind_question(), PartKind.COMMAND)
        if queued and held:
            self._attachments.fetch(who, row.row, inbound, partial(self._fetched, who, row.row, inbound))
        elif queued and inbound.media:
            await self._tell_unread(who, row.row, inbound)
            self._attachments.fetch(who, row.row, inbound, _nothing)  # the sound behind a transcript

    async def _fetched(self, who: PeerKey, row: int, inbound: Inbound) -> None:
        """What could be had is there: the turn may begin. One line says what could not; prompts.py tells the agent."""
        self._loop.post(Fetched(who, row))
        await self._tell_unread(who, row, inbound)

    async def _tell_unread(self, who: PeerKey, row: int, inbound: Inbound) -> None:
        notice = _unread(inbound, self._attachments.saved(who, row, inbound))
        if notice is None:
            return
        try:
            await self._delivery.notice(who, notice, PartKind.OUTCOME)
        except JournalUnavailable as error:
            log.error("journal_unavailable reason=%s", error)

    async def _answers(self, arrived: _Arrived, heard: Heard) -> bool:
        """Are these words for a question that this peer is being asked? Then they have been dealt with."""
        if self._dialogs.view(heard.who) is None:
            return False
        row = arrived.row
        offset_ms = await self._journal.do(Store.clock_offset_ms, row.who.account)
        reply = await self._dialogs.reply(
            heard,
            arrived_at=row.received_at,
            written_at=written_at(row.created_at_ms, offset_ms=offset_ms, received_at=row.received_at),
            changes=self._closing(arrived, MessageState.ANSWER),
        )
        return reply is ReplyWas.AN_ANSWER

    async def _prompt(
        self,
        arrived: _Arrived,
        policy: PeerPolicy,
        record: PeerRecord,
        heard: Heard,
        late: bool,
        told: Told,
        held: bool,
    ) -> bool:
        """Queue it, or turn it away: False."""
        who = arrived.row.who
        limited = policy.max_tokens_per_day > 0
        load = Load(
            waiting=self._loop.core.waiting_of(who),
            turns_at=record.turns_at,
            tokens_today=await self._usage.used(who) if limited else 0,
            tokens_anew_at=self._usage.today().ends_at,
            told_until=record.told_until,
        )
        verdict = self._door.may_run(
            who, policy, load, late=late, max_queue=self._book.settings.admission.max_queue, at=heard.at
        )
        self._peer_wrote(heard)
        match verdict:
            case Admit():
                changes = [heard, *self._closing(arrived, MessageState.QUEUED)]
                done = asyncio.Event()
                self._loop.post(Queued(who, arrived.row.row, told, held), changes, after=done.set)
                await done.wait()
            case TurnAway(why, said, wait_s):
                changes = [heard, *self._closing(arrived, MessageState.TURNED_AWAY)]
                log.info(
                    "message_turned_away peer=%s message=%d why=%s account=%s",
                    who.peer,
                    arrived.row.row,
                    why,
                    who.account,
                )
                if said is Said.NOW:
                    if wait_s is not None:
                        changes.append(SetLimitTold(who, why, heard.at + wait_s))
                    notice = _turned_away(why, load.waiting, wait_s)
                    await self._delivery.notice(who, notice, PartKind.OUTCOME, extra=changes)
                else:
                    await self._apply(changes)
            case _:
                assert_never(verdict)
        await self._book.refresh(who)
        return isinstance(verdict, Admit)

    def _peer_wrote(self, heard: Heard) -> None:
        """Token, language and budget count from here on, before anything is sent to that peer."""
        self._delivery.heard(heard.who, heard.at, heard.reply_token, heard.language, heard.written_at)

    async def _written_at(self, arrived: _Arrived) -> float:
        row = arrived.row
        offset_ms = await self._journal.do(Store.clock_offset_ms, row.who.account)
        return written_at(row.created_at_ms, offset_ms=offset_ms, received_at=row.received_at)

    def _closing(self, arrived: _Arrived, state: MessageState) -> list[Change]:
        """This row's state, and that the next one is being handled from now on."""
        changes: list[Change] = [SetMessage(arrived.row.row, state, self._clock.wall())]
        following = self._rows.next()
        if following is not None and not following.marked:  # the first of a batch was marked when it was recorded
            self._next = following
            changes.append(BeginHandling(following.row.row))
        return changes

    async def _apply(self, changes: Sequence[Change]) -> None:
        """Until the disk takes it: a verdict is reached once, and no row is skipped for a full disk."""
        while True:
            try:
                await self._journal.do(Store.apply, changes)
                return
            except JournalUnavailable as error:
                log.error("journal_unavailable reason=%s", error)
                await self._clock.sleep_until(self._clock.now() + RETRY_S)

    def _name_refused(self, who: PeerKey) -> None:
        if who not in self._named:
            if len(self._named) > 1000:
                self._named.clear()
            self._named.add(who)
            account = self._accounts.called(AccountId(who.account))
            log.warning("sender_refused peer=%s account=%s: bridge-ctl allow %s", who.peer, account, who.peer)


def _unheard(inbound: Inbound) -> Notice | None:
    """A message without words that no agent can understand."""
    kinds = {media.kind for media in inbound.media if not media.transcript}
    if MediaKind.VOICE in kinds:
        return notices.voice_without_words()
    if MediaKind.VIDEO in kinds:
        return notices.video_not_understood()
    return None


async def _nothing() -> None:
    pass


def _unread(inbound: Inbound, saved: Sequence[Saved]) -> Notice | None:
    """What to say of a prompt's attachments: of those that could not be had, else of those that nobody understands."""
    unread = [one.media for one in saved if one.path is None and not one.media.transcript]
    if all(media.kind in (MediaKind.VOICE, MediaKind.VIDEO) for media in unread):
        return _unheard(inbound)
    # An unknown kind's name is ours, not the sender's.
    return notices.attachment_unreadable([media.name for media in unread if media.kind is not MediaKind.UNKNOWN])


def _turned_away(why: Full, waiting: int, wait_s: float | None) -> Notice:
    match why:
        case Full.QUEUE:
            return notices.queue_full(waiting=waiting)
        case Full.HOURLY_LIMIT:
            return notices.hourly_limit(wait_s=wait_s or 0.0)
        case Full.TOKEN_BUDGET:
            return notices.token_budget(wait_s=wait_s or 0.0)
        case Full.BACKLOG:
            return notices.backlog_closed(1)
    assert_never(why)
