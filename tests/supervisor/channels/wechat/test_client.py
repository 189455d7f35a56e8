"""A signed-in account against a server that answers by script: polls, sends, typing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from protocol.ids import AccountId, Cursor, MessageId, PeerId, ReplyToken, SendKey
from supervisor.channels.base import (
    Batch,
    Channel,
    Credentials,
    Receipt,
    ReceiptKind,
    Refused,
    Route,
    SignedOut,
    TypingState,
    Unavailable,
)
from supervisor.channels.wechat import WeChatSettings
from supervisor.channels.wechat.client import Timing, WeChatChannel
from tests.fakes.scripted_http import CLOSE, HANG, ScriptedHttp, Step, answer, truncated

pytestmark = pytest.mark.anyio
TOKEN = "0a1b2c3d4e5f@im.bot:060000canary"
REPLY_TOKEN = ReplyToken("AARzJWcanary")
CURSOR = Cursor("Y3Vyc29yLWNhbmFyeQ==")
ALICE = PeerId("o9cq80Alice@im.wechat")
ROUTE = Route(AccountId("owner@im.wechat"), ALICE, REPLY_TOKEN)
KEY = SendKey("key-1")
NOTHING = Batch(messages=(), cursor=None, hold_s=None)
OK = answer({"ret": 0})
TICKET = answer({"ret": 0, "typing_ticket": "VElDS0VU"})
BUSY = answer({"ret": -1, "errmsg": "system busy"})


class Hands:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


@asynccontextmanager
async def signed_in(
    script: dict[str, Sequence[Step]],
    *,
    timing: Timing | None = None,
    hands: Hands | None = None,
    poll_hold_ms: int = 0,
) -> AsyncIterator[tuple[WeChatChannel, ScriptedHttp]]:
    async with ScriptedHttp(script) as server:
        credentials = Credentials(ROUTE.account, "0a1b2c3d4e5f@im.bot", TOKEN, server.url)
        settings = WeChatSettings(base_url=server.url, poll_hold_ms=poll_hold_ms)
        channel = WeChatChannel(credentials, settings, timing=timing, now=(hands or Hands()).now)
        try:
            yield channel, server
        finally:
            await channel.aclose()


def hello(number: int) -> dict[str, object]:
    return {"message_id": number, "from_user_id": ALICE, "item_list": [{"type": 1, "text_item": {"text": "hi"}}]}


async def test_the_channel_is_a_channel() -> None:
    async with signed_in({}) as (channel, _):
        as_channel: Channel = channel

    assert (as_channel.limits.text_units, as_channel.limits.body_bytes) == (2000, 16384)


# --- polls ----------------------------------------------------------------------------------------------------


async def test_a_poll_shows_the_cursor_and_all_six_headers_and_brings_the_batch() -> None:
    good = answer({"msgs": [hello(2**63)], "get_updates_buf": "C2", "longpolling_timeout_ms": 35000})
    async with signed_in({"getupdates": [good, good]}) as (channel, server):
        batch = await channel.fetch(CURSOR, hold_s=35.0)
        await channel.fetch(CURSOR, hold_s=35.0)

    first, second = server.requests
    assert (batch.cursor, batch.hold_s, [one.message_id for one in batch.messages]) == ("C2", 35.0, [str(2**63)])
    assert (first.method, first.target) == ("POST", "/ilink/bot/getupdates")
    assert first.json == {
        "get_updates_buf": CURSOR,
        "base_info": {"channel_version": "0.1.0", "bot_agent": "bridge-supervisor/0.1.0"},
    }
    assert first.headers["authorization"] == f"Bearer {TOKEN}"
    assert first.headers["authorizationtype"] == "ilink_bot_token"
    assert first.headers["content-type"] == "application/json"
    assert (first.headers["ilink-app-id"], first.headers["ilink-app-clientversion"]) == ("bot", "256")
    assert first.headers["x-wechat-uin"] != second.headers["x-wechat-uin"]


async def test_a_shorter_hold_is_asked_for_only_where_it_is_set() -> None:
    async with signed_in({"getupdates": [answer({})]}, poll_hold_ms=9000) as (channel, server):
        await channel.fetch(CURSOR, hold_s=35.0)

    assert server.requests[0].json["longpolling_timeout_ms"] == 9000


async def test_b011_a_read_timeout_is_an_empty_poll() -> None:
    async with signed_in({"getupdates": [HANG] * 3 + [answer({"msgs": [hello(1)]})]}, timing=Timing(slack_s=0.1)) as (
        channel,
        server,
    ):
        silent = [await channel.fetch(CURSOR, hold_s=0.1) for _ in range(3)]
        batch = await channel.fetch(CURSOR, hold_s=20.0)

    assert silent == [NOTHING] * 3
    assert [one.message_id for one in batch.messages] == ["1"]
    assert [request.json["get_updates_buf"] for request in server.requests] == [CURSOR] * 4


async def test_b033_an_answer_at_the_very_end_of_the_hold_is_received() -> None:
    late = answer({"msgs": [hello(1)], "longpolling_timeout_ms": 350}, after_s=0.4)
    async with signed_in({"getupdates": [late]}) as (channel, _):
        batch = await channel.fetch(CURSOR, hold_s=0.35)

    assert [one.message_id for one in batch.messages] == ["1"]


async def test_b019_a_poll_that_hangs_holds_up_no_send_and_the_next_one_is_on_a_fresh_connection() -> None:
    script = {"getupdates": [HANG, answer({"msgs": [hello(1)]})], "sendmessage": [answer({"message_id": 5})]}
    async with signed_in(script, timing=Timing(slack_s=0.2)) as (channel, server):
        async with asyncio.TaskGroup() as group:
            poll = group.create_task(channel.fetch(CURSOR, hold_s=0.3), name="a poll that hangs")
            await server.until_asked("getupdates")
            receipt = await channel.send_text(ROUTE, "hi", KEY)
            hung = not poll.done()
        batch = await channel.fetch(CURSOR, hold_s=20.0)

    assert hung
    assert receipt.kind is ReceiptKind.ACCEPTED
    assert poll.result() == NOTHING
    assert len(batch.messages) == 1
    first, second = server.asked("getupdates")
    assert first.connection != second.connection


@pytest.mark.parametrize(
    "broken",
    [
        CLOSE,
        truncated({"ret": 0, "msgs": [hello(1)]}, keep=20),
        answer('{"ret":0,"msgs":['),
        answer("<html>gateway</html>"),
        answer(""),
        answer("[]"),
        answer("", status=502),
        answer({"ret": 0}, status=524),
        answer("", status=302, headers={"Location": "http://127.0.0.1:9/"}),
    ],
    ids=["close", "early end", "half the JSON", "HTML", "no body", "a list", "502", "524", "redirect"],
)
async def test_b028_a_broken_poll_is_a_failure_and_the_next_one_works(broken: Step) -> None:
    async with signed_in({"getupdates": [broken, answer({"msgs": [hello(1)]})]}) as (channel, _):
        with pytest.raises(Unavailable):
            await channel.fetch(CURSOR, hold_s=20.0)
        batch = await channel.fetch(CURSOR, hold_s=20.0)

    assert [one.message_id for one in batch.messages] == ["1"]


async def test_b010_a_poll_whose_token_is_not_accepted_says_so() -> None:
    async with signed_in({"getupdates": [answer({"errcode": -14, "errmsg": "session timeout"}), BUSY]}) as (channel, _):
        with pytest.raises(SignedOut, match="getupdates: -14 session timeout"):
            await channel.fetch(CURSOR, hold_s=20.0)
        with pytest.raises(Refused) as refused:
            await channel.fetch(CURSOR, hold_s=20.0)

    assert refused.value.code == -1


async def test_both_ends_of_polling_are_announced() -> None:
    async with signed_in({"notifystart": [OK], "notifystop": [answer("")]}) as (channel, server):
        await channel.announce_start()
        await channel.announce_stop()

    assert [request.target for request in server.requests] == [
        "/ilink/bot/msg/notifystart",
        "/ilink/bot/msg/notifystop",
    ]
    assert list(server.requests[0].json) == ["base_info"]


# --- sends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "receipt"),
    [
        (
            answer('{"ret":0,"message_id":7441535359615655688}'),
            Receipt(ReceiptKind.ACCEPTED, MessageId("7441535359615655688")),
        ),
        (answer('{"message_id":"5"}'), Receipt(ReceiptKind.ACCEPTED, MessageId("5"))),
        (answer({"ret": 0}), Receipt(ReceiptKind.UNCONFIRMED)),
        (answer({}), Receipt(ReceiptKind.UNCONFIRMED)),
        (answer(""), Receipt(ReceiptKind.UNCONFIRMED)),
        (answer({"ret": -2, "errmsg": "prepare failed"}), Receipt(ReceiptKind.REJECTED, code=-2)),
        (answer({"errcode": -12}), Receipt(ReceiptKind.REJECTED, code=-12)),
    ],
    ids=lambda value: value.kind.value if isinstance(value, Receipt) else "",
)
async def test_b004_a_send_has_three_outcomes(step: Step, receipt: Receipt) -> None:
    async with signed_in({"sendmessage": [step]}) as (channel, _):
        assert await channel.send_text(ROUTE, "hi", KEY) == receipt


@pytest.mark.parametrize(
    "step", [CLOSE, answer("<html>"), answer({"ret": 0}, status=500), HANG], ids=["close", "HTML", "500", "hang"]
)
async def test_a_send_whose_outcome_is_unknown_is_unavailable(step: Step) -> None:
    async with signed_in({"sendmessage": [step]}, timing=Timing(send_s=1.0)) as (channel, _):
        with pytest.raises(Unavailable):
            await channel.send_text(ROUTE, "hi", KEY)


async def test_a_send_with_a_token_that_is_not_accepted_is_signed_out() -> None:
    async with signed_in({"sendmessage": [answer({"errcode": -14})]}) as (channel, _):
        with pytest.raises(SignedOut):
            await channel.send_text(ROUTE, "hi", KEY)


async def test_b027_a_send_carries_the_routes_own_token_and_the_peers_id_in_its_case() -> None:
    async with signed_in({"sendmessage": [OK, OK]}) as (channel, server):
        await channel.send_text(ROUTE, "你好", KEY)
        await channel.send_text(replace(ROUTE, reply_token=None), "x", SendKey("key-2"))

    first, second = (request.json["msg"] for request in server.requests)
    assert first == {
        "from_user_id": "",
        "to_user_id": ALICE,
        "client_id": KEY,
        "message_type": 2,
        "message_state": 2,
        "item_list": [{"type": 1, "text_item": {"text": "你好"}}],
        "context_token": REPLY_TOKEN,
    }
    assert "context_token" not in second


# --- typing ---------------------------------------------------------------------------------------------------


async def test_typing_asks_for_a_ticket_once_and_ends_with_stop() -> None:
    async with signed_in({"getconfig": [TICKET], "sendtyping": [OK, answer(""), answer({})]}) as (channel, server):
        await channel.show_typing(ROUTE, TypingState.TYPING)
        await channel.show_typing(ROUTE, TypingState.TYPING)
        await channel.show_typing(ROUTE, TypingState.STOPPED)
        await channel.show_typing(ROUTE, TypingState.STOPPED)

    assert [request.json["status"] for request in server.asked("sendtyping")] == [1, 1, 2]
    (config,) = server.asked("getconfig")
    assert (config.json["ilink_user_id"], config.json["context_token"]) == (ALICE, REPLY_TOKEN)


async def test_b081_a_stop_after_the_tickets_life_is_sent_with_a_new_one() -> None:
    hands = Hands()
    old, new = (answer({"ret": 0, "typing_ticket": ticket}) for ticket in ("old", "new"))
    async with signed_in({"getconfig": [old, new], "sendtyping": [OK, OK]}, hands=hands) as (channel, server):
        await channel.show_typing(ROUTE, TypingState.TYPING)
        hands.at += 660.0
        await channel.show_typing(ROUTE, TypingState.STOPPED)

    assert [(request.json["typing_ticket"], request.json["status"]) for request in server.asked("sendtyping")] == [
        ("old", 1),
        ("new", 2),
    ]


async def test_a_refused_ticket_is_renewed_once() -> None:
    old, new = (answer({"ret": 0, "typing_ticket": ticket}) for ticket in ("old", "new"))
    async with signed_in({"getconfig": [old, new], "sendtyping": [OK, BUSY, OK]}) as (channel, server):
        await channel.show_typing(ROUTE, TypingState.TYPING)
        await channel.show_typing(ROUTE, TypingState.TYPING)

    assert [request.json["typing_ticket"] for request in server.asked("sendtyping")] == ["old", "old", "new"]


async def test_b104_the_more_it_is_refused_the_less_is_asked() -> None:
    hands = Hands()
    asked_at = []
    async with signed_in({"getconfig": [BUSY] * 100}, hands=hands) as (channel, server):
        for _ in range(600):
            try:
                await channel.show_typing(ROUTE, TypingState.TYPING)
            except Refused:
                asked_at.append(hands.at)
            hands.at += 5.0

    gaps = [after - before for before, after in zip(asked_at, asked_at[1:], strict=False)]
    assert len(server.requests) == len(asked_at)
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 600.0


async def test_an_indicator_that_was_never_shown_needs_no_stop() -> None:
    async with signed_in({"getconfig": [BUSY]}) as (channel, server):
        with pytest.raises(Refused):
            await channel.show_typing(ROUTE, TypingState.TYPING)
        await channel.show_typing(ROUTE, TypingState.STOPPED)

    assert len(server.requests) == 1


# --- secrets --------------------------------------------------------------------------------------------------


async def test_b060_neither_logs_nor_errors_hold_token_cursor_or_reply_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told = []
    echo = answer({"ret": -1, "errmsg": f"bad token {TOKEN} {CURSOR} {REPLY_TOKEN}"})
    steps = [
        echo,
        CLOSE,
        answer(f"<html>{TOKEN}{CURSOR}{REPLY_TOKEN}"),
        answer({"errcode": -14, "errmsg": TOKEN}),
        answer({}),
    ]
    async with signed_in({"getupdates": steps, "sendmessage": steps, "getconfig": steps}) as (channel, _):
        for _ in steps:
            for call in (
                channel.fetch(CURSOR, hold_s=20.0),
                channel.send_text(ROUTE, "hi", KEY),
                channel.show_typing(ROUTE, TypingState.TYPING),
            ):
                try:
                    await call
                except (Unavailable, Refused, SignedOut) as error:
                    told.append(str(error))

    assert len(told) >= 8
    for secret in (TOKEN, "060000canary", CURSOR, REPLY_TOKEN):
        assert secret not in caplog.text + "".join(told)
