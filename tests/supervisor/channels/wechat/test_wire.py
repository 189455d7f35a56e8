"""iLink's JSON against computed vectors, and against anything else a server or a peer may put there."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.content import Inbound, MediaKind, Unreadable
from protocol.ids import Cursor, PeerId, ReplyToken, SendKey
from supervisor.channels.base import Refused, SignedOut, TypingState, Unavailable
from supervisor.channels.wechat import wire
from supervisor.channels.wechat.wire import Answer, App, WeChatReader

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "data" / "ilink-vectors.json").read_text())
OFFICIAL = App("2.4.9", "OpenClaw")
PEER = PeerId("o9cq80AbCdEfGhIjKlMnOpQrStUv@im.wechat")
KEY = SendKey("openclaw-weixin:1790000000000-deadbeef")
TOKEN = ReplyToken("AARzJWctxtokenexample")


def cases(name: str) -> list[Any]:
    return list(VECTORS[name])


# --- requests -------------------------------------------------------------------------------------------------


def test_bodies_are_the_official_ones_member_for_member_and_in_their_order() -> None:
    official = VECTORS["request_bodies_2_4_9"]
    ours = {
        "get_bot_qrcode": wire.qrcode_body([]),
        "getupdates_first": wire.getupdates_body(OFFICIAL, Cursor(""), wanted_hold_ms=0),
        "sendmessage_text": wire.send_body(OFFICIAL, PEER, KEY, TOKEN, wire.text_item("hello")),
        "getconfig": wire.getconfig_body(OFFICIAL, PEER, TOKEN),
        "sendtyping_start": wire.sendtyping_body(OFFICIAL, PEER, "VElDS0VU", TypingState.TYPING),
        "sendtyping_stop": wire.sendtyping_body(OFFICIAL, PEER, "VElDS0VU", TypingState.STOPPED),
        "notifystart": wire.notify_body(OFFICIAL),
    }

    for name, body in ours.items():
        assert wire.to_json(body) == json.dumps(official[name], separators=(",", ":"), ensure_ascii=False).encode(), (
            name
        )


def test_a_body_leaves_out_what_is_unknown_and_keeps_base_info_last() -> None:
    send = wire.send_body(OFFICIAL, PEER, KEY, None, wire.text_item("hello"))
    config = wire.getconfig_body(OFFICIAL, PEER, None)
    poll = wire.getupdates_body(OFFICIAL, Cursor("c"), wanted_hold_ms=9000)

    assert "context_token" not in json.dumps([send, config])
    assert list(send)[-1] == list(config)[-1] == list(poll)[-1] == "base_info"
    assert poll["longpolling_timeout_ms"] == 9000


def test_only_the_ten_newest_tokens_are_shown_at_login() -> None:
    body = wire.qrcode_body([f"token-{number}" for number in range(12)])

    assert body == {"local_token_list": [f"token-{number}" for number in range(10)]}


def test_headers_are_the_six_official_ones() -> None:
    expected = VECTORS["headers_2_4_9"]

    with_token = wire.post_headers(OFFICIAL, " <bot_token> ", random_uint32=305419896)
    without = wire.post_headers(OFFICIAL, "  ", random_uint32=1)

    assert with_token == expected["post_with_token"] | {"X-WECHAT-UIN": "MzA1NDE5ODk2"}
    assert without == expected["post_without_token"] | {"X-WECHAT-UIN": "MQ=="}
    assert wire.get_headers(OFFICIAL) == expected["get_qrcode_status"]


@pytest.mark.parametrize("case", cases("x_wechat_uin"), ids=lambda case: case["decimal"])
def test_the_uin_header_is_base64_of_decimal_digits(case: dict[str, Any]) -> None:
    assert wire.wechat_uin(case["uint32"]) == case["header"]


@pytest.mark.parametrize("case", cases("client_version"), ids=lambda case: case["version"])
def test_the_client_version_is_three_bytes(case: dict[str, Any]) -> None:
    assert wire.client_version(case["version"]) == case["value"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("nightly", 0), ("2", 131072), ("2.4", 132096), ("2.4.9-beta.0", 132105), ("1.2.3.4", 66051)],
)
def test_a_channel_version_of_another_form_still_gives_a_number(text: str, value: int) -> None:
    assert wire.client_version(text) == value


@pytest.mark.parametrize("case", cases("bot_agent"), ids=lambda case: repr(case["in"])[:40])
def test_the_bot_agent_is_sanitised_as_officially(case: dict[str, Any]) -> None:
    assert wire.bot_agent(case["in"]) == case["out"]


@given(st.text(max_size=400))
def test_any_configured_bot_agent_becomes_one_that_parses_again(text: str) -> None:
    agent = wire.bot_agent(text)

    assert 0 < len(agent.encode()) <= wire.AGENT_BYTES
    assert wire.bot_agent(agent) == agent


def test_b048_half_a_surrogate_in_a_text_is_sent_as_a_replacement_character() -> None:
    body = wire.to_json(wire.text_item("ok \ud83d done \ud83c\udfa9"))

    assert json.loads(body)["text_item"]["text"] == "ok \ufffd done 🎩"


# --- answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", cases("answers"), ids=lambda case: f"{case['endpoint']}-{case['http_status']}-{case['body'][:24]}"
)
def test_b004_every_answer_means_what_a_careful_client_concludes(case: dict[str, Any]) -> None:
    endpoint = f"ilink/bot/{case['endpoint']}"

    assert conclusion(endpoint, Answer(case["http_status"], case["body"].encode())) == case["careful_client"]


def conclusion(endpoint: str, answer: Answer) -> str:
    try:
        read = wire.read_answer(endpoint, answer)
    except Unavailable:
        return "transport_error"
    except SignedOut:
        return "stale_token"
    except Refused as error:
        assert error.code < 0
        return "rejected"
    if endpoint == wire.SENDMESSAGE and wire.sent_message_id(read) is None:
        return "accepted_unconfirmed"
    return "ok"


@pytest.mark.parametrize(
    "endpoint",
    [wire.GETUPDATES, wire.SENDMESSAGE, wire.GETCONFIG, wire.SENDTYPING, wire.NOTIFYSTART, wire.GETUPLOADURL],
)
@pytest.mark.parametrize(
    "body",
    [
        '{"errcode":-14,"errmsg":"session timeout"}',
        '{"ret":-14}',
        '{"ret":0,"errcode":-14}',
        '{"ret":-14,"errcode":0}',
        '{"ret":"-14"}',
    ],
)
def test_b010_a_token_that_is_not_accepted_is_seen_on_every_endpoint(endpoint: str, body: str) -> None:
    with pytest.raises(SignedOut):
        wire.read_answer(endpoint, Answer(200, body.encode()))


def test_a_refusal_keeps_its_code_and_tells_only_plain_words() -> None:
    with pytest.raises(Refused, match="^sendmessage: -2 prepare failed$") as plain:
        wire.read_answer(wire.SENDMESSAGE, Answer(200, b'{"ret":-2,"errmsg":"prepare failed"}'))
    with pytest.raises(Refused, match="^sendmessage: -12$"):
        wire.read_answer(wire.SENDMESSAGE, Answer(200, b'{"errcode":-12,"errmsg":"bad token bot:060000abcdef"}'))

    assert plain.value.code == -2


def test_an_id_is_kept_whole_whether_number_or_text() -> None:
    for case in VECTORS["lossless_ids"]:
        read = wire.from_json(case["wire"].encode())
        expected = case["expect"]
        if "message_id" in expected:
            assert isinstance(read, dict)
            assert wire.sent_message_id(read) == expected["message_id"], case["name"]


# --- batches --------------------------------------------------------------------------------------------------


def parse(message: object) -> Inbound | Unreadable:
    return WeChatReader().parse(wire.to_json(message))


def inbound(message: object) -> Inbound:
    read = parse(message)
    assert isinstance(read, Inbound)
    return read


def said(*items: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"message_id": 7, "from_user_id": "alice@im.wechat", "message_type": 1, "item_list": list(items)} | members


def test_the_sample_batch_is_read_message_by_message() -> None:
    batch = wire.parse_batch(VECTORS["sample_getupdates_response"])

    read = [WeChatReader().parse(message.raw) for message in batch.messages]

    assert batch.cursor == "Y3Vyc29yLTI="
    assert batch.hold_s == 35.0
    assert [message.message_id for message in batch.messages] == [str(7441535359615655688 + n) for n in range(6)]
    assert all(isinstance(one, Inbound) for one in read)
    text, image, voice, file, video, quoting = [one for one in read if isinstance(one, Inbound)]
    assert (text.text, text.sender, text.reply_token, text.created_at_ms) == ("你好", PEER, TOKEN, 1790000000000)
    assert (text.group_id, text.echo, text.quote, text.media) == ("", False, None, ())
    assert [medium.kind for medium in image.media + voice.media + file.media + video.media] == [
        MediaKind.IMAGE,
        MediaKind.VOICE,
        MediaKind.FILE,
        MediaKind.VIDEO,
    ]
    assert (voice.text, voice.media[0].transcript) == ("语音转写", "语音转写")
    assert (file.text, file.media[0].name, file.media[0].size_bytes) == ("", "报告.pdf", 16)
    assert json.loads(image.media[0].wire)["image_item"]["aeskey"] == "00112233445566778899aabbccddeeff"
    assert quoting.quote is not None
    assert (quoting.text, quoting.quote.text, quoting.quote.message_id) == ("回复这句", "", "7441535359615655688")
    assert quoting.quote.partial is not None
    assert wire.resolve_partial_quote("你好", quoting.quote.partial) == "你好"


def test_all_words_of_a_message_reach_the_text() -> None:
    read = inbound(
        said(
            {"type": 1, "text_item": {"text": "first"}},
            {"type": 2, "image_item": {}},
            {"type": 1, "text_item": {"text": "second"}},
        )
    )

    assert read.text == "first\nsecond"
    assert [medium.kind for medium in read.media] == [MediaKind.IMAGE]


def test_b112_a_voice_note_keeps_its_transcript_and_its_quote() -> None:
    read = inbound(said({"type": 3, "voice_item": {"text": "可以"}, "ref_msg": {"title": "周三开会？"}}))

    assert read.text == "可以"
    assert read.quote is not None
    assert (read.quote.text, read.quote.message_id, read.quote.partial) == ("周三开会？", None, None)


def test_a_quoted_picture_comes_along_only_where_the_message_has_none_of_its_own() -> None:
    quoted = {
        "message_item": {"type": 2, "msg_id": 9007199254740993, "image_item": {"mid_size": 5}},
        "title": "picture",
    }
    asks = {"type": 1, "text_item": {"text": "what is this?"}, "ref_msg": quoted}

    alone = inbound(said(asks))
    beside = inbound(said(asks, {"type": 4, "file_item": {"file_name": "a.txt", "len": "3"}}))

    assert [medium.kind for medium in alone.media] == [MediaKind.IMAGE]
    assert alone.quote is not None
    assert (alone.quote.text, alone.quote.message_id) == ("picture", "9007199254740993")
    assert [medium.kind for medium in beside.media] == [MediaKind.FILE]


def test_a_kind_that_nobody_knows_is_announced_with_its_number() -> None:
    read = inbound(said({"type": 99, "sticker_item": {"x": 1}}, {"type": 0}))

    assert [(medium.kind, medium.name) for medium in read.media] == [(MediaKind.UNKNOWN, "type 99")]


def test_our_own_words_are_marked_as_an_echo() -> None:
    assert inbound(said(message_type=2, from_user_id="")).echo


def test_a_message_of_a_group_names_it() -> None:
    assert inbound(said(group_id="g@chatroom")).group_id == "g@chatroom"


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ({"message_id": 2**64 - 1, "client_id": "c"}, "18446744073709551615"),
        ({"message_id": "12"}, "12"),
        ({"message_id": 0, "item_list": [{"msg_id": 3}], "client_id": "c"}, "item:3"),
        ({"message_id": None, "item_list": [], "client_id": "c", "seq": 4}, "client:c"),
        ({"message_id": True, "client_id": "", "seq": 4}, "seq:4"),
        ({"message_id": 7.5}, "hash:"),
        ({}, "hash:"),
    ],
)
def test_a_message_is_named_by_the_first_id_it_has(message: dict[str, Any], name: str) -> None:
    (first,) = wire.parse_batch({"msgs": [message]}).messages
    (again,) = wire.parse_batch({"msgs": [message]}).messages

    assert first.message_id == again.message_id
    assert first.message_id.startswith(name)


def test_two_nameless_messages_with_different_words_have_different_names() -> None:
    batch = wire.parse_batch({"msgs": [{"from_user_id": "a", "x": 1}, {"from_user_id": "a", "x": 2}]})

    assert len({message.message_id for message in batch.messages}) == 2


def test_the_same_words_under_new_ids_have_the_same_content() -> None:
    def handed_out(**over: object) -> bytes:
        item = {"type": 1, "msg_id": over.get("message_id"), "create_time_ms": 5, "text_item": {"text": "hi"}}
        message = {"message_id": 1, "from_user_id": "a", "context_token": "T1", "item_list": [item], **over}
        return wire.parse_batch({"msgs": [message]}).messages[0].content

    again = handed_out(message_id=2, seq=9, client_id="c", context_token="T2", update_time_ms=7)

    assert handed_out() == again != b""
    assert handed_out(group_id="g") != again
    assert handed_out(item_list=[{"type": 1, "text_item": {"text": "ho"}}]) != again
    assert handed_out(item_list=[]) == handed_out(item_list="x") == b""


def test_an_unreadable_entry_stands_in_the_batch_beside_the_readable_ones() -> None:
    batch = wire.parse_batch({"msgs": [5, said({"type": 1, "text_item": {"text": "hi"}}), None, {"from_user_id": 3}]})

    read = [WeChatReader().parse(message.raw) for message in batch.messages]

    assert [isinstance(one, Inbound) for one in read] == [False, True, False, False]
    assert len({message.message_id for message in batch.messages}) == 4
    assert [one.message_id for one in read] == [message.message_id for message in batch.messages]


@pytest.mark.parametrize("value", ["", None, 5, []])
def test_an_answer_without_a_usable_cursor_keeps_the_old_one(value: object) -> None:
    assert wire.parse_batch({"get_updates_buf": value}).cursor is None
    assert wire.parse_batch({}).cursor is None


@pytest.mark.parametrize(
    ("hint", "hold_s"),
    [
        (35000, 35.0),
        (0, 0.0),
        (-1, -0.001),
        (1e12, 1e9),
        ("35000", None),
        (None, None),
        (True, None),
        (10**30, None),
        ({}, None),
    ],
)
def test_b033_the_hold_is_taken_only_from_a_number(hint: object, hold_s: float | None) -> None:
    assert wire.parse_batch({"longpolling_timeout_ms": hint}).hold_s == hold_s


def test_b048_half_a_surrogate_from_a_peer_becomes_a_replacement_character() -> None:
    answer = wire.from_json(
        rb'{"msgs":[{"message_id":1,"from_user_id":"a","item_list":[{"type":1,"text_item":{"text":"x\ud83dy"}}]}]}'
    )
    assert isinstance(answer, dict)

    (message,) = wire.parse_batch(answer).messages
    read = WeChatReader().parse(message.raw)

    assert isinstance(read, Inbound)
    assert read.text == "x\ufffdy"


def test_broken_utf8_or_an_endless_number_in_one_message_costs_nobody_the_batch() -> None:
    body = (
        b'{"msgs":[{"message_id":1,"from_user_id":"a","seq":'
        + b"9" * 9000
        + b'},{"message_id":2,"from_user_id":"\xff"}]}'
    )

    batch = wire.parse_batch(wire.read_answer(wire.GETUPDATES, Answer(200, body)))

    assert [message.message_id for message in batch.messages] == ["1", "2"]
    assert batch.messages[1].sender == "\ufffd"


def test_an_answer_nested_without_end_is_no_answer() -> None:
    with pytest.raises(Unavailable):
        wire.read_answer(wire.GETUPDATES, Answer(200, b'{"msgs":' + b"[" * 100_000))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
members = st.sampled_from(
    [
        "message_id",
        "from_user_id",
        "client_id",
        "seq",
        "create_time_ms",
        "context_token",
        "group_id",
        "message_type",
        "item_list",
    ]
)
item_members = st.sampled_from(
    [
        "type",
        "msg_id",
        "text_item",
        "image_item",
        "voice_item",
        "file_item",
        "video_item",
        "ref_msg",
        "text",
        "len",
        "file_name",
    ]
)
ref_members = st.sampled_from(["svr_id", "title", "message_item", "partial_text"])
items = st.dictionaries(
    item_members,
    json_values | st.integers(-1, 12) | st.dictionaries(item_members | ref_members, json_values, max_size=4),
    max_size=5,
)
messages = st.dictionaries(members, json_values | st.lists(items | json_values, max_size=4), max_size=9)


@given(st.lists(messages | json_values, max_size=5) | json_values)
def test_no_batch_of_any_shape_raises_or_loses_a_message(entries: object) -> None:
    batch = wire.parse_batch({"msgs": entries})

    read = [WeChatReader().parse(message.raw) for message in batch.messages]

    assert len(read) == (len(entries) if isinstance(entries, list) else 0 if entries is None else 1)
    for message, one in zip(batch.messages, read, strict=True):
        assert one.message_id == message.message_id
        message.raw.decode()
        repr(one).encode()


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_raise(raw: bytes) -> None:
    assert isinstance(WeChatReader().parse(raw), Inbound | Unreadable)


# --- quotes, addresses, keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", VECTORS["partial_quote"]["cases"], ids=lambda case: case["name"])
def test_a_partial_quote_is_resolved_as_officially(case: dict[str, Any]) -> None:
    assert (
        wire.resolve_partial_quote(VECTORS["partial_quote"]["text"], wire.to_json(case["partial"])) == case["resolved"]
    )


@given(
    st.text(max_size=20),
    st.dictionaries(st.sampled_from(["start", "end", "startindex", "endindex", "quotemd5"]), json_values),
)
def test_a_partial_quote_of_any_shape_resolves_to_a_part_of_the_text_or_to_nothing(
    text: str, partial: dict[str, Any]
) -> None:
    found = wire.resolve_partial_quote(text, wire.to_json(partial))

    assert found is None or found in text


def test_cdn_addresses_are_encoded_as_officially() -> None:
    download, upload = VECTORS["cdn_urls"]

    assert wire.download_url(download["cdn_base"], download["encrypt_query_param"]) == download["url"]
    assert wire.upload_url(upload["cdn_base"], upload["upload_param"], upload["filekey"]) == upload["url"]


@pytest.mark.parametrize("case", cases("aes_key_parse"), ids=lambda case: case["name"])
def test_a_key_is_read_in_both_forms_and_no_other(case: dict[str, Any]) -> None:
    if case.get("error"):
        with pytest.raises(ValueError):
            wire.aes_key(case["in"])
    else:
        assert wire.aes_key(case["in"]).hex() == case["key_hex"]


@given(st.binary(min_size=16, max_size=16))
def test_every_key_survives_both_forms(key: bytes) -> None:
    assert wire.aes_key(base64.b64encode(key).decode()) == key
    assert wire.aes_key(base64.urlsafe_b64encode(key.hex().encode()).decode()) == key


@pytest.mark.parametrize("case", cases("padded_size"), ids=lambda case: str(case["plain"]))
def test_a_cipher_text_is_padded_to_the_next_block(case: dict[str, int]) -> None:
    assert wire.padded_size(case["plain"]) == case["cipher"]


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("https://ilinkai.weixin.qq.com", True),
        ("https://IDC2.weixin.qq.com/prefix/", True),
        ("https://weixin.qq.com:443", True),
        ("http://ilinkai.weixin.qq.com", False),
        ("https://weixin.qq.com.evil.example", False),
        ("https://evilweixin.qq.com", False),
        ("https://weixin.qq.com@evil.example", False),
        ("https://evil.example\\@weixin.qq.com", False),
        ("https://evil.example#.weixin.qq.com", False),
        ("https://evil.example?.weixin.qq.com", False),
        ("https://weixin.qq.com\n.evil.example", False),
        ("ftp://weixin.qq.com", False),
        ("http://127.0.0.1:8080", False),
        ("https://localhost", False),
        ("", False),
    ],
)
def test_a_server_moves_us_only_to_a_trusted_domain(address: str, allowed: bool) -> None:
    base = "https://ilinkai.weixin.qq.com"

    assert wire.may_move_to(address, own_base_url=base, trusted_hosts=["weixin.qq.com"]) is allowed


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("http://127.0.0.1:9", True),
        ("http://localhost:1/x", True),
        ("http://[::1]:1", True),
        ("http://10.0.0.1", False),
    ],
)
def test_loopback_moves_to_loopback_in_plain_http(address: str, allowed: bool) -> None:
    assert wire.may_move_to(address, own_base_url="http://127.0.0.1:8080", trusted_hosts=["weixin.qq.com"]) is allowed


def test_the_origin_we_are_configured_with_is_trusted() -> None:
    own = "https://wechat-relay.example:8443/ilink"

    assert wire.may_move_to("https://wechat-relay.example:8443", own_base_url=own, trusted_hosts=[])
    assert not wire.may_move_to("https://wechat-relay.example", own_base_url=own, trusted_hosts=[])
    assert not wire.may_move_to("http://wechat-relay.example:8443", own_base_url=own, trusted_hosts=[])
