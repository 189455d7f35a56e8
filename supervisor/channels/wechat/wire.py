"""iLink's JSON ↔ our types. Pure: bytes and dicts in, values out; no clock, random number or socket.

In: HTTP answers and journal rows. Out: request bodies and headers, Batch, Inbound | Unreadable, receipts' codes.
Whatever a server or a peer puts into a message becomes a value here; only a whole answer that is no answer raises.
Neighbours: client.py and login.py send what is built here, media.py takes keys and addresses from here.
"""

import base64
import binascii
import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard
from urllib.parse import quote, urlsplit

from protocol.content import Inbound, Media, MediaKind, Quote, Unreadable
from protocol.ids import Cursor, MessageId, PeerId, ReplyToken, SendKey
from supervisor.channels.base import Batch, RawMessage, Refused, SignedOut, TypingState, Unavailable

GET_BOT_QRCODE = "ilink/bot/get_bot_qrcode"
GET_QRCODE_STATUS = "ilink/bot/get_qrcode_status"
GETUPDATES = "ilink/bot/getupdates"
SENDMESSAGE = "ilink/bot/sendmessage"
GETUPLOADURL = "ilink/bot/getuploadurl"
GETCONFIG = "ilink/bot/getconfig"
SENDTYPING = "ilink/bot/sendtyping"
NOTIFYSTART = "ilink/bot/msg/notifystart"
NOTIFYSTOP = "ilink/bot/msg/notifystop"

# An empty body is a normal, if unhelpful, answer of these; getupdates and getconfig without a body have not answered.
MAY_BE_EMPTY = frozenset({SENDMESSAGE, SENDTYPING, NOTIFYSTART, NOTIFYSTOP})

SIGNED_OUT_CODE = -14
KNOWN_TOKENS = 10  # most tokens that get_bot_qrcode takes
DEFAULT_AGENT = "OpenClaw"  # what the official client says when it has no name of its own
AGENT_BYTES = 256

USER, BOT = 1, 2  # message_type
FINISHED = 2  # message_state
TEXT, IMAGE, VOICE, FILE, VIDEO = 1, 2, 3, 4, 5  # item type
MEMBERS = {TEXT: "text_item", IMAGE: "image_item", VOICE: "voice_item", FILE: "file_item", VIDEO: "video_item"}
MEDIA_KINDS = {IMAGE: MediaKind.IMAGE, VOICE: MediaKind.VOICE, FILE: MediaKind.FILE, VIDEO: MediaKind.VIDEO}
DECLARED_SIZE = {IMAGE: "mid_size", FILE: "len", VIDEO: "video_size"}


# --- JSON -----------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """text with halves of a surrogate pair joined where they meet and U+FFFD where one stands alone."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def to_json(value: object) -> bytes:
    return clean(json.dumps(value, ensure_ascii=False, separators=(",", ":"))).encode()


def from_json(body: bytes) -> object:
    """The value in body; broken UTF-8 becomes U+FFFD, since WeChat hands a batch out only once.

    raises ValueError if it is no JSON, or nested beyond what can be read
    """
    try:
        text = body.decode("utf-8", "replace").removeprefix("\ufeff")
        value: object = json.loads(text, parse_int=_integer, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _integer(digits: str) -> int | str:
    # int() refuses thousands of digits; one such number in one message would cost its whole batch
    return int(digits) if len(digits) <= 40 else digits


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _object(value: object) -> dict[str, object]:
    return value if _is_object(value) else {}


def _text(value: object) -> str:
    return clean(value) if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    """A whole number, written as a number or as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value):
        return int(value)
    return None


def _id(value: object) -> str:
    """An id as text: uint64 ids arrive as bare numbers beyond 2^53 or as text; 0 and "" mean there is none."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return ""
    text = clean(str(value)).strip()
    return "" if text == "0" else text


# --- requests -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class App:
    """How we introduce ourselves. bot_agent: as configured, not yet sanitised."""

    channel_version: str
    bot_agent: str

    def base_info(self) -> dict[str, object]:
        return {"channel_version": self.channel_version, "bot_agent": bot_agent(self.bot_agent)}


def bot_agent(configured: str | None) -> str:
    """Products `name/version (comment)`; what does not parse is left out, then trailing products over 256 bytes.

    source  ilink-protocol.md 1.3
    """
    products: list[str] = []
    may_comment = False
    for word in re.findall(r"\([^()]*\)|\S+", configured or ""):
        if may_comment and re.fullmatch(r"\([ -~]{1,64}\)", word):
            products[-1] += f" {word}"
            may_comment = False
        elif may_comment := re.fullmatch(r"[A-Za-z0-9_.-]{1,32}/[A-Za-z0-9_.+-]{1,32}", word) is not None:
            products.append(word)
    while products and len(" ".join(products)) > AGENT_BYTES:
        products.pop()
    return " ".join(products) or DEFAULT_AGENT


def client_version(channel_version: str) -> int:
    """`major.minor.patch` in three bytes; a part that is missing or no number counts as 0."""
    parts = channel_version.split(".")
    numbers = [re.match(r"[0-9]{1,9}", part.strip()) for part in parts[:3]]
    major, minor, patch = ([int(number[0]) & 255 if number else 0 for number in numbers] + [0, 0, 0])[:3]
    return major << 16 | minor << 8 | patch


def wechat_uin(random_uint32: int) -> str:
    return base64.b64encode(str(random_uint32).encode()).decode()


def get_headers(app: App) -> dict[str, str]:
    return {"iLink-App-Id": "bot", "iLink-App-ClientVersion": str(client_version(app.channel_version))}


def post_headers(app: App, token: str, *, random_uint32: int) -> dict[str, str]:
    """All of them every time: a missing one has been answered with a misleading -14."""
    headers = {
        "Content-Type": "application/json",
        "AuthorizationType": "ilink_bot_token",
        "X-WECHAT-UIN": wechat_uin(random_uint32),
    } | get_headers(app)
    if token.strip():
        headers["Authorization"] = f"Bearer {token.strip()}"
    return headers


def url(base_url: str, path: str) -> str:
    return f"{base_url.rstrip('/')}/{path}"


def qrcode_body(known_tokens: Sequence[str]) -> dict[str, object]:
    """known_tokens: newest first."""
    return {"local_token_list": list(known_tokens[:KNOWN_TOKENS])}


def status_path(ticket: str, verify_code: str) -> str:
    code = f"&verify_code={encode_component(verify_code)}" if verify_code else ""
    return f"{GET_QRCODE_STATUS}?qrcode={encode_component(ticket)}{code}"


def getupdates_body(app: App, cursor: Cursor, *, wanted_hold_ms: int) -> dict[str, object]:
    """wanted_hold_ms: 0 leaves the hold to the server."""
    wish: dict[str, object] = {"longpolling_timeout_ms": wanted_hold_ms} if wanted_hold_ms > 0 else {}
    return {"get_updates_buf": cursor} | wish | {"base_info": app.base_info()}


def send_body(
    app: App, peer: PeerId, send_key: SendKey, reply_token: ReplyToken | None, item: Mapping[str, object]
) -> dict[str, object]:
    """One item only: WeChat answers two of them with `invalid arguments`."""
    message: dict[str, object] = {
        "from_user_id": "",
        "to_user_id": peer,
        "client_id": send_key,
        "message_type": BOT,
        "message_state": FINISHED,
        "item_list": [item],
    }
    if reply_token:
        message["context_token"] = reply_token
    return {"msg": message, "base_info": app.base_info()}


def text_item(text: str) -> dict[str, object]:
    return {"type": TEXT, "text_item": {"text": text}}


@dataclass(frozen=True, slots=True)
class Plain:
    """A file before it is enciphered. md5: of its bytes, in hex"""

    name: str
    size: int
    md5: str
    picture: bool


UPLOAD_IMAGE, UPLOAD_FILE = 1, 3  # media_type: numbered otherwise than the item types


def getuploadurl_body(app: App, peer: PeerId, plain: Plain, *, filekey: str, key: bytes) -> dict[str, object]:
    """filekey: 32 hex digits of our own choice. Without it or no_need_thumb no address is named."""
    return {
        "filekey": filekey,
        "media_type": UPLOAD_IMAGE if plain.picture else UPLOAD_FILE,
        "to_user_id": peer,
        "rawsize": plain.size,
        "rawfilemd5": plain.md5,
        "filesize": padded_size(plain.size),
        "no_need_thumb": True,
        "aeskey": key.hex(),
        "base_info": app.base_info(),
    }


def upload_addresses(
    answer: Mapping[str, object], filekey: str, *, cdn_base_url: str, trusted_hosts: Sequence[str]
) -> tuple[str, ...]:
    """Where the enciphered bytes may go, best first: the complete address, then the one built of a parameter, which
    answers 500 for larger files (B-083). Empty when the answer names neither."""
    full, param = _text(answer.get("upload_full_url")).strip(), _text(answer.get("upload_param"))
    found = []
    if full and may_move_to(full.partition("?")[0], own_base_url=cdn_base_url, trusted_hosts=trusted_hosts):
        found.append(full)
    if param:
        found.append(upload_url(cdn_base_url, param, filekey))
    return tuple(found)


def media_item(plain: Plain, *, ticket: str, aes_key: str) -> dict[str, object]:
    """aes_key: as phones read it (media.outbound_key). No inbound-only member: such messages are dropped."""
    medium = {"encrypt_query_param": ticket, "aes_key": aes_key, "encrypt_type": 1}
    if plain.picture:
        return {"type": IMAGE, "image_item": {"media": medium, "mid_size": padded_size(plain.size)}}
    return {"type": FILE, "file_item": {"media": medium, "file_name": plain.name, "len": str(plain.size)}}


def getconfig_body(app: App, peer: PeerId, reply_token: ReplyToken | None) -> dict[str, object]:
    token: dict[str, object] = {"context_token": reply_token} if reply_token else {}
    return {"ilink_user_id": peer} | token | {"base_info": app.base_info()}


def sendtyping_body(app: App, peer: PeerId, ticket: str, state: TypingState) -> dict[str, object]:
    status = {TypingState.TYPING: 1, TypingState.STOPPED: 2}[state]
    return {"ilink_user_id": peer, "typing_ticket": ticket, "status": status, "base_info": app.base_info()}


def notify_body(app: App) -> dict[str, object]:
    return {"base_info": app.base_info()}


# --- answers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read whole. retry_after_s: what its Retry-After said, else 0. ticket: its x-encrypted-param"""

    status: int
    body: bytes
    retry_after_s: float = 0.0
    ticket: str = ""


def read_answer(endpoint: str, answer: Answer) -> dict[str, object]:
    """The object of a good answer. Errors arrive on HTTP 200, in `errcode` or in `ret`; neither = success.

    raises  Unavailable (no 2xx, no JSON object), SignedOut (-14), Refused (any other code)
    """
    name = endpoint.rpartition("/")[2]
    if not 200 <= answer.status < 300:
        raise Unavailable(f"{name}: HTTP {answer.status}", retry_after_s=answer.retry_after_s)
    if endpoint in MAY_BE_EMPTY and not answer.body.strip():
        return {}
    try:
        value = from_json(answer.body)
    except ValueError:
        raise Unavailable(f"{name}: the answer is no JSON ({len(answer.body)} bytes)") from None
    if not _is_object(value):
        raise Unavailable(f"{name}: the answer is no JSON object ({len(answer.body)} bytes)")
    codes = [_whole(value.get("errcode")), _whole(value.get("ret"))]
    if SIGNED_OUT_CODE in codes:
        raise SignedOut(f"{name}: {SIGNED_OUT_CODE}{_spoken(value)}")
    for code in codes:
        if code:
            raise Refused(f"{name}: {code}{_spoken(value)}", code=code)
    return value


def _spoken(answer: Mapping[str, object]) -> str:
    """errmsg where it is plain words: anything else might quote a token into the log."""
    message = answer.get("errmsg")
    plain = isinstance(message, str) and re.fullmatch(r"[A-Za-z_]{1,20}(?: [A-Za-z_]{1,20}){0,7}", message)
    return f" {message}" if plain else ""


def sent_message_id(answer: Mapping[str, object]) -> MessageId | None:
    return MessageId(found) if (found := _id(answer.get("message_id"))) else None


def typing_ticket(answer: Mapping[str, object]) -> str:
    return _text(answer.get("typing_ticket"))


# --- batches --------------------------------------------------------------------------------------------------


def parse_batch(answer: Mapping[str, object]) -> Batch:
    """Never raises: an entry that is no message is kept as it came, under a name made of its bytes."""
    entries = answer.get("msgs")
    if entries is None:
        entries = []
    elif not isinstance(entries, list):
        entries = [entries]
    cursor = _text(answer.get("get_updates_buf"))
    hint_ms = answer.get("longpolling_timeout_ms")
    said = isinstance(hint_ms, int | float) and not isinstance(hint_ms, bool) and abs(hint_ms) < 1e15
    return Batch(
        messages=tuple(_raw_message(entry) for entry in entries),
        cursor=Cursor(cursor) if cursor else None,
        hold_s=hint_ms / 1000 if said and isinstance(hint_ms, int | float) else None,
    )


def _raw_message(entry: object) -> RawMessage:
    try:
        raw = to_json(entry)
    except RecursionError:
        # Read from one stack depth less than it is written: practically out of reach, but it must not end the poll.
        raw = b'{"unreadable":"nested too deeply"}'
    message = _object(entry)
    return RawMessage(
        message_id=message_id(message, raw),
        sender=PeerId(_text(message.get("from_user_id"))),
        created_at_ms=_created_at_ms(message),
        reply_token=_reply_token(message),
        raw=raw,
        content=_content(message),
    )


# What differs when the same message is handed out once more under a new id.
_OF_ONE_DELIVERY = frozenset({"msg_id", "create_time_ms", "update_time_ms", "is_completed"})


def _content(message: Mapping[str, object]) -> bytes:
    """The items and the group, without ids and times; empty when there are none to compare."""
    items = message.get("item_list")
    if not isinstance(items, list) or not items:
        return b""
    told = [{key: value for key, value in _object(item).items() if key not in _OF_ONE_DELIVERY} for item in items]
    try:
        return to_json({"group": message.get("group_id"), "items": told})
    except RecursionError:
        return b""


def message_id(message: Mapping[str, object], raw: bytes) -> MessageId:
    """The first name that a message has: its own id, its first item's, its sender's, its number, else its bytes' hash.

    All but the first carry a prefix, so that a number from one series never meets an equal one from another.
    """
    if own := _id(message.get("message_id")):
        return MessageId(own)
    items = message.get("item_list")
    first = _object(items[0]) if isinstance(items, list) and items else {}
    for prefix, value in (
        ("item", first.get("msg_id")),
        ("client", message.get("client_id")),
        ("seq", message.get("seq")),
    ):
        if name := _id(value):
            return MessageId(f"{prefix}:{name}")
    return MessageId(f"hash:{hashlib.sha256(raw).hexdigest()[:32]}")


def _created_at_ms(message: Mapping[str, object]) -> int | None:
    at = _whole(message.get("create_time_ms"))
    return at if at is not None and 0 < at < 2**53 else None


def _reply_token(message: Mapping[str, object]) -> ReplyToken | None:
    token = _text(message.get("context_token"))
    return ReplyToken(token) if token else None


class WeChatReader:
    """Journal rows → our types."""

    def parse(self, raw: bytes) -> Inbound | Unreadable:
        try:
            message = from_json(raw)
            return parse_message(message if _is_object(message) else None, raw)
        except (ValueError, RecursionError) as error:
            return Unreadable(message_id({}, raw), f"not JSON: {type(error).__name__}")

    def part_of(self, text: str, partial: bytes) -> str | None:
        return resolve_partial_quote(text, partial)


def parse_message(message: Mapping[str, object] | None, raw: bytes) -> Inbound | Unreadable:
    if message is None:
        return Unreadable(message_id({}, raw), "not a JSON object")
    name = message_id(message, raw)
    sender = _text(message.get("from_user_id"))
    echo = _whole(message.get("message_type")) == BOT
    if not sender and not echo:
        return Unreadable(name, "no sender")
    listed = message.get("item_list")
    items = listed if isinstance(listed, list) else []
    quoted = next((ref for item in items if (ref := _object(_object(item).get("ref_msg")))), None)
    media = [found for item in items if (found := _media(item))]
    if quoted and not media:
        # As the official client does: "what is this?" under a quoted picture means the picture.
        media = [found for found in [_media(quoted.get("message_item"))] if found and found.kind in QUOTED_KINDS]
    return Inbound(
        message_id=name,
        sender=PeerId(sender),
        group_id=_id(message.get("group_id")),
        created_at_ms=_created_at_ms(message),
        reply_token=_reply_token(message),
        echo=echo,
        text="\n".join(said for item in items if (said := _said(item))),
        media=tuple(media),
        quote=_quote(quoted) if quoted else None,
    )


QUOTED_KINDS = (MediaKind.IMAGE, MediaKind.FILE)


def _kind(item: Mapping[str, object]) -> int | None:
    """The item's type; without one, whichever member it carries."""
    kind = _whole(item.get("type"))
    if kind is not None:
        return kind
    return next((known for known, member in MEMBERS.items() if member in item), None)


def _said(item: object) -> str:
    """The words of a text item, or WeChat's own transcript of a voice item."""
    entry = _object(item)
    kind = _kind(entry)
    return _text(_object(entry.get(MEMBERS[kind])).get("text")) if kind in (TEXT, VOICE) else ""


def _media(item: object) -> Media | None:
    """What an item announces beside words; None for text, and for type 0, which stands for nothing."""
    if item is None:
        return None
    entry = _object(item)
    kind = _kind(entry)
    if kind in (0, TEXT):
        return None
    if kind not in MEDIA_KINDS:
        # Stickers, places, cards: no published type. The number is all that can be told about them.
        return Media(MediaKind.UNKNOWN, f"type {kind}" if kind is not None else "no type", "", None, to_json(item))
    member = _object(entry.get(MEMBERS[kind]))
    size = _whole(member.get(DECLARED_SIZE.get(kind, "")))
    return Media(
        kind=MEDIA_KINDS[kind],
        name=_text(member.get("file_name")),
        transcript=_text(member.get("text")) if kind == VOICE else "",
        size_bytes=size if size is not None and 0 <= size < 2**53 else None,
        wire=to_json(item),
    )


def _quote(ref: Mapping[str, object]) -> Quote:
    """Newer phones send only the quoted message's id (`svr_id`), older ones its content."""
    item = _object(ref.get("message_item"))
    partial = ref.get("partial_text")
    quoted_id = _id(ref.get("svr_id")) or _id(item.get("msg_id"))
    return Quote(
        text=_said(item) or _text(ref.get("title")),
        message_id=MessageId(quoted_id) if quoted_id else None,
        partial=to_json(partial) if _is_object(partial) else None,
    )


def resolve_partial_quote(text: str, partial: bytes) -> str | None:
    """The words a peer selected in `text`, the quoted message; None where they cannot be told.

    partial  `{start, end, startindex, endindex, quotemd5}`: the startindex-th `start`, through the endindex-th `end`,
             counted over the whole text or, failing that, behind `start`; a hash decides between the two
    source   ilink-protocol.md 4.3
    """
    try:
        wanted = _object(from_json(partial))
    except ValueError:
        return None
    start, end = _text(wanted.get("start")), _text(wanted.get("end"))
    start_index, end_index = _whole(wanted.get("startindex")) or 0, _whole(wanted.get("endindex")) or 0
    begin = _nth(text, start, start_index, 0)
    if begin is None:
        return None
    candidates = []
    over_all = _nth(text, end, end_index, 0)
    if over_all is not None and over_all >= begin:
        candidates.append(text[begin : max(over_all + len(end), begin + len(start))])
    behind = _nth(text, end, end_index, begin + len(start))
    if behind is not None:
        candidates.append(text[begin : behind + len(end)])
    digest = _text(wanted.get("quotemd5")).lower()
    if digest:
        candidates = [found for found in candidates if hashlib.md5(clean(found).encode()).hexdigest() == digest]
    return candidates[0] if candidates else None


def _nth(text: str, part: str, index: int, begin: int) -> int | None:
    """Where the index-th (from 0) occurrence of part begins; they do not overlap."""
    if not part or index < 0:
        return None
    at = begin - len(part)
    for _ in range(min(index, len(text)) + 1):
        at = text.find(part, at + len(part))
        if at < 0:
            return None
    return at


# --- addresses and keys ---------------------------------------------------------------------------------------


def encode_component(text: str) -> str:
    """JavaScript's encodeURIComponent."""
    return quote(clean(text), safe="-_.!~*'()")


def download_url(cdn_base_url: str, encrypt_query_param: str) -> str:
    return url(cdn_base_url, f"download?encrypted_query_param={encode_component(encrypt_query_param)}")


def upload_url(cdn_base_url: str, upload_param: str, filekey: str) -> str:
    query = f"encrypted_query_param={encode_component(upload_param)}&filekey={encode_component(filekey)}"
    return url(cdn_base_url, f"upload?{query}")


def padded_size(plain_bytes: int) -> int:
    return (plain_bytes // 16 + 1) * 16


def aes_key(text: str) -> bytes:
    """The 16 bytes in a CDN medium's `aes_key`: base64 of them, or base64 of their 32 hex digits.

    raises ValueError on anything else
    """
    tidy = text.strip().replace("-", "+").replace("_", "/").rstrip("=")
    try:
        data = base64.b64decode(tidy + "=" * (-len(tidy) % 4), validate=True)
    except binascii.Error:
        raise ValueError("the key is no base64") from None
    if len(data) == 16:
        return data
    if re.fullmatch(rb"[0-9A-Fa-f]{32}", data):
        return bytes.fromhex(data.decode())
    raise ValueError(f"a key of {len(data)} bytes")


_ORIGIN = re.compile(r"(https?)://([A-Za-z0-9.-]+|\[::1\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def may_move_to(address: str, *, own_base_url: str, trusted_hosts: Sequence[str]) -> bool:
    """May the bot token go to this base URL, named by a server? The official client never asks.

    Yes for https on a trusted domain or below it, for the origin that we are configured with, and for loopback where
    we are configured with loopback. The strict form leaves two URL parsers nothing to disagree about.
    """
    found = _ORIGIN.fullmatch(address)
    if not found:
        return False
    scheme, host = found[1], found[2].lower()
    own = urlsplit(own_base_url)
    if is_loopback(host):
        return is_loopback(own.hostname or "")
    if (scheme, f"{host}{found[3] or ''}") == (own.scheme, own.netloc.lower()):
        return True
    domains = [domain.lower().strip(".") for domain in trusted_hosts]
    return scheme == "https" and any(host == domain or host.endswith(f".{domain}") for domain in domains if domain)
