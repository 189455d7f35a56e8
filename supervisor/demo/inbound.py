"""What a person says, as the service words it: Said (the control API's form) → one WeixinMessage. Pure.

The forms follow captures: one item per message as a rule, bare uint64 ids, sizes of the ciphertext for pictures, a
file's length as a decimal string.
"""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from supervisor.demo.cdn import KeyForm, padded_size, write_key

Json = dict[str, Any]

MediaKind = Literal["image", "file", "voice", "video"]
_ITEM_TYPES = {"image": 2, "voice": 3, "file": 4, "video": 5}


class Attachment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something a person attaches. data travels as base64.

    key_form    hex (captures) · raw · absent: no key at all, the object lies there in plain
    address     full_url: a complete URL beside the ticket · ticket: only encrypt_query_param · absent: neither
    transcript  WeChat's own words for a voice message; None = it made none
    """

    kind: MediaKind
    data: bytes = b""
    name: str = ""
    transcript: str | None = None
    key_form: Literal["hex", "raw", "absent"] = "hex"
    address: Literal["full_url", "ticket", "absent"] = "full_url"
    play_ms: int = 2380
    encode_type: int = 4


class QuoteOf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The message being answered. text: "" = looked up by id. partial: the wire's own partial_text object."""

    message_id: str = ""
    text: str = ""
    form: Literal["full", "id_only"] = "full"
    partial: Json | None = None


class Said(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a person.

    to         a bot's id, or the person who scanned it; "" = their own bot, else the oldest live one
    item       a raw item instead of text or attachment, e.g. {"type": 99}
    overrides  members laid over the finished message: ids, times, anything
    raw        the whole message verbatim, of any shape; everything else is ignored then
    """

    to: str = ""
    text: str | None = None
    attachment: Attachment | None = None
    quote: QuoteOf | None = None
    item: Json | None = None
    group_id: str = ""
    overrides: Json = {}
    raw: Any = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Filed:
    """An attachment on the CDN."""

    ticket: str
    url: str
    key: bytes
    plain_bytes: int
    md5: str


@dataclass(frozen=True, slots=True)
class Envelope:
    """Who, to whom, when, under which ids."""

    seq: int
    message_id: int | str
    sender: str
    bot_id: str
    reply_token: str
    at_ms: int


def message(envelope: Envelope, items: list[Json], *, group_id: str) -> Json:
    return {
        "seq": envelope.seq,
        "message_id": envelope.message_id,
        "from_user_id": envelope.sender,
        "to_user_id": envelope.bot_id,
        "client_id": "",
        "create_time_ms": envelope.at_ms,
        "update_time_ms": envelope.at_ms,
        "delete_time_ms": 0,
        "session_id": "",
        "group_id": group_id,
        "message_type": 1,
        "message_state": 2,
        "context_token": envelope.reply_token,
        "item_list": items,
    }


def text_item(text: str, at_ms: int) -> Json:
    return {**_common(1, at_ms), "text_item": {"text": text}}


def media_item(attachment: Attachment, filed: Filed, at_ms: int) -> Json:
    media: Json = {}
    if attachment.address != "absent":
        media["encrypt_query_param"] = filed.ticket
    if attachment.key_form != "absent":
        media["aes_key"] = write_key(filed.key, KeyForm.RAW if attachment.key_form == "raw" else KeyForm.HEX)
    if attachment.address == "full_url":
        media["full_url"] = filed.url
    return {
        **_common(_ITEM_TYPES[attachment.kind], at_ms),
        f"{attachment.kind}_item": _media_body(attachment, filed, media),
    }


def quote_reference(quote: QuoteOf, text: str) -> Json:
    """The ref_msg member. text: what the quoted message said."""
    reference: Json = {}
    if quote.message_id:
        reference["svr_id"] = int(quote.message_id)
    if quote.form == "full":
        reference["title"] = text
        quoted: Json = {"type": 1, "text_item": {"text": text}}
        if quote.message_id:
            quoted["msg_id"] = int(quote.message_id)
        reference["message_item"] = quoted
    if quote.partial is not None:
        reference["partial_text"] = quote.partial
    return reference


def id_only(item: Json) -> Json:
    """The item with its quote reduced to what newer phones send."""
    reference = item.get("ref_msg")
    if not isinstance(reference, dict) or "svr_id" not in reference:
        return item
    kept = {name: reference[name] for name in ("svr_id", "partial_text") if name in reference}
    return {**item, "ref_msg": kept}


def _common(item_type: int, at_ms: int) -> Json:
    return {
        "type": item_type,
        "create_time_ms": at_ms,
        "update_time_ms": at_ms,
        "is_completed": True,
        "button_item_list": [],
    }


def _media_body(attachment: Attachment, filed: Filed, media: Json) -> Json:
    stored_bytes = padded_size(filed.plain_bytes)
    match attachment.kind:
        case "image":
            body: Json = {"media": media, "mid_size": stored_bytes, "hd_size": stored_bytes}
            if attachment.key_form == "hex":
                body["aeskey"] = filed.key.hex()
            return body
        case "file":
            return {"media": media, "file_name": attachment.name, "md5": filed.md5, "len": str(filed.plain_bytes)}
        case "video":
            return {"media": media, "video_size": stored_bytes, "play_length": 3, "video_md5": filed.md5}
        case "voice":
            voice: Json = {
                "media": media,
                "encode_type": attachment.encode_type,
                "bits_per_sample": 16,
                "sample_rate": 16000,
                "playtime": attachment.play_ms,
            }
            if attachment.transcript is not None:
                voice["text"] = attachment.transcript
            return voice
