"""The queue between an agent's reader and the worker, and what every host shares."""

import asyncio

import pytest

from protocol.errors import FailureKind
from protocol.to_supervisor import TurnOutcome
from tests.fakes.hosts import end_of, run, words
from worker.hosts.base import (
    DETAIL_CHARS,
    TEXT_BACKLOG_CHARS,
    AgentEvent,
    BoundaryReason,
    EventQueue,
    HostError,
    TextBoundary,
    TextDelta,
    ToolActivity,
    ToolStatus,
    TurnEnded,
    UsageSeen,
    failed,
    for_the_log,
    patched,
)

END = TurnEnded(TurnOutcome.COMPLETED)


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        ("401 invalid api key sk-proj-0123456789abcdef for /v1", "401 invalid api key *** for /v1"),
        ("Authorization: Bearer abc.def-ghi, retry", "Authorization: Bearer ***, retry"),
        ("{'token': 'of the model', 'path': '/srv'}", "{'token': '*** the model', 'path': '/srv'}"),
        ("OPENAI_API_KEY=hunter2 is wrong", "OPENAI_API_KEY=*** is wrong"),
        ("jwt eyJhbGciOi.eyJzdWIi.c2ln", "jwt ***"),
        (
            "exit code 1; 1200 tokens: too many; task-list-of-today",
            "exit code 1; 1200 tokens: too many; task-list-of-today",
        ),
    ],
)
def test_keys_in_an_agents_words_stay_out_of_the_log(said: str, logged: str) -> None:
    assert for_the_log(said) == logged


def tool(call_id: str, status: ToolStatus) -> ToolActivity:
    return ToolActivity(call_id, "execute", "execute", "", status)


def drained(*events: AgentEvent) -> list[AgentEvent]:
    async def scenario() -> list[AgentEvent]:
        queue = EventQueue()
        for event in events:
            queue.put(event)
        return [event async for event in queue.drain()]

    return run(scenario())


def test_a_flood_of_updates_is_merged_and_the_end_comes_last() -> None:
    flood: list[AgentEvent] = []
    for number in range(10_000):
        flood += [TextDelta(f"{number} "), UsageSeen(context_used=number)]
        flood += [tool("t", ToolStatus.RUNNING)]

    events = drained(*flood, tool("t", ToolStatus.DONE), END, TextDelta("late"))

    assert end_of(events) == END
    assert words(events) == "".join(f"{number} " for number in range(10_000))
    assert len(events) < 10
    assert tool("t", ToolStatus.DONE) in events and UsageSeen(context_used=9_999) in events


def test_text_on_both_sides_of_a_tool_stays_in_order() -> None:
    start = TextBoundary(BoundaryReason.TOOL)

    events = drained(TextDelta("a"), TextDelta("b"), start, start, tool("t", ToolStatus.STARTED), TextDelta("c"), END)

    assert events == [TextDelta("ab"), start, tool("t", ToolStatus.STARTED), TextDelta("c"), END]


def test_only_the_first_end_counts() -> None:
    assert drained(END, failed(FailureKind.OTHER)) == [END]


def test_a_muted_queue_takes_nothing_but_the_end() -> None:
    async def scenario() -> None:
        queue = EventQueue()
        queue.put(TextDelta("before"))
        queue.mute()
        queue.put(TextDelta("after"))
        queue.put(END)

        assert [event async for event in queue.drain()] == [END]

    run(scenario())


def test_the_reader_is_stopped_at_the_backlog_and_let_go_when_it_is_taken() -> None:
    async def scenario() -> None:
        queue = EventQueue()
        await queue.has_room()
        queue.put(TextDelta("x" * (TEXT_BACKLOG_CHARS + 1)))
        reader = asyncio.ensure_future(queue.has_room())
        await asyncio.sleep(0)
        assert not reader.done()

        await anext(queue.drain())

        await reader

    run(scenario())


def test_the_end_lets_a_stopped_reader_go() -> None:
    async def scenario() -> None:
        queue = EventQueue()
        queue.put(TextDelta("x" * (TEXT_BACKLOG_CHARS + 1)))

        queue.put(END)

        await queue.has_room()

    run(scenario())


def test_a_tool_update_leaves_what_it_does_not_name() -> None:
    old = ToolActivity("t", "execute", "execute", "ls", ToolStatus.STARTED)

    assert patched(old, ToolActivity("t", "", "", "", ToolStatus.DONE)) == ToolActivity(
        "t", "execute", "execute", "ls", ToolStatus.DONE
    )


def test_an_error_detail_is_capped_and_can_always_be_encoded() -> None:
    for detail in ("x" * 10_000, "\ud83d" * 10_000, "字" * 10_000):
        error = failed(FailureKind.OTHER, detail).error

        assert error is not None
        assert error.detail == HostError(FailureKind.OTHER, detail).detail
        assert len(error.detail) <= DETAIL_CHARS and len(error.detail.encode()) <= 2048 + 100
