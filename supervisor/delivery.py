"""Performs core/bubbles and core/delivery for every peer of every account.

In come pieces, turns' ends and notices from the scheduler, and the fact that a peer wrote from intake; out go bubbles
through the account's channel. A core steps first; what follows from its steps gathers per peer and is committed in
order, in one transaction, before the send that it announces. A receipt and the next send share one transaction.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, assert_never

from protocol.ids import AccountId, PeerKey, ReplyToken, SendKey
from protocol.to_supervisor import Boundary
from supervisor import notices
from supervisor.channels.base import (
    Channel,
    Limits,
    NotUploaded,
    Receipt,
    ReceiptKind,
    Refused,
    Route,
    Unavailable,
    Upload,
)
from supervisor.channels.base import SignedOut as ChannelSignedOut
from supervisor.clock import Clock, woken_or_due
from supervisor.config import WeChat
from supervisor.core.bubbles import Composer, Size, numbered
from supervisor.core.delivery import (
    FILES,
    Accepted,
    BackOnline,
    Enqueued,
    Lapsed,
    LoggedInAnew,
    Mark,
    Outbox,
    OutboxEffect,
    OutboxEvent,
    ParkedUnwanted,
    Part,
    PeerWrote,
    QuestionOver,
    Rejected,
    Rules,
    Send,
    SignedIn,
    SignedOut,
    TurnOpened,
    TurnStopped,
    Unanswered,
    Unconfirmed,
    Unsendable,
    Unsent,
    Woke,
)
from supervisor.core.policy import InterimText
from supervisor.core.states import PartKind, PartState
from supervisor.notices import Notice
from supervisor.store import AddPart, Bump, Change, Journal, JournalUnavailable, PartRow, PeerRecord, SetPart, Store

log = logging.getLogger(__name__)

COMMIT_RETRY_S = 1.0
BODY_BYTES = 16 * 1024  # what every account's channel is known to take
ENVELOPE_BYTES = 2048  # of a request body that are not its text: ids, reply token, base_info


class QuestionFate(Enum):
    SENT = "sent"
    NOT_SENT = "not_sent"


class FileFate(Enum):
    SENT = "sent"
    WAITS = "waits"  # for the peer's next message
    NOT_SENT = "not_sent"
    DROPPED = "dropped"


class Files(Protocol):
    """Where files lie that stand in the journal as parts (outgoing.py)."""

    def upload(self, key: SendKey, name: str) -> Upload | None: ...

    def discard(self, key: SendKey) -> None: ...

    def keep_only(self, keys: Iterable[SendKey]) -> None: ...


@dataclass(slots=True)
class _Asked:
    """A question on its way. open: bubbles that the channel has not taken yet"""

    open: set[SendKey]
    fate: Callable[[QuestionFate], None]


@dataclass(slots=True)
class _Peer:
    who: PeerKey
    outbox: Outbox
    language: str = notices.ENGLISH
    reply_token: ReplyToken | None = None
    composers: dict[int, Composer] = field(default_factory=dict)
    ended: deque[int] = field(default_factory=lambda: deque(maxlen=64))  # turns whose late words are dropped
    changes: list[Change] = field(default_factory=list)  # decided, not yet committed
    asked: _Asked | None = None
    files: dict[SendKey, Part] = field(default_factory=dict)  # parts that are files, as long as they are open
    fates: dict[SendKey, Callable[[FileFate], None]] = field(default_factory=dict)
    done_with: list[SendKey] = field(default_factory=list)  # files whose part is over, once that is committed
    brought_files: set[int] = field(default_factory=set)  # turns that run
    send: Send | None = None  # decided; may be performed once `changes` is empty
    committing: asyncio.Lock = field(default_factory=asyncio.Lock)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Delivery:
    """channel: how an account is reached now; None while it is not signed in.
    signed_out: told when a send meets -14; from then on the account's parts are held until signed_in().
    tasks: one for each peer that has something to send. When they are cancelled, a part on its way stays "sending"
    in the journal and is tried again at the next start.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        channel: Callable[[AccountId], Channel | None],
        settings: WeChat,
        signed_out: Callable[[AccountId], None],
        tasks: asyncio.TaskGroup,
        clock: Clock,
        files: Files | None = None,
        interim_text: Callable[[PeerKey], InterimText] = lambda who: InterimText.JOIN,
        mint: Callable[[], SendKey] = lambda: SendKey(f"bridge-{secrets.token_hex(12)}"),
    ) -> None:
        self._journal = journal
        self._channel = channel
        self._settings = settings
        self._signed_out = signed_out
        self._tasks = tasks
        self._clock = clock
        self._files = files
        self._interim_text = interim_text
        self._mint = mint
        self._peers: dict[PeerKey, _Peer] = {}
        self._out: set[AccountId] = set()
        self._rest = asyncio.Event()

    # -- life

    def restore(
        self,
        parts: Iterable[PartRow],
        peers: Iterable[PeerRecord],
        landed: Mapping[PeerKey, Sequence[float]] | None = None,
    ) -> None:
        """Take over what the journal holds, before any turn. landed: when the last sends were, in Unix seconds"""
        now, wall = self._clock.now(), self._clock.wall()
        open_parts: dict[PeerKey, list[PartRow]] = {}
        for row in parts:
            open_parts.setdefault(row.who, []).append(row)
        if self._files is not None:
            self._files.keep_only(row.send_key for rows in open_parts.values() for row in rows)
        records: Mapping[PeerKey, PeerRecord] = {record.who: record for record in peers}
        for who in records.keys() | open_parts.keys():
            peer, record, rows = self._peer(who), records.get(who), open_parts.get(who, [])
            heard_at = None
            if record is not None:
                peer.language, peer.reply_token = record.language, record.reply_token
                if record.last_inbound_at is not None:
                    heard_at = now - max(0.0, self._clock.wall() - record.last_inbound_at)
            taken = [(Part(row.send_key, row.kind, row.text, row.message_row), row.state, row.attempts) for row in rows]
            peer.files = {part.key: part for part, _, _ in taken if part.kind in FILES}
            effects = peer.outbox.restore(
                taken,
                spent=record.spent if record is not None else 0,
                heard_at=heard_at,
                more_line=notices.more_waiting().text(peer.language),
                now=now,
                landed_at=[now - (wall - at) for at in (landed or {}).get(who, ())],
            )
            self._absorb(peer, effects)
            self._rouse(peer)

    async def drain(self) -> None:
        """Return once nothing is left that could be sent now."""
        while not all(self.idle(who) for who in self._peers):
            self._rest.clear()
            await self._rest.wait()

    def configure(self, settings: WeChat) -> None:
        """New settings, from the next bubble on; a text being composed keeps its size."""
        self._settings = settings
        for who, peer in self._peers.items():
            peer.outbox.rules, peer.outbox.size = _rules(settings), self._size(who.account)

    # -- turns

    def piece(
        self, who: PeerKey, turn_row: int, text: str, boundary: Boundary, keep: Sequence[tuple[int, int]] = ()
    ) -> None:
        peer = self._peer(who)
        if turn_row not in peer.ended:
            self._composer(peer, turn_row).piece(text, boundary, keep, self._clock.now())
            self._rouse(peer)

    def tool_started(self, who: PeerKey, turn_row: int) -> None:
        peer = self._peer(who)
        if turn_row not in peer.ended:
            self._composer(peer, turn_row).tool_started(self._clock.now())
            self._rouse(peer)

    def has_text(self, who: PeerKey, turn_row: int) -> bool:
        """Or a file: something to show."""
        peer = self._peer(who)
        composer = peer.composers.get(turn_row)
        return turn_row in peer.brought_files or (composer is not None and composer.has_text)

    def cut_off(self, who: PeerKey, turn_row: int) -> bool:
        """Has the turn said more than an answer may hold? What it still says is dropped; finish() tells the peer."""
        composer = self._peer(who).composers.get(turn_row)
        return composer is not None and composer.cut_off

    async def finish(
        self, who: PeerKey, turn_row: int, *, notice: Notice | None = None, extra: Sequence[Change] = ()
    ) -> None:
        """The turn has its outcome: what is left of its text, then the notice. One transaction with `extra`."""
        peer, now = self._peer(who), self._clock.now()
        composer = self._end(peer, turn_row)
        if composer is not None and composer.cut_off and notice is None:
            notice = notices.cut_off()
        closing = self._worded(peer, notice) if notice is not None else ()
        room = peer.outbox.room(now) - len(closing)
        texts = composer.rest(max(0, room)) if composer is not None else ()
        parts = self._parts(PartKind.REPLY, texts, turn_row) + self._parts(PartKind.OUTCOME, closing, turn_row)
        self._enqueue(peer, parts, ends=turn_row)
        peer.changes += extra
        await self._commit(peer)
        self._rouse(peer)

    async def abandon(
        self, who: PeerKey, turn_row: int, *, notice: Notice | None = None, extra: Sequence[Change] = ()
    ) -> None:
        """The turn was stopped: its unsent text is dropped. One transaction with `extra`."""
        peer = self._peer(who)
        self._end(peer, turn_row)
        self._step(peer, TurnStopped(turn_row))
        if notice is not None:
            self._enqueue(peer, self._parts(PartKind.OUTCOME, self._worded(peer, notice), turn_row))
        peer.changes += extra
        await self._commit(peer)
        self._rouse(peer)

    async def notice(
        self,
        who: PeerKey,
        notice: Notice,
        kind: PartKind,
        *,
        language: str | None = None,
        extra: Sequence[Change] = (),
    ) -> None:
        """language: another than the peer's is now. One transaction with `extra`."""
        peer = self._peer(who)
        self._enqueue(peer, self._parts(kind, self._worded(peer, notice, language), None))
        peer.changes += extra
        await self._commit(peer)
        self._rouse(peer)

    async def ask(
        self,
        who: PeerKey,
        question: Notice,
        turn_row: int,
        *,
        language: str,
        fate: Callable[[QuestionFate], None],
        if_room: Sequence[Notice] = (),
    ) -> None:
        """Put a question behind what its turn has said so far: whole or not at all.

        if_room  what may go before it: the first of these that the budget leaves room for
        fate     told once: every bubble was accepted, or one of them cannot be sent. Must not block. Not told after unask().
        """
        peer, now = self._peer(who), self._clock.now()
        words = self._worded(peer, question, language)
        room = peer.outbox.room(now) - len(words)
        if room < 0:
            fate(QuestionFate.NOT_SENT)
            return
        for longest_first in if_room:
            before = self._worded(peer, longest_first, language)
            if len(before) < room:  # one is left for the line that says that nobody answered
                words = (*before, *words)
                break
        if (composer := peer.composers.get(turn_row)) is not None:
            said = composer.before_question(peer.outbox.room(now) - len(words))
            self._enqueue(peer, self._parts(PartKind.REPLY, said, turn_row))
        parts = self._parts(PartKind.QUESTION, words, turn_row)
        peer.asked = _Asked({part.key for part in parts}, fate)
        self._enqueue(peer, parts)
        await self._commit(peer)
        self._rouse(peer)

    def new_key(self) -> SendKey:
        """For a file, which is laid into the spool under it before file() is called."""
        return self._mint()

    async def file(
        self,
        who: PeerKey,
        key: SendKey,
        name: str,
        *,
        fate: Callable[[FileFate], None],
        turn_row: int | None = None,
        caption: str = "",
        now_or_never: bool = False,
    ) -> None:
        """Put a file into the queue, its caption before it; of a turn, behind what that has said so far.

        fate          told once. Must not block
        now_or_never  dropped, without a word to the peer, where it cannot be sent or uploaded now
        """
        peer, now = self._peer(who), self._clock.now()
        if turn_row in peer.ended:
            fate(FileFate.DROPPED)
            self._discard([key])
            return
        kind = PartKind.PROACTIVE_FILE if now_or_never else PartKind.FILE
        captions = numbered(caption, size=self._size(who.account)) if caption.strip() else ()
        if turn_row is not None:
            peer.brought_files.add(turn_row)
            composer = self._composer(peer, turn_row)
            said = composer.before_question(max(0, peer.outbox.room(now) - len(captions) - 1))
            captions = (*said, *captions)
        part = Part(key, kind, name, turn_row)
        peer.files[key], peer.fates[key] = part, fate
        self._enqueue(peer, (*self._parts(PartKind.REPLY, captions, turn_row), part))
        await self._commit(peer)
        self._rouse(peer)

    async def say(self, who: PeerKey, text: str, *, fate: Callable[[FileFate], None]) -> None:
        """Words that nobody asked for, now or never. fate: told once, of the last bubble"""
        peer = self._peer(who)
        parts = self._parts(PartKind.PROACTIVE, numbered(text, size=self._size(who.account)), None)
        if peer.outbox.room(self._clock.now()) < len(parts):
            fate(FileFate.DROPPED)
            return
        peer.fates[parts[-1].key] = fate
        self._enqueue(peer, parts)
        await self._commit(peer)
        self._rouse(peer)

    async def unask(self, who: PeerKey) -> None:
        """Nobody waits for the answer any more: what is unsent of the question is not sent."""
        peer = self._peer(who)
        peer.asked = None
        self._step(peer, QuestionOver())
        await self._commit(peer)
        self._rouse(peer)

    async def drop_parked(self, who: PeerKey, *, extra: Sequence[Change] = ()) -> int:
        """The peer does not want the parked rest: it is dropped and one line says how much. returns how many parts"""
        peer = self._peer(who)
        count = peer.outbox.parked_rest
        self._step(peer, ParkedUnwanted())
        self._enqueue(peer, self._parts(PartKind.COMMAND, self._worded(peer, notices.parked_dropped(count)), None))
        peer.changes += extra
        await self._commit(peer)
        self._rouse(peer)
        return count

    def lapse(self, parts: Iterable[PartRow]) -> None:
        """The journal has given these up."""
        for part in parts:
            peer = self._peer(part.who)
            self._step(peer, Lapsed(frozenset({part.send_key})))
            if peer.files.pop(part.send_key, None) is not None:
                self._discard([part.send_key])

    # -- what happens to peers and accounts

    def heard(
        self,
        who: PeerKey,
        at: float,
        reply_token: ReplyToken | None,
        language: str,
        written_at: float | None = None,
    ) -> None:
        """An admitted peer wrote, and the journal has it: the budget is full again, but for what was sent since then.

        at, written_at   when we heard of it and when they wrote, in Unix seconds
        """
        peer, now = self._peer(who), self._clock.now()
        peer.language = language
        peer.reply_token = reply_token or peer.reply_token
        wall = self._clock.wall()
        written_s_ago = max(0.0, wall - (at if written_at is None else written_at))
        heard_at = now - max(0.0, wall - at)
        self._step(peer, PeerWrote(heard_at, notices.more_waiting().text(language), now - written_s_ago))
        self._rouse(peer)

    def signed_in(self, account: AccountId) -> None:
        """The account can send (again)."""
        self._out.discard(account)
        self._tell_account(account, SignedIn())

    def signed_out(self, account: AccountId) -> None:
        """WeChat takes the account's token no more: what is queued waits for the next login."""
        if account not in self._out:
            self._out.add(account)
            self._tell_account(account, SignedOut())

    def back_online(self, account: AccountId) -> None:
        """A poll succeeded after an outage: what it swallowed is tried again, with its own keys."""
        self._tell_account(account, BackOnline())

    def forget_tokens(self, account: AccountId) -> None:
        """A new login: reply tokens of the old one are worth nothing, and what is unsent waits for the peer."""
        for peer in self._of(account):
            peer.reply_token = None
        self._tell_account(account, LoggedInAnew())

    # -- what status, /status and doctor want to know

    def budget_left(self, who: PeerKey) -> int:
        return self._peer(who).outbox.left

    def parked(self, who: PeerKey) -> int:
        return self._peer(who).outbox.parked

    def parked_rest(self, who: PeerKey) -> int:
        """As far as the peer can do without it."""
        return self._peer(who).outbox.parked_rest

    def idle(self, who: PeerKey) -> bool:
        """Nothing of this peer's is on its way, or will be before something happens."""
        peer = self._peer(who)
        return not peer.wake.is_set() and peer.send is None and not peer.changes and peer.outbox.at_rest()

    def throttled(self, account: AccountId) -> bool:
        """Was a send refused in the last ten minutes although the budget was not spent?"""
        now = self._clock.now()
        return any((until := peer.outbox.throttled_until) is not None and now < until for peer in self._of(account))

    def suspicious(self, account: AccountId) -> bool:
        """Did three sends in a row to one peer go unconfirmed?"""
        return any(peer.outbox.suspicious for peer in self._of(account))

    # -- stepping

    def _peer(self, who: PeerKey) -> _Peer:
        peer = self._peers.get(who)
        if peer is None:
            peer = self._peers[who] = _Peer(who, Outbox(self._size(who.account), _rules(self._settings)))
            if who.account in self._out:
                peer.outbox.step(SignedOut(), self._clock.now())
        return peer

    def _of(self, account: AccountId) -> list[_Peer]:
        return [peer for who, peer in self._peers.items() if who.account == account]

    def _size(self, account: AccountId) -> Size:
        channel = self._channel(account)
        limits = Limits(self._settings.max_reply_chars, BODY_BYTES) if channel is None else channel.limits
        return Size(limits.text_units, limits.body_bytes - ENVELOPE_BYTES)

    def _composer(self, peer: _Peer, turn_row: int) -> Composer:
        composer = peer.composers.get(turn_row)
        if composer is None:
            composer = peer.composers[turn_row] = Composer(
                self._size(peer.who.account),
                max_answer_chars=self._settings.max_answer_chars,
                interim=self._interim_text(peer.who),
            )
            self._step(peer, TurnOpened(turn_row))
        return composer

    def _end(self, peer: _Peer, turn_row: int) -> Composer | None:
        peer.ended.append(turn_row)
        peer.brought_files.discard(turn_row)
        return peer.composers.pop(turn_row, None)

    def _parts(self, kind: PartKind, texts: Iterable[str], turn_row: int | None) -> tuple[Part, ...]:
        return tuple(Part(self._mint(), kind, text, turn_row) for text in texts)

    def _worded(self, peer: _Peer, notice: Notice, language: str | None = None) -> tuple[str, ...]:
        return numbered(notice.text(language or peer.language), size=self._size(peer.who.account))

    def _enqueue(self, peer: _Peer, parts: tuple[Part, ...], *, ends: int | None = None) -> None:
        effects = peer.outbox.step(Enqueued(parts, ends), self._clock.now())
        at = self._clock.wall()
        dropped = {effect.key for effect in effects if isinstance(effect, Mark) and effect.state is PartState.DROPPED}
        never_kept = dropped & {part.key for part in parts}
        for key in never_kept:
            self._tell_fate(peer, key, PartState.DROPPED)
        peer.changes += [
            AddPart(part.key, peer.who, part.turn, part.kind, part.text, at)
            for part in parts
            if part.key not in never_kept
        ]
        self._absorb(peer, [effect for effect in effects if effect.key not in never_kept])

    def _step(self, peer: _Peer, event: OutboxEvent) -> None:
        self._absorb(peer, peer.outbox.step(event, self._clock.now()))

    def _absorb(self, peer: _Peer, effects: Iterable[OutboxEffect]) -> None:
        at = self._clock.wall()
        for effect in effects:
            match effect:
                case Send(key, _, spend):
                    peer.send = effect
                    peer.changes.append(SetPart(key, PartState.SENDING, at, spend))
                case Mark(key, state, spend, message_id):
                    peer.changes.append(SetPart(key, state, at, spend, message_id))
                    self._tell_fate(peer, key, state)
                case _:
                    assert_never(effect)

    def _tell_fate(self, peer: _Peer, key: SendKey, state: PartState) -> None:
        if state in _FATES and (tell := peer.fates.pop(key, None)) is not None:
            tell(_FATES[state])
        if state in _OVER and peer.files.pop(key, None) is not None:
            peer.done_with.append(key)
        self._tell_question(peer, key, state)

    def _tell_question(self, peer: _Peer, key: SendKey, state: PartState) -> None:
        """Of a question's bubbles. One that is perhaps accepted is not: its answer must never be taken for this one's."""
        asked = peer.asked
        if asked is None or key not in asked.open:
            return
        asked.open.discard(key)
        if state is not PartState.ACCEPTED or not asked.open:
            peer.asked = None
            asked.fate(QuestionFate.SENT if state is PartState.ACCEPTED else QuestionFate.NOT_SENT)

    def _tell_account(self, account: AccountId, event: SignedIn | SignedOut | LoggedInAnew | BackOnline) -> None:
        for peer in self._of(account):
            self._step(peer, event)
            self._rouse(peer)

    # -- performing

    async def _commit(self, peer: _Peer) -> None:
        """The cores have moved already, so the journal has to follow: tried each second while the disk refuses."""
        async with peer.committing:
            while peer.changes:
                batch = tuple(peer.changes)
                try:
                    await self._write(peer, batch)
                except JournalUnavailable as error:
                    log.error("journal_unavailable reason=%s", error)
                    await self._clock.sleep_until(self._clock.now() + COMMIT_RETRY_S)
            self._discard(peer.done_with)
            peer.done_with.clear()

    def _discard(self, keys: Iterable[SendKey]) -> None:
        if self._files is not None:
            for key in keys:
                self._files.discard(key)

    async def _write(self, peer: _Peer, batch: tuple[Change, ...]) -> None:
        """Seen through to its end even if the caller is cancelled: what is kept must not be written a second time."""
        writing = asyncio.ensure_future(self._journal.do(Store.apply, batch))
        try:
            await asyncio.shield(writing)
        finally:
            if not writing.done():
                await asyncio.wait({writing})
            if not writing.cancelled() and writing.exception() is None:
                del peer.changes[: len(batch)]

    def _rouse(self, peer: _Peer) -> None:
        peer.wake.set()
        if peer.task is None:
            peer.task = self._tasks.create_task(self._serve(peer), name=f"delivery {peer.who.peer}")

    async def _serve(self, peer: _Peer) -> None:
        """One peer's sends, until nothing is left to do or to wait for."""
        while True:
            peer.wake.clear()
            self._tend(peer)
            await self._commit(peer)
            if peer.send is not None:
                send, peer.send = peer.send, None
                await self._perform(peer, send)
            elif not peer.wake.is_set():
                at = self._wake_at(peer)
                self._rest.set()
                if at is None:
                    peer.task = None
                    return
                await woken_or_due(peer.wake, self._clock, at)

    def _tend(self, peer: _Peer) -> None:
        now = self._clock.now()
        for turn_row, composer in peer.composers.items():
            texts = composer.leaving(peer.outbox.room_to_stream(now), now)
            if texts:
                self._enqueue(peer, self._parts(PartKind.REPLY, texts, turn_row))
        self._step(peer, Woke())

    def _wake_at(self, peer: _Peer) -> float | None:
        times = [composer.wake_at() for composer in peer.composers.values()]
        return min((at for at in (peer.outbox.wake_at(), *times) if at is not None), default=None)

    async def _perform(self, peer: _Peer, send: Send) -> None:
        account = peer.who.account
        channel = self._channel(account)
        if channel is None:
            self._step(peer, Unsent())
            self.signed_out(account)
            return
        route = Route(account, peer.who.peer, peer.reply_token)
        try:
            if send.key in peer.files:
                receipt = await self._send_file(peer, channel, route, peer.files[send.key])
                if receipt is None:
                    self._step(peer, Unsendable())
                    return
            else:
                receipt = await channel.send_text(route, send.text, send.key)
        except Unavailable as error:
            log.warning(
                "send_unanswered peer=%s send_key=%s reason=%s account=%s",
                peer.who.peer,
                send.key,
                error,
                peer.who.account,
            )
            self._step(peer, Unanswered(error.retry_after_s))
        except ChannelSignedOut:
            log.warning("send_signed_out account=%s", account)
            self._step(peer, Unsent())
            self.signed_out(account)
            self._signed_out(account)
        except Refused as error:
            self._take(peer, send, Receipt(ReceiptKind.REJECTED, code=error.code))
        else:
            self._take(peer, send, receipt)

    async def _send_file(self, peer: _Peer, channel: Channel, route: Route, part: Part) -> Receipt | None:
        """A file that cannot be uploaded becomes a line that names it, under the same key. None: not even that."""
        try:
            upload = self._files.upload(part.key, part.text) if self._files is not None else None
            if upload is None:
                raise NotUploaded("the file is gone")
            return await channel.send_file(route, upload, part.key)
        except NotUploaded as error:
            log.warning(
                "file_not_uploaded peer=%s send_key=%s reason=%s account=%s",
                peer.who.peer,
                part.key,
                error,
                peer.who.account,
            )
        if (tell := peer.fates.pop(part.key, None)) is not None:
            tell(FileFate.NOT_SENT)
        if part.kind is PartKind.PROACTIVE_FILE:
            return None
        return await channel.send_text(route, notices.file_not_sent(part.text).text(peer.language), part.key)

    def _take(self, peer: _Peer, send: Send, receipt: Receipt) -> None:
        match receipt.kind:
            case ReceiptKind.ACCEPTED:
                log.debug("part_sent peer=%s send_key=%s account=%s", peer.who.peer, send.key, peer.who.account)
                self._step(peer, Accepted(receipt.message_id))
            case ReceiptKind.UNCONFIRMED:
                log.warning(
                    "send_unconfirmed peer=%s send_key=%s account=%s", peer.who.peer, send.key, peer.who.account
                )
                self._step(peer, Unconfirmed())
            case ReceiptKind.REJECTED:
                log.warning(
                    "send_rejected peer=%s send_key=%s code=%d account=%s",
                    peer.who.peer,
                    send.key,
                    receipt.code,
                    peer.who.account,
                )
                peer.changes.append(Bump("sends_rejected"))
                self._step(peer, Rejected())
            case _:
                assert_never(receipt.kind)


# What a file's sender is told, and when nothing of it is needed any more.
_FATES = {
    PartState.ACCEPTED: FileFate.SENT,
    PartState.UNCONFIRMED: FileFate.SENT,
    PartState.PARKED: FileFate.WAITS,
    PartState.DROPPED: FileFate.DROPPED,
}
_OVER = frozenset({PartState.ACCEPTED, PartState.UNCONFIRMED, PartState.REJECTED, PartState.DROPPED})


def _rules(settings: WeChat) -> Rules:
    return Rules(
        budget=settings.send_budget,
        reserve=settings.send_budget_reserve,
        gap_s=settings.send_gap_ms / 1000,
        window_s=settings.reply_window_hours * 3600,
    )
