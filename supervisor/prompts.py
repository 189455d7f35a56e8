"""Builds the prompt of one turn from the journal's row: the peer's words, and what the bridge has to say about them."""

from pathlib import Path

from protocol.content import Media, MediaKind, Prompt, Quote, Unreadable
from protocol.ids import AccountId, PeerKey
from supervisor.attachments import Attachments
from supervisor.channels.base import Reader
from supervisor.clock import Clock
from supervisor.core import commands, prompts
from supervisor.core.admission import cap_all, sanitise, written_at
from supervisor.peers import PeerBook
from supervisor.store import Journal, MessageRow, Store

PAUSE_S = 6 * 3600.0  # a conversation that rested longer is told so
A_FILE = "a file"
LATE_S = 60.0  # a backlog's message younger than this came as good as at once


class Prompts:
    def __init__(
        self, journal: Journal, book: PeerBook, reader: Reader, attachments: Attachments, clock: Clock
    ) -> None:
        self._attachments = attachments
        self._journal = journal
        self._book = book
        self._reader = reader
        self._clock = clock

    async def build(self, who: PeerKey, row: int) -> Prompt:
        """Read the message again, so that nothing of it is kept in memory while it waits."""
        message = await self._journal.do(Store.message, row)
        if message is None:
            raise RuntimeError(f"message {row} is not in the journal")
        record = await self._book.refresh(who)
        inbound = self._reader.parse(message.raw)
        notes: list[str] = []
        if message.late and (age_s := await self._age_s(message)) >= LATE_S:
            notes.append(prompts.note_late(age_s))
        last_at = await self._journal.do(Store.last_turn_at, who, row)
        if last_at is not None and (gap_s := message.received_at - last_at) >= PAUSE_S:
            notes.append(prompts.note_pause(gap_s))
        if record.interrupted_note:
            notes.append(prompts.note_interrupted(record.interrupted_note))
        if isinstance(inbound, Unreadable):
            return Prompt(message.text, tuple(notes))
        # All that a peer can make long shares one allowance, the words first.
        quoted = "" if inbound.quote is None else await self._quoted(who.account, inbound.quote)
        attached = [one for one in self._attachments.saved(who, row, inbound) if not one.media.transcript]
        unread = [_name(one.media) for one in attached if one.path is None]
        texts = (sanitise(inbound.text), quoted, *unread)
        (text, quoted, *unread), missing = cap_all(texts, self._book.settings.wechat.max_inbound_chars)
        media = commands.Media.SOME if inbound.media else commands.Media.NONE
        if isinstance(order := commands.parse(text, media, self._book.settings.snippets), commands.Snippet):
            text = order.prompt  # the operator's words: not part of what a peer may make long
        if missing:
            notes.append(prompts.note_cut(missing))
        if inbound.quote is not None:
            notes.append(prompts.note_quote(quoted) if quoted else prompts.note_quote_unknown())
        if unread:
            notes.append(prompts.note_attachments_unread([name or A_FILE for name in unread]))
        notes += [prompts.note_attachment_before(str(path)) for path in await self._kept_before(who, row)]
        images = tuple(str(one.path) for one in attached if one.path is not None and one.is_picture)
        files = tuple(str(one.path) for one in attached if one.path is not None and not one.is_picture)
        notes += [prompts.note_attachment(path) for path in (*images, *files)]
        return Prompt(text, tuple(notes), images, files)

    async def _kept_before(self, who: PeerKey, row: int) -> list[Path]:
        """Voice and video that started no turn of their own, since this peer's last turn."""
        kept: list[Path] = []
        for message in await self._journal.do(Store.wordless_before, who, row):
            inbound = self._reader.parse(message.raw)
            if not isinstance(inbound, Unreadable):
                kept += [one.path for one in self._attachments.saved(who, message.row, inbound) if one.path is not None]
        return kept

    async def _age_s(self, message: MessageRow) -> float:
        offset_ms = await self._journal.do(Store.clock_offset_ms, message.who.account)
        written = written_at(message.created_at_ms, offset_ms=offset_ms, received_at=message.received_at)
        return self._clock.wall() - written

    async def _quoted(self, account: AccountId, quote: Quote) -> str:
        """The words that are quoted, as far as they are shown; "" when they are not at hand."""
        text = quote.text
        if not text and quote.message_id is not None:
            said = await self._journal.do(Store.message_text, account, quote.message_id)
            text = said or ""
        if quote.partial is not None:
            text = self._reader.part_of(text, quote.partial) or text
        return prompts.foreign(text, prompts.QUOTE_CHARS)


def _name(media: Media) -> str:
    words = {MediaKind.IMAGE: "a picture", MediaKind.VOICE: "a voice message", MediaKind.VIDEO: "a video"}
    return prompts.foreign(media.name, prompts.NAME_CHARS) or words.get(media.kind, A_FILE)
