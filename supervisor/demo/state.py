"""The simulated service's memory and rules: people, their bots, conversations, budget, window. No I/O, no clock.

In: calls of the iLink API (already parsed) and what people do on their phones, each with `now`, the service's own
wall clock in seconds. Out: the JSON answer, or None where a poll has to be held. Whatever changes becomes a numbered
event, and `on_change` is told the key of whoever may be waiting for it. login.py keeps the QR tickets, inbound.py
words what people say, faults.py says what goes wrong.
"""

import base64
import binascii
import hashlib
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from supervisor.demo import faults, inbound
from supervisor.demo.cdn import KeyForm, Shelves, decrypt, md5_hex, padded_size, read_key
from supervisor.demo.login import Action, Confirm, Scripted, Ticket, Tickets
from supervisor.demo.names import Mint

Json = dict[str, Any]

STALE = -14
_HEX32 = re.compile(r"[0-9a-fA-F]{32}\Z")
# A phone lets the indicator go by itself when nobody renews it; the service's own figure is unknown.
TYPING_SHOWN_S = 15.0
EVENTS = "events"  # the key of everybody who waits for any event
_KEPT = 50_000  # events and sends remembered; older ones fall out


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The service's figures. hint_ms: None = the hold. note: a line the page shows above everything."""

    hold_s: float = 35.0
    hint_ms: int | None = None
    qr_hold_s: float = 30.0
    qr_life_s: float = 120.0
    revoke_after_s: float = 29.0
    verify_tries: int = 3
    send_budget: int = 10
    window_hours: float = 24.0
    text_bytes: int = 16_384
    typing_ticket_s: float = 600.0
    recognise_bound: Literal["on_request", "always"] = "on_request"
    note: str = ""


class Impossible(Exception):
    """The control API asked for something that cannot be; the text says what."""


@dataclass(frozen=True, slots=True)
class Empty:
    """An answer without a body."""


@dataclass(frozen=True, slots=True)
class Media:
    """A picture or file as a phone opened it. problem: why it could not, empty when it could."""

    id: str
    kind: str
    name: str
    plain: bytes
    problem: str = ""

    def view(self) -> Json:
        return {
            "id": self.id,
            "name": self.name,
            "size": len(self.plain),
            "sha256": hashlib.sha256(self.plain).hexdigest(),
            "url": f"/sim/media/{self.id}",
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Bubble:
    """One bubble on a person's phone."""

    seq: int
    side: Literal["me", "bot"]
    bot_id: str
    kind: str
    text: str
    message_id: str
    client_id: str
    at_ms: int
    media: Media | None

    def view(self) -> Json:
        return {
            "seq": self.seq,
            "side": self.side,
            "bot": self.bot_id,
            "kind": self.kind,
            "text": self.text,
            "message_id": self.message_id,
            "client_id": self.client_id,
            "at_ms": self.at_ms,
            "media": None if self.media is None else self.media.view(),
        }


@dataclass(slots=True)
class Person:
    """Somebody with a phone."""

    id: str
    name: str
    bubbles: list[Bubble] = field(default_factory=list)
    typing_log: list[Json] = field(default_factory=list)


@dataclass(slots=True)
class Chat:
    """One person's conversation with one bot, as the service counts it. Tokens and tickets → when issued."""

    last_inbound_at: float | None = None
    sent: int = 0
    reply_tokens: dict[str, float] = field(default_factory=dict)
    typing_tickets: dict[str, float] = field(default_factory=dict)
    typing_since: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message on its way to the bot's next poll. due_at: not before (replays come later)."""

    seq: int
    message: Any
    due_at: float


@dataclass(slots=True)
class Bot:
    """What a scan made: an identity with a token, alive until its owner scans again."""

    id: str
    owner: str
    token: str
    created_at: float
    revoke_at: float | None = None
    online: bool = False
    last_seq: int = 100
    handed_seq: int = 0
    waiting: list[Waiting] = field(default_factory=list)
    handed: deque[Waiting] = field(default_factory=lambda: deque(maxlen=1000))
    chats: dict[str, Chat] = field(default_factory=dict)
    client_ids: dict[str, int] = field(default_factory=dict)
    recent_sends: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    throttled_until: float = 0.0
    polls: int = 0
    polls_in_flight: int = 0
    polls_in_flight_max: int = 0

    def alive(self, now: float) -> bool:
        return self.revoke_at is None or now < self.revoke_at

    def view(self, now: float) -> Json:
        return {
            "bot": self.id,
            "owner": self.owner,
            "alive": self.alive(now),
            "online": self.online,
            "waiting": len(self.waiting),
            "polls": self.polls,
            "polls_in_flight": self.polls_in_flight,
            "polls_in_flight_max": self.polls_in_flight_max,
        }


@dataclass(slots=True)
class Poll:
    """One getupdates request while it is held. not_before: a Hang keeps it until then; mute: a foreign cursor."""

    bot: Bot
    position: int
    mute: bool
    hold_s: float
    hint: Json
    not_before: float


class World:
    """The whole simulated service."""

    def __init__(self, mint: Mint, settings: Settings, *, base_url: str, cdn_url: str) -> None:
        self.mint = mint
        self.settings = settings
        self.base_url = base_url
        self.cdn_url = cdn_url
        self.panel = faults.Panel()
        self.shelves = Shelves(mint)
        self.tickets = Tickets(settings.qr_life_s, settings.verify_tries)
        self.people: dict[str, Person] = {}
        self.bots: dict[str, Bot] = {}
        self.media: dict[str, Media] = {}
        self.sends: deque[Json] = deque(maxlen=_KEPT)
        self.events: deque[Json] = deque(maxlen=_KEPT)
        self.last_event = 0
        self.on_change: Callable[[str], None] = lambda key: None
        self._by_token: dict[str, Bot] = {}
        self._last_bubble = 0

    # --- people and phones ---------------------------------------------------------------------------------------

    def apply(self, settings: Settings) -> None:
        self.settings = settings
        self.tickets.life_s, self.tickets.verify_tries = settings.qr_life_s, settings.verify_tries

    def add_person(self, *, person_id: str, name: str, now: float) -> Person:
        """The person of that id or name, made if there is none."""
        for person in self.people.values():
            if person.id == person_id or (not person_id and name and person.name == name):
                return person
        made = Person(person_id or self.mint.user_id(), name or person_id)
        self.people[made.id] = made
        self.tell("person", now, person=made.id)
        return made

    def person(self, who: str) -> Person:
        """By id or name. raises Impossible"""
        found = self.people.get(who) or next((p for p in self.people.values() if p.name == who), None)
        if found is None:
            raise Impossible(f"no such person: {who}")
        return found

    def bot_of(self, person: Person, to: str, now: float) -> Bot:
        """Whom `person` writes to: the bot `to`, the newest live bot of the person `to`, else their own, else the first."""
        if to in self.bots:
            return self.bots[to]
        owner = self.person(to).id if to else person.id
        alive = [bot for bot in self.bots.values() if bot.alive(now)]
        own = [bot for bot in alive if bot.owner == owner]
        if own:
            return own[-1]
        if to or not alive:
            raise Impossible(f"no live bot for {to or person.id}: nobody has scanned a QR")
        return alive[0]

    def say(self, who: str, said: inbound.Said, now: float) -> Json:
        """Puts one message into the bot's queue and, as its writer sees it, on the phone."""
        person = self.person(who)
        bot = self.bot_of(person, said.to, now)
        at_ms = int(now * 1000)
        chat = bot.chats.setdefault(person.id, Chat())
        token = self.mint.reply_token()
        huge = self.panel.strike(faults.HugeIds, bot.id) is not None
        message_id: int | str = self.mint.huge_id() if huge else self.mint.message_id(now)
        if self.panel.on(faults.StringIds, bot.id):
            message_id = str(message_id)
        bot.last_seq += 1

        envelope = inbound.Envelope(bot.last_seq, message_id, person.id, bot.id, token, at_ms)
        items, media = self._items(person, bot, said, at_ms)
        message: Any = {**inbound.message(envelope, items, group_id=said.group_id), **said.overrides}
        if said.raw is not msgspec.UNSET:
            message = said.raw
        chat.last_inbound_at, chat.sent = now, 0
        told = message.get("context_token") if isinstance(message, dict) else None
        if isinstance(told, str):
            chat.reply_tokens[told] = now
        bot.waiting.append(Waiting(bot.last_seq, message, now))

        shown_id = str(message.get("message_id", "")) if isinstance(message, dict) else ""
        kind = said.attachment.kind if said.attachment else ("text" if said.text is not None else "other")
        bubble = self._show(person, "me", bot, kind, said.text or "", shown_id, "", at_ms, media)
        self.tell("said", now, bot=bot.id, person=person.id, bubble=bubble.seq, message_id=shown_id)
        self.on_change(bot.id)
        return {"message_id": shown_id, "bot": bot.id, "seq": bot.last_seq, "context_token": token, "at_ms": at_ms}

    def _items(self, person: Person, bot: Bot, said: inbound.Said, at_ms: int) -> tuple[list[Json], Media | None]:
        items: list[Json] = []
        media = None
        if said.text is not None:
            items.append(inbound.text_item(said.text, at_ms))
        if said.attachment is not None:
            media = self._keep(said.attachment.kind, said.attachment.name, said.attachment.data)
            items.append(inbound.media_item(said.attachment, self._file(said.attachment, bot), at_ms))
        if said.item is not None:
            items.append(said.item)
        if said.quote is not None and items:
            quoted = next((b.text for b in person.bubbles if b.message_id == said.quote.message_id), "")
            items[0]["ref_msg"] = inbound.quote_reference(said.quote, said.quote.text or quoted)
            if self.panel.on(faults.IdOnlyQuotes, bot.id):
                items[0] = inbound.id_only(items[0])
        return items, media

    def _file(self, attachment: inbound.Attachment, bot: Bot) -> inbound.Filed:
        key = self.mint.key()
        plain = attachment.data
        ticket = self.shelves.put_plain(plain) if attachment.key_form == "absent" else self.shelves.put(key, plain)
        if self.panel.strike(faults.WrongKey, bot.id):
            key = self.mint.key()
        return inbound.Filed(ticket, self.download_url(ticket), key, len(plain), md5_hex(plain))

    def phone(self, who: str, now: float, *, since: int = 0) -> Json:
        """What a person's screen shows: bubbles in order, and per bot whether it types and what it may still send."""
        person = self.person(who)
        talks = []
        for bot in self.bots.values():
            chat = bot.chats.get(person.id)
            if chat is None and bot.owner != person.id:
                continue
            chat = chat or Chat()
            typing = chat.typing_since is not None and now - chat.typing_since < TYPING_SHOWN_S
            talks.append(
                {
                    "bot": bot.id,
                    "own": bot.owner == person.id,
                    "alive": bot.alive(now),
                    "typing": typing,
                    "budget_left": self._budget_left(chat, now),
                    "budget": self.settings.send_budget,
                }
            )
        return {
            "person": person.id,
            "name": person.name,
            "bots": talks,
            "bubbles": [b.view() for b in person.bubbles if b.seq > since],
            "typing_log": person.typing_log,
        }

    # --- login ---------------------------------------------------------------------------------------------------

    def create_ticket(self, bot_type: str, known_tokens: list[str], now: float) -> Json:
        if bot_type != "3":
            return {"ret": 2, "errmsg": "unsupported bot_type"}
        ticket_id = self.mint.qr_ticket()
        url = f"https://liteapp.weixin.qq.com/q/{self.mint.qr_code()}?qrcode={ticket_id}&bot_type=3"
        known = tuple(bot.id for token in known_tokens if (bot := self._by_token.get(token)))
        self.tickets.by_id[ticket_id] = Ticket(ticket_id, url, now, known)
        self.tell("ticket", now, ticket=ticket_id)
        return {"ret": 0, "qrcode": ticket_id, "qrcode_img_content": url}

    def scan(self, ticket_id: str, who: str, action: Action, now: float, *, verify_code: str, redirect: str) -> None:
        """raises Impossible when that QR can no longer be scanned"""
        ticket = self.tickets.by_id.get(ticket_id)
        if ticket is None or ticket not in self.tickets.pending(now):
            raise Impossible(f"no such pending QR: {ticket_id}")
        person = self.person(who)
        if action is Action.CONFIRM and self.settings.recognise_bound == "always":
            owned = {bot.id for bot in self.bots.values() if bot.owner == person.id and bot.alive(now)}
            if owned & set(ticket.known_bots):
                action = Action.ALREADY_BOUND
        self.tickets.act(ticket, action, person.id, verify_code=verify_code, redirect_host=redirect)
        self.tell("scan", now, ticket=ticket_id, person=person.id, status=ticket.status.value)
        self.on_change(ticket_id)

    def ticket_status(self, ticket_id: str, verify_code: str, host: str, now: float) -> Json | Scripted | None:
        match self.tickets.poll(ticket_id, verify_code, host, now):
            case Confirm(person):
                return self._credentials(person, now)
            case answer:
                return answer

    def held_ticket_status(self, ticket_id: str) -> Json:
        """The answer to a status poll whose hold ended without news."""
        ticket = self.tickets.by_id.get(ticket_id)
        return {"status": "expired"} if ticket is None else self.tickets.tell(ticket)

    def _credentials(self, owner: str, now: float) -> Json:
        for old in self.bots.values():
            if old.owner == owner and old.revoke_at is None:
                old.revoke_at = now + self.settings.revoke_after_s
                self.on_change(old.id)
        bot = Bot(bot_id := self.mint.bot_id(), owner, self.mint.bot_token(bot_id), now)
        self.bots[bot.id] = bot
        self._by_token[bot.token] = bot
        self.tell("bot", now, bot=bot.id, person=owner)
        return {
            "status": "confirmed",
            "bot_token": bot.token,
            "ilink_bot_id": bot.id,
            "baseurl": self.base_url,
            "ilink_user_id": owner,
        }

    def bot_by_token(self, token: str) -> Bot | None:
        return self._by_token.get(token)

    # --- getupdates ----------------------------------------------------------------------------------------------

    def begin_poll(self, bot: Bot, body: Json, now: float) -> Poll:
        bot.polls += 1
        bot.polls_in_flight += 1
        bot.polls_in_flight_max = max(bot.polls_in_flight_max, bot.polls_in_flight)
        self.tell("poll_began", now, bot=bot.id)
        asked = body.get("longpolling_timeout_ms")
        asked_ms = asked if isinstance(asked, int) and asked > 0 else None
        hold_s = self.settings.hold_s
        if asked_ms is not None and self.panel.on(faults.HonourHold, bot.id):
            hold_s = min(hold_s, asked_ms / 1000)
        if self.panel.strike(faults.NoHold, bot.id):
            hold_s = 0.0
        hang = self.panel.strike(faults.Hang, bot.id)
        hang_s = hang.hang_ms / 1000 if hang else 0.0
        own_hint = self.settings.hint_ms if self.settings.hint_ms is not None else round(self.settings.hold_s * 1000)
        hint: Json = {"longpolling_timeout_ms": own_hint if asked_ms is None else asked_ms}
        if odd := self.panel.strike(faults.OddHint, bot.id):
            hint = {} if odd.mode == "absent" else {"longpolling_timeout_ms": odd.value}
        issuer, position = _read_cursor(body.get("get_updates_buf"))
        # A cursor of another bot leaves the channel mute: that is what kept cursors do after a new login.
        mute = issuer != bot.id and issuer in self.bots
        return Poll(bot, position if issuer == bot.id else 0, mute, max(hold_s, hang_s), hint, now + hang_s)

    def end_poll(self, poll: Poll, now: float) -> None:
        poll.bot.polls_in_flight -= 1
        self.tell("poll_ended", now, bot=poll.bot.id)

    def try_poll(self, poll: Poll, now: float) -> Json | None:
        """One look into the queue; None = go on holding."""
        if poll.mute or now < poll.not_before:
            return None
        messages = self._take(poll.bot, poll.position, now)
        return self._updates(poll, messages) if messages else None

    def held_poll(self, poll: Poll) -> Json:
        """The answer to a poll whose hold ended without news."""
        return self._updates(poll, [])

    def next_due_at(self, poll: Poll, now: float) -> float | None:
        """When looking again may help without any event: a replay falls due, a hang ends, the token dies."""
        times = [w.due_at for w in poll.bot.waiting] + [poll.not_before]
        if poll.bot.revoke_at is not None:
            times.append(poll.bot.revoke_at)
        return min((t for t in times if t > now), default=None)

    def _take(self, bot: Bot, position: int, now: float) -> list[Any]:
        """Hands out what is due, once: whatever cursor comes later, it does not come back (Rewind aside)."""
        taken: list[Waiting] = []
        if self.panel.on(faults.Rewind, bot.id):
            taken += [w for w in bot.handed if w.seq > position]
        fresh = [w for w in bot.waiting if w.due_at <= now]
        if fresh:
            bot.waiting = [w for w in bot.waiting if w.due_at > now]
            taken += fresh
            for waiting in fresh:
                if waiting.seq > bot.handed_seq:
                    bot.handed.append(waiting)
                    bot.handed_seq = waiting.seq
                    taken += self._again(bot, waiting, now)
        if taken:
            self.tell("handed", now, bot=bot.id, count=len(taken))
        return [w.message for w in taken]

    def _again(self, bot: Bot, first: Waiting, now: float) -> list[Waiting]:
        """Second copies by the switches: those for this very batch are returned, later ones wait."""
        copies: list[Waiting] = []
        if duplicate := self.panel.strike(faults.Duplicate, bot.id):
            copy = first
            if duplicate.mode == "new_id" and isinstance(first.message, dict):
                bot.last_seq += 1
                renamed = {**first.message, "seq": bot.last_seq, "message_id": self.mint.message_id(now)}
                copy = Waiting(first.seq, renamed, now)
            if duplicate.mode == "same_batch":
                copies.append(copy)
            else:
                bot.waiting.append(copy)
        if replay := self.panel.strike(faults.Replay, bot.id):
            bot.waiting.append(Waiting(first.seq, first.message, now + replay.after_ms / 1000))
        return copies

    def _updates(self, poll: Poll, messages: list[Any]) -> Json:
        bot = poll.bot
        answer: Json = {"ret": 0} if self.panel.strike(faults.RetZero, bot.id) else {}
        answer |= {"msgs": messages, "sync_buf": "", "get_updates_buf": _write_cursor(bot)} | poll.hint
        if odd := self.panel.strike(faults.OddCursor, bot.id):
            if odd.value == "absent":
                del answer["get_updates_buf"]
            else:
                answer["get_updates_buf"] = ""
        return answer

    # --- sendmessage ---------------------------------------------------------------------------------------------

    def send(self, bot: Bot, body: Json, now: float) -> Json | Empty:
        """One send. The order of the checks is the service's; the token was checked before."""
        message = body.get("msg")
        message = message if isinstance(message, dict) else {}
        answer, outcome, message_id = self._judge_send(bot, message, now)
        record = {
            "n": self.sends[-1]["n"] + 1 if self.sends else 1,
            "at_ms": int(now * 1000),
            "bot": bot.id,
            "to": message.get("to_user_id"),
            "client_id": message.get("client_id"),
            "run_id": message.get("run_id"),
            "outcome": outcome,
            "answer": {} if isinstance(answer, Empty) else answer,
            "message_id": message_id,
            "text": _text_of(message),
        }
        self.sends.append(record)
        self.tell("sent", now, bot=bot.id, person=record["to"], outcome=outcome, n=record["n"])
        return answer

    def _judge_send(self, bot: Bot, message: Json, now: float) -> tuple[Json | Empty, str, str]:
        if rejected := self.panel.strike(faults.RejectSend, bot.id):
            return {rejected.envelope: rejected.code, "errmsg": rejected.errmsg}, "rejected", ""
        if self._throttled(bot, now):
            return {"ret": -2, "errmsg": "rate limited"}, "rejected", ""
        items = message.get("item_list")
        if not isinstance(items, list) or len(items) != 1 or not _well_formed(message, items[0]):
            return {"ret": -2, "errmsg": "invalid arguments"}, "rejected", ""
        if _inbound_only(items[0]):
            return {"ret": -2, "errmsg": "prepare failed"}, "rejected", ""
        receiver = message.get("to_user_id")
        chat = bot.chats.get(receiver) if isinstance(receiver, str) else None
        if chat is None and receiver != bot.owner:
            return {"ret": -3, "errmsg": "invalid arguments"}, "rejected", ""
        chat = bot.chats.setdefault(str(receiver), Chat())
        if len(_text_of(message).encode("utf-8", "surrogatepass")) > self.settings.text_bytes:
            return {"ret": -2, "errmsg": "prepare failed"}, "rejected", ""
        if self._budget_left(chat, now) <= 0:
            return {"ret": -2, "errmsg": "prepare failed"}, "rejected", ""

        client_id = message.get("client_id")
        key = client_id if isinstance(client_id, str) else ""
        if key in bot.client_ids:
            first = bot.client_ids[key]
            return {"ret": 0, "message_id": first}, "repeat", str(first)
        chat.sent += 1
        if not self._token_valid(chat, message.get("context_token"), now):
            return {"ret": 0}, "suppressed", ""
        nameless = self.panel.strike(faults.NoMessageId, bot.id)
        message_id = self.mint.message_id(now)
        bot.client_ids[key] = message_id
        delivered = nameless is None or nameless.delivery == "delivered"
        shown = delivered and self._deliver(bot, str(receiver), items[0], message, message_id, now)
        outcome = ("delivered" if shown else "hidden") if delivered else "dropped"
        if nameless is not None:
            blank: dict[str, Json | Empty] = {"ret": {"ret": 0}, "object": {}, "empty": Empty()}
            return blank[nameless.answer], outcome, str(message_id)
        told: int | str = str(message_id) if self.panel.on(faults.StringIds, bot.id) else message_id
        return {"ret": 0, "message_id": told}, outcome, str(message_id)

    def _throttled(self, bot: Bot, now: float) -> bool:
        throttle = self.panel.on(faults.Throttle, bot.id)
        if throttle is None:
            return False
        bot.recent_sends.append(now)
        recent = [t for t in bot.recent_sends if now - t < throttle.window_ms / 1000]
        if now < bot.throttled_until or len(recent) >= throttle.count:
            bot.throttled_until = now + throttle.pause_ms / 1000
            return True
        return False

    def _budget_left(self, chat: Chat, now: float) -> int:
        """Sends still taken; 0 outside the reply window."""
        if chat.last_inbound_at is None or now - chat.last_inbound_at >= self.settings.window_hours * 3600:
            return 0
        return max(0, self.settings.send_budget - chat.sent)

    def _token_valid(self, chat: Chat, token: object, now: float) -> bool:
        issued_at = chat.reply_tokens.get(token) if isinstance(token, str) else None
        return issued_at is not None and now - issued_at < self.settings.window_hours * 3600

    def _deliver(self, bot: Bot, receiver: str, item: Json, message: Json, message_id: int, now: float) -> bool:
        """Puts an item on the phone; False for kinds that no phone draws."""
        person = self.add_person(person_id=receiver, name="", now=now)
        text, media, kind = "", None, ""
        match item.get("type"):
            case 1:
                kind, text = "text", item["text_item"]["text"]
                if cut := self.panel.strike(faults.TruncateText, bot.id):
                    text = _shortened(text, cut)
            case 2:
                kind, media = "image", self._open("image", "", item["image_item"])
            case 4:
                kind, media = "file", self._open("file", item["file_item"].get("file_name", ""), item["file_item"])
            case 5:
                kind, media = "video", self._open("video", "", item["video_item"])
            case _:
                return False
        if message.get("message_state") == 1:
            return False
        client_id = str(message.get("client_id", ""))
        bubble = self._show(person, "bot", bot, kind, text, str(message_id), client_id, int(now * 1000), media)
        self.tell("bubble", now, bot=bot.id, person=person.id, bubble=bubble.seq)
        return True

    def _open(self, kind: str, name: str, body: Json) -> Media:
        """A phone's try at an outbound attachment: only key form HEX opens, and only with the object's own key."""
        reference = body.get("media")
        reference = reference if isinstance(reference, dict) else {}
        stored = self.shelves.fetch(str(reference.get("encrypt_query_param", "")))
        if stored is None:
            return self._keep(kind, name, b"", problem="no such object")
        try:
            key, form = read_key(str(reference.get("aes_key", "")))
            plain = decrypt(key, stored.secret)
        except ValueError:
            return self._keep(kind, name, b"", problem="the key does not fit")
        if form is not KeyForm.HEX:
            return self._keep(kind, name, b"", problem="the key is in the wrong form")
        if kind == "file" and body.get("len") != str(len(plain)):
            return self._keep(kind, name, plain, problem="the announced length is wrong")
        return self._keep(kind, name, plain)

    # --- typing and uploads --------------------------------------------------------------------------------------

    def config(self, bot: Bot, body: Json, now: float) -> Json:
        if refused := self.panel.strike(faults.RefuseTyping, bot.id, path="getconfig"):
            return {"ret": refused.code, "errmsg": refused.errmsg}
        user = body.get("ilink_user_id")
        if not isinstance(user, str) or not user:
            return {"ret": -2, "errmsg": "ilink_user_id required"}
        chat = bot.chats.get(user)
        if chat is None or chat.last_inbound_at is None or self._window_closed(chat, now):
            return {"ret": -4, "errmsg": "GetTypingTicket rpc failed"}
        ticket = self.mint.ticket()
        chat.typing_tickets[ticket] = now
        return {"ret": 0, "typing_ticket": ticket}

    def typing(self, bot: Bot, body: Json, now: float) -> Json:
        if refused := self.panel.strike(faults.RefuseTyping, bot.id, path="sendtyping"):
            return {"ret": refused.code, "errmsg": refused.errmsg}
        user, ticket, status = body.get("ilink_user_id"), body.get("typing_ticket"), body.get("status")
        chat = bot.chats.get(user) if isinstance(user, str) else None
        issued_at = chat.typing_tickets.get(ticket) if chat and isinstance(ticket, str) else None
        if chat is None or issued_at is None or now - issued_at >= self.settings.typing_ticket_s:
            return {"ret": -2, "errmsg": "invalid typing_ticket"}
        if status not in (1, 2):
            return {"ret": -2, "errmsg": "invalid arguments"}
        chat.typing_since = now if status == 1 else None
        person = self.add_person(person_id=str(user), name="", now=now)
        state = "typing" if status == 1 else "stopped"
        person.typing_log.append({"bot": bot.id, "state": state, "at_ms": int(now * 1000)})
        self.tell("typing", now, bot=bot.id, person=person.id, state=state)
        return {"ret": 0}

    def upload_url(self, bot: Bot, body: Json) -> Json:
        if refused := self.panel.strike(faults.RefuseUpload, bot.id):
            return {"ret": refused.code, "errmsg": refused.errmsg}
        filekey, size, raw_size = body.get("filekey"), body.get("filesize"), body.get("rawsize")
        hexes = (filekey, body.get("aeskey"), body.get("rawfilemd5"))
        if not all(isinstance(h, str) and _HEX32.match(h) for h in hexes) or body.get("media_type") not in (1, 2, 3, 4):
            return {"ret": -2, "errmsg": "invalid arguments"}
        if not isinstance(raw_size, int) or raw_size < 0 or size != padded_size(raw_size):
            return {"ret": -2, "errmsg": "invalid arguments"}
        user = body.get("to_user_id")
        if user != bot.owner and user not in bot.chats:
            return {"ret": -1, "errmsg": "invalid user"}
        answer: Json = {"ret": 0, "filekey": filekey, "taskid": self.mint.qr_code()}
        if body.get("no_need_thumb") is not True or self.panel.strike(faults.NoUploadUrl, bot.id):
            return answer
        parameter = self.shelves.announce(str(filekey), size)
        answer["upload_param"] = parameter
        if self.panel.strike(faults.UploadParamOnly, bot.id) is None:
            full = self.shelves.announce(str(filekey), size)
            answer["upload_full_url"] = f"{self.cdn_url}/upload?encrypted_query_param={quoted(full)}&filekey={filekey}"
            self.shelves.full_url_tickets.add(full)
        return answer

    def notify(self, bot: Bot, state: Literal["start", "stop"], now: float) -> Json:
        bot.online = state == "start"
        if state == "start":
            self.panel.revive(bot.id)
        self.tell("notify", now, bot=bot.id, state=state)
        return {"ret": 0, "errmsg": ""}

    def download_url(self, ticket: str) -> str:
        return f"{self.cdn_url}/download?encrypted_query_param={quoted(ticket)}"

    # --- shared --------------------------------------------------------------------------------------------------

    def tell(self, event: str, now: float, **data: Any) -> None:
        self.last_event += 1
        self.events.append({"seq": self.last_event, "at_ms": int(now * 1000), "event": event, **data})
        self.on_change(EVENTS)

    def _window_closed(self, chat: Chat, now: float) -> bool:
        return chat.last_inbound_at is None or now - chat.last_inbound_at >= self.settings.window_hours * 3600

    def _keep(self, kind: str, name: str, plain: bytes, *, problem: str = "") -> Media:
        media = Media(self.mint.qr_ticket(), kind, name, plain, problem)
        self.media[media.id] = media
        return media

    def _show(
        self,
        person: Person,
        side: Literal["me", "bot"],
        bot: Bot,
        kind: str,
        text: str,
        message_id: str,
        client_id: str,
        at_ms: int,
        media: Media | None,
    ) -> Bubble:
        self._last_bubble += 1
        bubble = Bubble(self._last_bubble, side, bot.id, kind, text, message_id, client_id, at_ms, media)
        person.bubbles.append(bubble)
        return bubble


def quoted(text: str) -> str:
    """JavaScript's encodeURIComponent."""
    return quote(text, safe="-_.!~*'()")


def _write_cursor(bot: Bot) -> str:
    return base64.b64encode(f"{bot.id}|{bot.handed_seq}".encode()).decode()


def _read_cursor(cursor: object) -> tuple[str, int]:
    """(bot id, position) of a cursor of ours; ("", 0) for an empty one or garbage, which the service takes too."""
    try:
        bot_id, _, position = base64.b64decode(str(cursor), validate=True).decode().partition("|")
        return bot_id, int(position)
    except (binascii.Error, ValueError):
        return "", 0


def _text_of(message: Json) -> str:
    items = message.get("item_list")
    first = items[0] if isinstance(items, list) and items and isinstance(items[0], dict) else {}
    item = first.get("text_item")
    text = item.get("text") if isinstance(item, dict) else None
    return text if isinstance(text, str) else ""


_MEMBERS = {
    1: "text_item",
    2: "image_item",
    3: "voice_item",
    4: "file_item",
    5: "video_item",
    11: "tool_call_start_item",
    12: "tool_call_result_item",
}


def _well_formed(message: Json, item: object) -> bool:
    """A bot's message (type 2, generating or finished) whose one item has the member its type asks for."""
    if message.get("message_type") != 2 or message.get("message_state") not in (1, 2) or not isinstance(item, dict):
        return False
    kind = item.get("type")
    member = item.get(_MEMBERS.get(kind, "")) if isinstance(kind, int) else None
    if not isinstance(member, dict):
        return False
    return kind != 1 or (isinstance(member.get("text"), str) and member["text"] != "")


def _inbound_only(item: Json) -> bool:
    """Members that only the service itself sets; a bot that copies them is refused."""
    if item["type"] == 1 and "create_time_ms" in item:
        return True
    body = item[_MEMBERS[item["type"]]]
    media = body.get("media")
    return "aeskey" in body or (isinstance(media, dict) and "full_url" in media)


def _shortened(text: str, cut: faults.TruncateText) -> str:
    if cut.unit == "characters":
        return text[: cut.limit]
    return text.encode()[: cut.limit].decode(errors="ignore")
