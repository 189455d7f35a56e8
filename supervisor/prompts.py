"""Builds the prompt of one turn from the journal's row: the peer's words, and what the bridge has to say about them."""

from protocol.content import Media, MediaKind, Prompt, Quote, Unreadable
from protocol.ids import AccountId, PeerKey
from supervisor.channels.base import Reader
from supervisor.clock import Clock
from supervisor.core import prompts
from supervisor.core.admission import cap, sanitise
from supervisor.peers import PeerBook
from supervisor.store import Journal, MessageRow, Store

PAUSE_S = 6 * 3600.0  # a conversation that rested longer is told so


class Prompts:
    def __init__(self, journal: Journal, book: PeerBook, reader: Reader, clock: Clock) -> None:
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
        if message.late:
            notes.append(prompts.note_late(self._age_s(message)))
        if record.interrupted_note:
            notes.append(prompts.note_interrupted(record.interrupted_note))
        if isinstance(inbound, Unreadable):
            return Prompt(message.text, tuple(notes))
        text, missing = cap(sanitise(inbound.text), self._book.settings.wechat.max_inbound_chars)
        if missing:
            notes.append(prompts.note_cut(missing))
        if inbound.quote is not None:
            notes.append(await self._quote(who.account, inbound.quote))
        unread = [_name(media) for media in inbound.media if not media.transcript]
        if unread:
            notes.append(prompts.note_attachments_unread(unread))
        return Prompt(text, tuple(notes))

    def _age_s(self, message: MessageRow) -> float:
        written = message.created_at_ms / 1000 if message.created_at_ms else message.received_at
        return max(0.0, self._clock.wall() - written)

    async def _quote(self, account: AccountId, quote: Quote) -> str:
        text = quote.text
        if not text and quote.message_id is not None:
            said = await self._journal.do(Store.message_text, account, quote.message_id)
            text = said or ""
        if quote.partial is not None:
            text = self._reader.part_of(text, quote.partial) or text
        return prompts.note_quote(text) if text else prompts.note_quote_unknown()


def _name(media: Media) -> str:
    words = {MediaKind.IMAGE: "a picture", MediaKind.VOICE: "a voice message", MediaKind.VIDEO: "a video"}
    return media.name or words.get(media.kind, "a file")
