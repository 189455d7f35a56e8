"""What breaks polls, done to the real program: after each it polls on, and nobody's message is lost or doubled."""

import asyncio
import random
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from protocol.ids import AccountId, Cursor, MessageId, PeerId
from supervisor.channels.base import Batch, RawMessage, Refused, Unavailable
from supervisor.core.poll import Arrival, PollState
from supervisor.poll import Polling
from supervisor.store import Recorded
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def short_holds(bridge: Stage) -> None:
    """Just long enough to count as held."""
    bridge.wechat.change_settings(hold_s=0.6)


def struck(bridge: Stage, count: int = 1) -> None:
    bridge.wechat.wait_for(lambda _: sum(fault["strikes"] for fault in bridge.wechat.faults()) >= count)


BROKEN: tuple[dict[str, Any], ...] = (
    {"name": "close_unanswered"},
    {"name": "cut_body", "when": "before"},
    {"name": "truncated_json", "when": "before"},
    {"name": "html_page"},
    {"name": "http_status", "status": 502},
)


def test_after_each_kind_of_broken_answer_the_bridge_polls_on_and_each_message_is_answered_once(stage: Stages) -> None:
    """B-028"""
    with stage() as bridge:
        short_holds(bridge)
        bridge.begin()
        for number, fault in enumerate(BROKEN):
            bridge.wechat.set_fault(path="getupdates", times=1, **fault)
            bridge.bridge.wait_log("poll_outage_began", count=number + 1)
            bridge.answer_to(bridge.me, f"after {fault}")
            bridge.wechat.clear_faults()
        bridge.wechat.set_fault("dribbled_body", path="getupdates", gap_ms=1)
        bridge.answer_to(bridge.me, "dribbled")

        assert len(bridge.wechat.view().texts(bridge.me)) == len(BROKEN) + 1
        assert bridge.bridge.status()["accounts"][0]["poll_failures"] == 0
        began, ended = (
            [line for line in bridge.bridge.lines if f"poll_outage_{what}" in line] for what in ("began", "ended")
        )
        assert len(began) == len(ended) == len(BROKEN)


def test_a_service_that_falls_silent_holds_up_no_send_and_is_polled_again_on_another_connection(
    stage: Stages,
) -> None:
    """B-019, B-011: the answer to one poll never comes; the turn that runs meanwhile is answered, nothing backs off."""
    with stage(agent=FAKE_AGENT) as bridge:
        short_holds(bridge)
        bridge.begin()
        bridge.wechat.set_fault("never_answer", path="getupdates", after=1, times=1)
        bridge.say(bridge.me, "UNTIL gate\nSAY sent meanwhile")
        bridge.running(bridge.me)
        struck(bridge)
        silent_since = datetime.now()

        bridge.open_gate(bridge.me, "gate")
        bridge.hears(bridge.me, "sent meanwhile")
        bridge.say(bridge.me, "SAY heard after it")
        during = bridge.bridge.status()["accounts"][0]
        bridge.hears(bridge.me, "heard after it")

        assert (datetime.now() - silent_since).total_seconds() < 20
        after = bridge.bridge.status()["accounts"][0]
        assert (during["state"], after["state"], after["poll_failures"]) == ("running", "running", 0)
        assert not [line for line in bridge.bridge.lines if re.search("poll_outage|hung", line)]


def test_a_service_that_goes_away_in_mid_poll_again_and_again_is_found_again_each_time(stage: Stages) -> None:
    """B-007: every connection of the pool is broken, twice over."""
    with stage() as bridge:
        bridge.begin()
        for number in range(2):
            bridge.answer_to(bridge.me, f"before {number}")
            bridge.wechat.go_down()
            bridge.bridge.wait_log("poll_outage_began", count=number + 1)
            bridge.wechat.come_back()
            bridge.bridge.wait_log("poll_outage_ended", count=number + 1)

        bridge.answer_to(bridge.me, "after")

        assert len(bridge.wechat.view().texts(bridge.me)) == 3
        assert len([line for line in bridge.bridge.lines if "poll_outage_began" in line]) == 2


def test_what_an_outage_swallowed_is_sent_under_its_own_key_once_it_is_over(stage: Stages) -> None:
    """B-007: the end of a poll's outage is the sign for what waits to be sent."""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "UNTIL gate\nSAY the answer")
        bridge.running(bridge.me)
        bridge.wechat.go_down()
        bridge.bridge.wait_log("poll_outage_began")
        bridge.open_gate(bridge.me, "gate")
        bridge.bridge.wait_log("send_unanswered", count=3)  # the last of its tries

        bridge.wechat.come_back()

        bridge.hears(bridge.me, "the answer")
        assert bridge.wechat.view().texts(bridge.me) == ["the answer"]
        assert len({send["client_id"] for send in bridge.wechat.sends()}) == 1


def test_an_odd_hold_costs_no_message(stage: Stages) -> None:
    """B-033"""
    hints: tuple[dict[str, Any], ...] = (
        {"mode": "absent"},
        {"value": None},
        {"value": 0},
        {"value": -1},
        {"value": "35000"},
        {"value": 1e12},
    )
    with stage() as bridge:
        bridge.begin()
        for hint in hints:
            bridge.wechat.set_fault("odd_hint", **hint)
            bridge.answer_to(bridge.me, f"one under {hint}")
            bridge.answer_to(bridge.me, f"two under {hint}")
            bridge.wechat.clear_faults()

        assert bridge.bridge.status()["accounts"][0]["poll_failures"] == 0
        assert not [line for line in bridge.bridge.lines if "poll_outage" in line]


def test_an_answer_a_moment_after_the_announced_hold_is_received(stage: Stages) -> None:
    """B-033: the client listens longer than the server holds."""
    with stage() as bridge:
        bridge.begin()
        bridge.wechat.set_fault("late", path="getupdates", delay_ms=2500)
        for text in ("one", "two"):
            bridge.answer_to(bridge.me, text)

        view = bridge.bridge.status()["accounts"][0]
        assert (view["poll_failures"], view["state"]) == (0, "running")
        assert not [line for line in bridge.bridge.lines if "poll_outage" in line]


# --- a long run, with a service that answers at once --------------------------------------------------------------


class LeapingClock:
    """Sleeping takes no time and moves the clock."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return 1_790_000_000.0 + self.at

    async def sleep_until(self, at: float) -> None:
        self.at = max(self.at, at)
        await asyncio.sleep(0)


class MoodyService:
    """Answers, holds, fails and refuses by a seeded die; keeps its own account of what it handed out."""

    def __init__(self, seed: int, clock: LeapingClock, polls: int) -> None:
        self.dice, self.clock, self.left = random.Random(seed), clock, polls
        self.handed_out: list[str] = []
        self.poll: Polling | None = None
        self.oldest_s = 0.0
        self.unhealthy: set[PollState] = set()
        self.quiet = asyncio.Event()
        self.receiving = False  # whether an answer has begun to arrive

    async def announce_start(self) -> None:
        pass

    async def announce_stop(self) -> None:
        pass

    async def fetch(self, cursor: Cursor, *, hold_s: float) -> Batch:
        assert self.poll is not None
        if self.left == 0:
            self.quiet.set()
            await asyncio.Event().wait()
        self.left -= 1
        await asyncio.sleep(0)
        mood = self.dice.random()
        self.clock.at += self.dice.choice((0.005, 0.005, 1.0, hold_s))
        if mood < 0.04:
            raise Unavailable("getupdates: ReadError")
        if mood < 0.05:
            raise Refused("getupdates: ret -1", code=-1)
        if mood < 0.06:
            raise TimeoutError
        view = self.poll.view()
        self.oldest_s = max(self.oldest_s, view.last_poll_age_s or 0.0)
        self.unhealthy |= {view.state} - {PollState.RUNNING}
        if mood < 0.5:
            return Batch((), None, None)
        number = str(len(self.handed_out))
        self.handed_out.append(number)
        message = RawMessage(MessageId(number), PeerId("a@im.wechat"), None, None, b"{}")
        return Batch((message,), Cursor(f"c{number}"), None)


class Keeps:
    def __init__(self) -> None:
        self.ids: list[str] = []

    async def do(self, method: object, account: AccountId, batch: Batch, at: float) -> Recorded:
        self.ids += [message.message_id for message in batch.messages]
        return Recorded(tuple(batch.messages), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [1, 2])
def test_b064_twenty_thousand_polls_with_faults_lose_nothing_and_the_last_one_is_never_old(seed: int) -> None:
    async def script() -> None:
        clock = LeapingClock()
        service, kept, heard = MoodyService(seed, clock, 20_000), Keeps(), []

        def on_recorded(rows: object, arrival: Arrival) -> None:
            heard.append(rows)

        poll = Polling(AccountId("o"), service, kept, Cursor(""), on_recorded, clock=clock)  # type: ignore[arg-type]
        service.poll = poll
        tasks = len(asyncio.all_tasks())
        async with asyncio.timeout(60), asyncio.TaskGroup() as running:
            run = running.create_task(poll.run(), name="poll")
            await service.quiet.wait()
            poll.ask_to_stop()
        assert run.result().state is PollState.STOPPED

        assert kept.ids == service.handed_out
        assert len(heard) == len(kept.ids) > 8000
        # A hold and slack, plus the backoff of a handful of failures in a row.
        assert service.oldest_s < 200
        assert service.unhealthy <= {PollState.STALE}
        assert len(asyncio.all_tasks()) == tasks

    asyncio.run(script())
