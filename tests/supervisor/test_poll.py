"""One account's poll as performed: against a scripted channel and disk, and against real HTTP."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from protocol.ids import AccountId, Cursor, MessageId, PeerId
from supervisor.channels.base import Batch, Credentials, RawMessage, Refused, SignedOut, Unavailable
from supervisor.channels.wechat import WeChatSettings
from supervisor.channels.wechat.client import Timing, WeChatChannel
from supervisor.core.poll import Arrival, PollLimits, PollState
from supervisor.poll import Polling
from supervisor.store import JournalUnavailable, Recorded, Store
from tests.fakes.scripted_http import CLOSE, HANG, ScriptedHttp, answer, truncated

pytestmark = pytest.mark.anyio
ACCOUNT = AccountId("owner@im.wechat")
C1, C2 = Cursor("c1"), Cursor("c2")
DEADLINE_S = 20.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class JumpingClock:
    """Sleeping takes no time and moves the clock."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return 1_790_000_000.0 + self.at

    async def sleep_until(self, at: float) -> None:
        self.at = max(self.at, at)
        await asyncio.sleep(0)


class ScriptedChannel:
    """Each fetch takes the next outcome; beyond them it hangs until cancelled."""

    def __init__(self, *outcomes: Batch | Exception) -> None:
        self._outcomes = list(outcomes)
        self.did: list[str] = []
        self.hanging = asyncio.Semaphore(0)  # one for each fetch that hangs
        self.fails_to_announce = False
        self.receiving = False

    async def announce_start(self) -> None:
        self.did.append("start")
        if self.fails_to_announce:
            raise Unavailable("notifystart: HTTP 500")

    async def announce_stop(self) -> None:
        self.did.append("stop")
        if self.fails_to_announce:
            raise Unavailable("notifystop: HTTP 500")

    async def fetch(self, cursor: Cursor, *, hold_s: float) -> Batch:
        self.did.append(f"fetch {cursor}")
        if not self._outcomes:
            self.hanging.release()
            await asyncio.Event().wait()
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class ScriptedDisk:
    """A journal that refuses its first `refusals` transactions and keeps what it takes."""

    def __init__(self, refusals: int = 0, did: list[str] | None = None) -> None:
        self._refusals = refusals
        self.did = did if did is not None else []
        self.ids: list[str] = []

    async def do(self, method: Any, account: AccountId, batch: Batch, at: float) -> Recorded:
        assert (method, account) == (Store.record_batch, ACCOUNT)
        assert at > 1_790_000_000
        self.did.append("record")
        await asyncio.sleep(0)
        if self._refusals:
            self._refusals -= 1
            raise JournalUnavailable("disk full")
        self.ids += [message.message_id for message in batch.messages]
        return Recorded(rows=tuple(batch.messages), replayed=0)  # type: ignore[arg-type]


def batch(*numbers: int, cursor: Cursor | None = C2) -> Batch:
    peer = PeerId("alice@im.wechat")
    messages = tuple(RawMessage(MessageId(str(number)), peer, None, None, b"{}") for number in numbers)
    return Batch(messages, cursor, None)


class Heard:
    """on_recorded: what was handed on."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], Arrival]] = []

    def __call__(self, rows: Sequence[Any], arrival: Arrival) -> None:
        self.calls.append(([row.message_id for row in rows], arrival))


def polling(
    channel: Any,
    disk: Any,
    heard: Heard | None = None,
    *,
    clock: JumpingClock | None = None,
    limits: PollLimits | None = None,
    on_back: Callable[[], None] = lambda: None,
) -> Polling:
    return Polling(
        ACCOUNT,
        channel,
        disk,
        C1,
        heard or Heard(),
        clock=clock or JumpingClock(),
        limits=limits,
        on_back=on_back,
        chance=lambda: 1.0,
    )


async def until_quiet(poll: Polling, channel: ScriptedChannel) -> None:
    """Run the script to its end, then stop."""
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        run = tasks.create_task(poll.run(), name="poll")
        await channel.hanging.acquire()
        poll.ask_to_stop()
    assert run.result().state is PollState.STOPPED


async def test_a_batch_is_recorded_before_it_is_handed_on_and_before_the_next_fetch() -> None:
    channel, heard = ScriptedChannel(batch(1, 2), batch(3, cursor=None)), Heard()
    disk = ScriptedDisk(did=channel.did)

    await until_quiet(polling(channel, disk, heard), channel)

    assert channel.did == ["start", "fetch c1", "record", "fetch c2", "record", "fetch c2", "stop"]
    assert heard.calls == [(["1", "2"], Arrival.BACKLOG), (["3"], Arrival.LIVE)]


async def test_failures_of_every_kind_are_waited_out_with_the_same_cursor(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    channel = ScriptedChannel(Unavailable("getupdates: HTTP 502"), Refused("getupdates: -1", code=-1), batch(1))
    disk, clock = ScriptedDisk(), JumpingClock()

    await until_quiet(polling(channel, disk, clock=clock), channel)

    assert disk.ids == ["1"]
    assert channel.did == ["start", "fetch c1", "fetch c1", "fetch c1", "fetch c2", "stop"]
    assert clock.at == pytest.approx(103.0)
    lines = [record.message for record in caplog.records if "outage" in record.message]
    assert lines == [
        f"poll_outage_began account={ACCOUNT} getupdates: HTTP 502",
        f"poll_outage_ended account={ACCOUNT} after_s=3.0",
    ]


async def test_whoever_waits_for_wechat_hears_once_that_an_outage_is_over() -> None:
    channel = ScriptedChannel(
        batch(), Unavailable("x"), Unavailable("x"), batch(1), batch(2), Unavailable("x"), batch(3)
    )
    back: list[int] = []

    poll = polling(channel, ScriptedDisk(), on_back=lambda: back.append(len(channel.did)))
    await until_quiet(poll, channel)

    assert len(back) == 2
    assert channel.did[back[0] - 1].startswith("fetch")


async def test_b010_a_token_that_is_refused_twice_ends_the_poll() -> None:
    channel = ScriptedChannel(SignedOut("getupdates: -14"), SignedOut("getupdates: -14"))
    poll = polling(channel, ScriptedDisk())
    async with asyncio.timeout(DEADLINE_S):
        over = await poll.run()

    assert over.state is PollState.EXPIRED
    assert channel.did == ["start", "fetch c1", "start", "fetch c1"]
    assert poll.view().state is PollState.EXPIRED


async def test_a_failed_announcement_is_only_logged() -> None:
    channel = ScriptedChannel(batch(1))
    channel.fails_to_announce = True
    disk = ScriptedDisk()

    await until_quiet(polling(channel, disk), channel)

    assert disk.ids == ["1"]


async def test_a_disk_that_refuses_is_asked_again_and_the_account_not_polled_meanwhile() -> None:
    channel = ScriptedChannel(batch(1))
    disk, clock = ScriptedDisk(refusals=3, did=channel.did), JumpingClock()

    await until_quiet(polling(channel, disk, clock=clock), channel)

    assert channel.did == ["start", "fetch c1", *["record"] * 4, "fetch c2", "stop"]
    assert disk.ids == ["1"]
    assert clock.at == pytest.approx(103.0)


async def test_a_stop_waits_for_the_disk_and_then_names_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    channel, clock = ScriptedChannel(batch(7, 8)), JumpingClock()
    disk, heard = ScriptedDisk(refusals=1000), Heard()
    poll = polling(channel, disk, heard, clock=clock)
    disk_do = disk.do

    async def do(*args: Any) -> Recorded:
        poll.ask_to_stop()
        return await disk_do(*args)

    disk.do = do  # type: ignore[method-assign]
    async with asyncio.timeout(DEADLINE_S):
        over = await poll.run()

    assert over.state is PollState.STOPPED
    assert clock.at == pytest.approx(105.0)
    assert f"messages_lost account={ACCOUNT} count=2 not_recorded=7 8" in caplog.text
    assert heard.calls == []


async def test_a_stop_in_mid_poll_is_at_once_and_announced() -> None:
    channel = ScriptedChannel()
    poll = polling(channel, ScriptedDisk())

    await until_quiet(poll, channel)

    assert channel.did == ["start", "fetch c1", "stop"]
    assert poll.view().state is PollState.STOPPED


async def test_a_batch_that_arrives_with_the_stop_is_still_recorded() -> None:
    channel, disk = ScriptedChannel(), ScriptedDisk()
    poll = polling(channel, disk)

    async def fetch(cursor: Cursor, *, hold_s: float) -> Batch:
        poll.ask_to_stop()
        return batch(1)

    channel.fetch = fetch  # type: ignore[method-assign]
    async with asyncio.timeout(DEADLINE_S):
        await poll.run()

    assert disk.ids == ["1"]


async def test_b039_an_answer_that_has_begun_to_arrive_when_the_stop_comes_is_received_and_recorded() -> None:
    channel, disk = ScriptedChannel(), ScriptedDisk()
    poll, rest = polling(channel, disk), asyncio.Event()

    async def fetch(cursor: Cursor, *, hold_s: float) -> Batch:
        channel.receiving = True
        poll.ask_to_stop()
        asyncio.get_running_loop().call_later(0.05, rest.set)
        await rest.wait()
        channel.receiving = False
        return batch(1)

    channel.fetch = fetch  # type: ignore[method-assign]
    async with asyncio.timeout(DEADLINE_S):
        await poll.run()

    assert disk.ids == ["1"]


async def test_b019_a_fetch_that_never_ends_is_cut_from_outside_and_counted() -> None:
    channel = ScriptedChannel()
    limits = PollLimits(hold_s=0.05, slack_s=0.05, hung_s=0.1)
    poll = polling(channel, ScriptedDisk(), limits=limits)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(poll.run(), name="poll")
        for _ in range(3):
            await channel.hanging.acquire()
        seen = poll.view().poll_failures
        poll.ask_to_stop()

    assert seen == 2
    assert channel.did == ["start", *["fetch c1"] * 3, "stop"]
    assert poll.view().last_error == "a poll hung for 0 s"


async def test_the_view_tells_ages_and_never_the_cursor() -> None:
    channel, clock = ScriptedChannel(batch(1)), JumpingClock()
    poll = polling(channel, ScriptedDisk(), clock=clock)
    before = poll.view()

    await until_quiet(poll, channel)
    clock.at += 7.0
    after = poll.view()

    assert (before.last_poll_age_s, before.last_hold_s, before.state) == (None, None, PollState.RUNNING)
    assert (after.last_poll_age_s, after.last_hold_s, after.poll_failures, after.last_error) == (7.0, 0.0, 0, None)
    assert "c1" not in repr(after)


async def test_b064_ten_thousand_polls_with_faults_lose_nothing_and_leave_no_task() -> None:
    outcomes: list[Batch | Exception] = []
    for number in range(10_000):
        outcomes.append(batch(number, cursor=None))
        if number % 7 == 0:
            outcomes.append(Unavailable("getupdates: ReadError"))
    channel, disk = ScriptedChannel(*outcomes), ScriptedDisk()
    tasks = len(asyncio.all_tasks())

    await until_quiet(polling(channel, disk), channel)

    assert disk.ids == [str(number) for number in range(10_000)]
    assert len(asyncio.all_tasks()) == tasks


# --- over real HTTP -------------------------------------------------------------------------------------------


def hello(number: int) -> dict[str, object]:
    return {
        "message_id": number,
        "from_user_id": "alice@im.wechat",
        "item_list": [{"type": 1, "text_item": {"text": "hi"}}],
    }


async def poll_over_http(server: ScriptedHttp, disk: ScriptedDisk, *, polls: int, timing: Timing | None = None) -> None:
    credentials = Credentials(ACCOUNT, "bot@im.bot", "token", server.url)
    channel = WeChatChannel(credentials, WeChatSettings(base_url=server.url), timing=timing)
    limits = PollLimits(hold_s=0.2, slack_s=0.2, hold_least_s=0.1)
    poll = polling(channel, disk, limits=limits)
    try:
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(poll.run(), name="poll")
            await server.until_asked("getupdates", polls)
            poll.ask_to_stop()
    finally:
        await channel.aclose()


async def test_b028_after_every_kind_of_broken_answer_the_good_batch_is_recorded_once() -> None:
    broken = [
        CLOSE,
        truncated({"msgs": [hello(1)]}, keep=10),
        answer('{"msgs":['),
        answer("<html>"),
        answer("", status=502),
        answer("", status=412),
    ]
    good = answer({"msgs": [hello(1)], "get_updates_buf": "c2"})
    disk = ScriptedDisk()
    async with ScriptedHttp({"getupdates": [*broken, good, HANG]}) as server:
        await poll_over_http(server, disk, polls=len(broken) + 2, timing=Timing(slack_s=30.0))

    assert disk.ids == ["1"]
    cursors = [request.json["get_updates_buf"] for request in server.asked("getupdates")]
    assert cursors == ["c1"] * 7 + ["c2"]
    assert [request.endpoint for request in server.requests][0] == "notifystart"
    assert [request.endpoint for request in server.requests][-1] == "notifystop"


async def test_b011_three_silences_cost_nothing_and_the_fourth_poll_brings_the_message() -> None:
    disk = ScriptedDisk()
    script = {"getupdates": [HANG, HANG, HANG, answer({"msgs": [hello(1)], "get_updates_buf": "c2"}), HANG]}
    async with ScriptedHttp(script) as server:
        await poll_over_http(server, disk, polls=5, timing=Timing(slack_s=0.2))

    assert disk.ids == ["1"]


async def test_an_answer_with_an_empty_cursor_leaves_the_stored_one_in_use() -> None:
    disk = ScriptedDisk()
    script = {
        "getupdates": [
            answer({"msgs": [hello(1)], "get_updates_buf": "c2"}),
            answer({"msgs": [hello(2)], "get_updates_buf": ""}),
            HANG,
        ]
    }
    async with ScriptedHttp(script) as server:
        await poll_over_http(server, disk, polls=3, timing=Timing(slack_s=30.0))

    assert [request.json["get_updates_buf"] for request in server.asked("getupdates")] == ["c1", "c2", "c2"]
