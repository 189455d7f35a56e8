"""The whole channel against the simulated service: sign in, poll into a real journal, answer, be thrown out."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protocol.content import Inbound
from protocol.ids import AccountId, Cursor, PeerId, SendKey
from supervisor.channels.base import ReceiptKind, Route, SignedOut, TypingState
from supervisor.channels.wechat.client import WeChatChannel
from supervisor.channels.wechat.wire import WeChatReader
from supervisor.clock import SystemClock
from supervisor.core.poll import Arrival, Over, PollLimits, PollState
from supervisor.poll import Polling
from supervisor.store import Journal, MessageRow, Store
from tests.fakes.signed_in import sign_in
from tests.fakes.wechat import SimulatedWeChat

pytestmark = pytest.mark.anyio
DEADLINE_S = 30.0


@pytest.fixture
def wechat() -> Iterator[SimulatedWeChat]:
    with SimulatedWeChat(hold_s=0.5) as service:
        service.set_fault("strict_headers")
        yield service


class Rows:
    """on_recorded, awaited by count."""

    def __init__(self) -> None:
        self.rows: list[MessageRow] = []
        self._more = asyncio.Event()

    def __call__(self, rows: tuple[MessageRow, ...], arrival: Arrival) -> None:
        self.rows += rows
        self._more.set()

    async def until(self, count: int) -> list[MessageRow]:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.rows) < count:
                self._more.clear()
                await self._more.wait()
        return self.rows


@asynccontextmanager
async def polled(
    channel: WeChatChannel, folder: Path, person: str, limits: PollLimits | None = None
) -> AsyncIterator[tuple[Rows, Polling, asyncio.Task[Over]]]:
    journal, _ = await Journal.open(folder / "state.db")
    account = AccountId(person)
    await journal.do(Store.sign_in, account, "bot", "", None, 0.0)
    rows = Rows()
    poll = Polling(account, channel, journal, Cursor(""), rows, clock=SystemClock(), limits=limits)
    try:
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            run = tasks.create_task(poll.run(), name="poll")
            yield rows, poll, run
            poll.ask_to_stop()
    finally:
        await channel.aclose()
        await journal.close()


async def test_a_conversation_goes_both_ways(wechat: SimulatedWeChat, tmp_path: Path) -> None:
    alice = wechat.add_person()
    channel = await sign_in(wechat, alice)

    async with polled(channel, tmp_path, alice) as (rows, poll, _):
        await asyncio.to_thread(wechat.say, alice, "你好")
        (row,) = await rows.until(1)
        inbound = WeChatReader().parse(row.raw)
        assert isinstance(inbound, Inbound)
        route = Route(AccountId(alice), PeerId(alice), inbound.reply_token)
        await channel.show_typing(route, TypingState.TYPING)
        receipt = await channel.send_text(route, "答", SendKey("key-1"))
        await channel.show_typing(route, TypingState.STOPPED)
        seen = await asyncio.to_thread(wechat.view)
        again = await channel.send_text(route, "答", SendKey("key-1"))

    assert (inbound.text, inbound.sender) == ("你好", alice)
    assert (receipt.kind, again.kind) == (ReceiptKind.ACCEPTED, ReceiptKind.ACCEPTED)
    assert wechat.bubbles(alice)[0].text == "答"
    assert len(wechat.bubbles(alice)) == 1, "the same key twice shows one bubble"
    assert not seen.typing(alice)
    paths = [request["path"].rpartition("/")[2] for request in wechat.requests()]
    assert "notifystart" in paths
    assert paths[-1] == "notifystop"


async def test_faults_on_the_way_cost_no_message_and_double_none(wechat: SimulatedWeChat, tmp_path: Path) -> None:
    alice = wechat.add_person()
    channel = await sign_in(wechat, alice)
    limits = PollLimits(backoff_first_s=0.05)
    faults: list[tuple[str, dict[str, Any]]] = [
        ("http_status", {"status": 502}),
        ("html_page", {}),
        ("close_unanswered", {}),
        ("odd_cursor", {}),
        ("duplicate", {}),
    ]

    async with polled(channel, tmp_path, alice, limits) as (rows, _, _run):
        for number, (name, parameters) in enumerate(faults):
            path = {"path": "getupdates"} if name in ("http_status", "html_page", "close_unanswered") else {}
            await asyncio.to_thread(wechat.set_fault, name, times=1, **path, **parameters)
            await asyncio.to_thread(wechat.say, alice, f"message {number}")
            await rows.until(number + 1)
        await asyncio.to_thread(wechat.say, alice, "last")
        await rows.until(len(faults) + 1)

    texts = [one.text for row in rows.rows if isinstance(one := WeChatReader().parse(row.raw), Inbound)]
    assert texts == [*(f"message {number}" for number in range(len(faults))), "last"]


async def test_a_session_that_notifystart_revives_goes_on(wechat: SimulatedWeChat, tmp_path: Path) -> None:
    alice = wechat.add_person()
    channel = await sign_in(wechat, alice)

    async with polled(channel, tmp_path, alice) as (rows, poll, _):
        await asyncio.to_thread(wechat.set_fault, "stale_session", path="getupdates", until="notifystart")
        await asyncio.to_thread(wechat.say, alice, "still there?")
        await rows.until(1)
        state = poll.view().state

    assert state is PollState.RUNNING


async def test_b047_a_session_that_stays_refused_is_left_alone(wechat: SimulatedWeChat, tmp_path: Path) -> None:
    alice = wechat.add_person()
    channel = await sign_in(wechat, alice)

    async with polled(channel, tmp_path, alice) as (_, poll, run):
        await asyncio.to_thread(wechat.set_fault, "stale_session", path="*", envelope="errcode")
        over = await run
        asked = len(wechat.requests("getupdates"))
        with pytest.raises(SignedOut):
            await channel.send_text(Route(AccountId(alice), PeerId(alice), None), "x", SendKey("k"))

    assert over.state is poll.view().state is PollState.EXPIRED
    assert len(wechat.requests("getupdates")) == asked
