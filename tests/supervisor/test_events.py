"""events: which log lines are events, what is in them, and that a number means one event for ever."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from supervisor.clock import SystemClock
from supervisor.events import EventLog, form_of
from supervisor.store import EVENTS_KEPT, EVENTS_SLACK, EventRecord, Journal, Store

log = logging.getLogger("supervisor.tested")


@asynccontextmanager
async def stream(folder: Path) -> AsyncIterator[EventLog]:
    journal, _ = await Journal.open(folder / "state.db")
    events = EventLog(journal, SystemClock())
    await events.open()
    ours = logging.getLogger("supervisor")
    level = ours.level
    ours.setLevel(logging.DEBUG)
    ours.addHandler(events)
    running = asyncio.ensure_future(events.run())
    try:
        yield events
    finally:
        ours.removeHandler(events)
        ours.setLevel(level)
        running.cancel()
        await asyncio.wait([running])
        await journal.close()


async def kept(events: EventLog, seq: int = 0) -> list[EventRecord]:
    return [one async for batch in events.after(seq) for one in batch]


@pytest.mark.parametrize(
    "template",
    ["no event", "word", "%s peer=%s", "Some_thing peer=%s", "worker-ready peer=%s", ""],
)
def test_a_line_of_another_form_tells_no_event(template: str) -> None:
    assert form_of(template) is None


def test_a_lines_keys_become_the_events_data(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stream(tmp_path) as events:
            log.info("worker_ready peer=%s generation=%d after_ms=%.1f account=%s", "alice", 3, 12.345, "me")
            log.warning("%s_outage_began account=%s %s", "poll", "me", "no network")
            log.debug("batch_seen count=%d: much else", 5)
            await events.grown(2)

            ready, outage, batch = await kept(events)
            assert (ready.event, ready.account, ready.peer) == ("worker_ready", "me", "alice")
            assert ready.data == '{"generation": 3, "after_ms": 12.345}'
            assert (outage.event, outage.account, outage.data) == (
                "poll_outage_began",
                "me",
                '{"detail": "no network"}',
            )
            assert (batch.event, batch.data) == ("batch_seen", '{"count": 5}')

    asyncio.run(scenario())


def test_a_message_is_named_by_wechats_id_once_it_is_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stream(tmp_path) as events:
            log.debug("message_received peer=%s message=%d id=%s account=%s", "alice", 7, "7400000000000000001", "me")
            log.info("message_closed peer=%s message=%d state=%s account=%s", "alice", 7, "answered", "me")
            log.info("message_closed peer=%s message=%s state=%s account=%s", "alice", "8", "answered", "me")
            await events.grown(2)

            assert [one.message_id for one in await kept(events)] == ["7400000000000000001"] * 2 + [None]

    asyncio.run(scenario())


def test_numbers_go_on_after_a_restart_and_replay_begins_behind_the_one_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stream(tmp_path) as events:
            log.info("first_thing count=%d", 1)
            await events.grown(0)
            log.info("second_thing count=%d", 2)
        async with stream(tmp_path) as events:  # what was told at the very end was kept
            assert events.last == 2
            log.info("third_thing count=%d", 3)
            await events.grown(2)

            assert [(one.seq, one.event) for one in await kept(events, 1)] == [(2, "second_thing"), (3, "third_thing")]

    asyncio.run(scenario())


def test_a_long_value_and_an_odd_one_are_cut_and_made_sayable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stream(tmp_path) as events:
            # Past the logger: the test runner itself cannot carry such a line from one process to another.
            odd = ("\ud800" + "x" * 1000,)
            events.emit(logging.LogRecord("supervisor", logging.INFO, "", 0, "odd_thing reason=%s", odd, None))
            await events.grown(0)

            (one,) = await kept(events)
            assert len(one.data) < 300

    asyncio.run(scenario())


def test_lines_from_other_threads_are_kept_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stream(tmp_path) as events:
            await asyncio.gather(*(asyncio.to_thread(log.info, "thread_spoke number=%d", n) for n in range(20)))
            await events.grown(19)

            assert len(await kept(events)) == 20

    asyncio.run(scenario())


def test_the_oldest_go_and_the_numbers_stay(tmp_path: Path) -> None:
    store, _ = Store.open(tmp_path / "state.db")
    one = EventRecord(0, 1.0, "a_thing", None, None, None, "{}")
    total = EVENTS_KEPT + 2 * EVENTS_SLACK
    for _ in range(0, total, EVENTS_SLACK):
        store.add_events([one] * EVENTS_SLACK)

    assert store.last_event() == total
    (oldest,) = store.events_after(0, 1)
    assert EVENTS_KEPT <= total - oldest.seq + 1 <= EVENTS_KEPT + EVENTS_SLACK
    store.close()
