"""Agents over the Agent Client Protocol, with a scripted program at the other end."""

import asyncio
import contextlib
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.content import Access, Prompt
from protocol.errors import FailureKind
from protocol.ids import SessionId
from protocol.to_supervisor import DialogPurpose, OpenedHow, TurnOutcome
from protocol.to_worker import Confirmed, DialogAnswer, Dismissed, Picked, Typed
from tests.fakes.hosts import end_of, events_of, opened, run, spec_in, words
from tests.fakes.workers import until
from worker.hosts import base
from worker.hosts.acp import transport
from worker.hosts.acp.session import AcpSession
from worker.hosts.base import (
    AgentEvent,
    AgentRemarked,
    AgentSession,
    BoundaryReason,
    DialogAsked,
    DialogGone,
    HostError,
    Opened,
    PlanChanged,
    SessionSpec,
    TextBoundary,
    TextDelta,
    ToolActivity,
    ToolStatus,
    TurnEnded,
    UsageSeen,
)
from worker.hosts.program import AgentProgram


def died(events: list[object]) -> str:
    """The detail of a turn that ended with its agent."""
    end = end_of(events)  # type: ignore[arg-type]
    assert end.outcome is TurnOutcome.FAILED and end.error is not None
    assert end.error.kind is FailureKind.AGENT_DIED
    return end.error.detail


# --- the agent dies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("DIE", "-9"), ("EXIT 0", "0"), ("EXIT 1", "1"), ("EXIT 139", "139")])
@pytest.mark.parametrize("text", ["", "half an answer"])
def test_an_agent_that_dies_fails_the_turn_after_the_text_so_far(
    script: str, code: str, text: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await events_of(session, f"SAY {text}\n{script}" if text else script)

            assert f"exit code {code}" in died(events)
            assert words(events) == text
            assert session.gone.is_set()

    run(scenario())


def test_the_last_words_on_stderr_are_in_the_detail_and_nowhere_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await events_of(session, "STDERR 300\nDIE")

            assert "LASTWORDS" in died(events)
            assert "LASTWORDS" not in words(events)

    run(scenario())


def test_an_agent_that_logs_into_stderr_without_end_is_not_frozen(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            assert words(await events_of(session, "STDERR 2000\nSAY done")) == "done"

    run(scenario())


def test_an_agent_that_closes_its_output_is_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            assert "closed its output" in died(await events_of(session, "CLOSE"))
            await session.gone.wait()

    run(scenario())


@pytest.mark.parametrize("own_session", [0, 1])
def test_a_child_that_holds_the_output_open_does_not_hide_the_death(own_session: int, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            assert "exit code 7" in died(await events_of(session, f"CHILD {own_session}"))

    try:
        run(scenario())
    finally:
        child = int((tmp_path / "session" / "home" / "child").read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_an_agent_that_dies_between_turns_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            pid = int(words(await events_of(session, "SAY x\nPID")).removeprefix("x"))

            os.kill(pid, signal.SIGKILL)

            await session.gone.wait()

    run(scenario())


# --- opening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "kind", "word"),
    [
        (("--die-before-hello",), FailureKind.AGENT_DIED, "no licence found"),
        (("--exit-silently",), FailureKind.AGENT_DIED, "exit code 0"),
        (("--version-2",), FailureKind.PROTOCOL, "version 2"),
        (("--auth",), FailureKind.AUTH, "log in"),
    ],
)
def test_what_keeps_an_agent_from_opening_is_told(
    flags: tuple[str, ...], kind: FailureKind, word: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        with pytest.raises(HostError) as caught:
            async with opened("acp", spec_in(tmp_path, *flags)):
                pass

        assert caught.value.kind is kind
        assert word in caught.value.detail

    run(scenario())


def test_a_program_that_does_not_exist_is_a_setting_to_mend(tmp_path: Path) -> None:
    async def scenario() -> None:
        for command in ((), ("/nowhere/agent",), ("with\0nul",)):
            with pytest.raises(HostError) as caught:
                async with opened("acp", replace(spec_in(tmp_path), command=command)):
                    pass

            assert caught.value.kind is FailureKind.NOT_CONFIGURED

    run(scenario())


def test_a_tool_list_that_only_the_sandbox_could_keep_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        for tools, access in ((frozenset({"read"}), Access.WORKSPACE), (frozenset[str](), Access.READONLY)):
            with pytest.raises(HostError) as caught:
                async with opened("acp", replace(spec_in(tmp_path), tools=tools, access=access)):
                    pass
            assert caught.value.kind is FailureKind.NOT_CONFIGURED

        async with opened("acp", replace(spec_in(tmp_path), tools=frozenset(), access=Access.CHAT)) as session:
            assert "hi" in words(await events_of(session, "hi"))

    run(scenario())


def test_an_open_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = AcpSession()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await session.open(spec_in(tmp_path, "--deaf"))

        await session.close()

        assert session.gone.is_set()

    run(scenario())


def test_the_agent_sees_nothing_of_the_workers_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_SECRET", "x")

    async def scenario() -> None:
        spec = replace(spec_in(tmp_path), env=(("API_BASE", "http://x"), ("HOME", "/root")))
        async with opened("acp", spec) as session:
            seen = json.loads(words(await events_of(session, "WHOAMI")))

            assert seen["env"] == ["API_BASE", "HOME", "LANG", "PATH", "TMPDIR"]
            assert seen["cwd"] == str(spec.workspace)
            assert seen["home"] == str(spec.session_dir / "home")

    run(scenario())


@pytest.mark.parametrize(("flag", "mode"), [("--modes", "default"), ("--config-mode", "read-only")])
def test_the_mode_that_asks_is_set_after_new_and_after_load(flag: str, mode: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = spec_in(tmp_path, flag)
        session = AcpSession()
        made = await session.open(spec)
        assert f"mode={mode}" in words(await events_of(session, "MODE"))
        await session.close()

        async with opened("acp", replace(spec, session_id=made.session_id)) as again:
            assert f"mode={mode}" in words(await events_of(again, "MODE"))

    run(scenario())


def test_a_mode_that_stops_asking_is_set_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path, "--modes")) as session:
            assert words(await events_of(session, "CARELESS")) == "mode=default"

    run(scenario())


# --- resuming ---------------------------------------------------------------------------------------------------


async def reopened(tmp_path: Path, *flags: str, session_id: SessionId | None = None) -> tuple[AcpSession, Opened]:
    """A session with one turn behind it, opened again by a second program."""
    first = AcpSession()
    made = await first.open(spec_in(tmp_path))
    await events_of(first, "remember me")
    await first.close()
    second = AcpSession()
    spec = replace(spec_in(tmp_path, *flags), session_id=session_id or made.session_id)
    return second, await second.open(spec)


@pytest.mark.parametrize("flags", [(), ("--resume",), ("--resume-lies",), ("--replay-after",)])
def test_a_replayed_history_never_reaches_the_peer(flags: tuple[str, ...], tmp_path: Path) -> None:
    async def scenario() -> None:
        session, how = await reopened(tmp_path, *flags)
        try:
            events = await events_of(session, "HISTORY")

            assert how.how is OpenedHow.RESUMED
            assert "OLD" not in words(events)
            assert words(events) == "3", "the conversation went on: two lines of the first turn and this prompt"
        finally:
            await session.close()

    run(scenario())


@pytest.mark.parametrize(("flags", "known"), [(("--no-load",), True), ((), False), (("--die-on-load",), True)])
def test_a_session_that_cannot_be_resumed_starts_fresh_and_says_so(
    flags: tuple[str, ...], known: bool, tmp_path: Path
) -> None:
    async def scenario() -> None:
        session, how = await reopened(tmp_path, *flags, session_id=None if known else SessionId("lost"))
        try:
            assert how.how is OpenedHow.FRESH_AFTER_FAILED_RESUME
            assert words(await events_of(session, "HISTORY")) == "1"
        finally:
            await session.close()

    run(scenario())


def test_a_fresh_program_is_not_taken_for_the_one_that_died_over_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is seen first: the death of the old program, or that the new one is being started."""
    ended, started = AgentProgram.exited, AgentProgram.start

    async def seen_late(program: AgentProgram) -> None:
        await ended(program)
        await asyncio.sleep(0.02)

    async def slowly(spec: SessionSpec) -> AgentProgram:
        await asyncio.sleep(0.1)
        return await started(spec)

    async def scenario() -> None:
        monkeypatch.setattr(AgentProgram, "exited", seen_late)
        monkeypatch.setattr(AgentProgram, "start", slowly)
        session, how = await reopened(tmp_path, "--die-on-load")
        try:
            assert how.how is OpenedHow.FRESH_AFTER_FAILED_RESUME
            assert not session.gone.is_set()
        finally:
            await session.close()

    run(scenario())


def test_an_agent_that_goes_on_by_itself_after_a_load_is_not_allowed_to(tmp_path: Path) -> None:
    """B-034"""

    async def scenario() -> None:
        session, _ = await reopened(tmp_path, "--act-on-load")
        try:
            assert "OLD" not in words(await events_of(session, "hi"))
            acted = tmp_path / "session" / "home" / "acted"
            await until(lambda: acted.exists() and acted.read_text() != "")  # it is told in its own time
            assert acted.read_text() == "cancelled"
        finally:
            await session.close()

    run(scenario())


# --- stopping ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("--end-turn",), ("--late",)])
@pytest.mark.parametrize("script", ["SLOW 1000", "TOOLS 1\nWAIT"])
def test_a_stopped_turn_is_aborted_whatever_the_agent_calls_it(
    flags: tuple[str, ...], script: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path, *flags)) as session:
            events = []
            async for event in session.turn(Prompt(text=script)):
                events.append(event)
                await session.abort()
                await session.abort()

            assert end_of(events) == TurnEnded(TurnOutcome.ABORTED)
            after = words(await events_of(session, "MODE"))
            assert "cancels=1" in after, "two stops are one cancel"
            assert "LATE" not in after

    run(scenario())


@pytest.mark.parametrize("flags", [("--ignore-term",), ("--never-cancel",)])
def test_an_agent_that_does_not_stop_is_ended_after_the_grace(flags: tuple[str, ...], tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = replace(spec_in(tmp_path, *flags), stop_grace_s=0.2)
        async with opened("acp", spec) as session:
            events = []
            started = 0.0
            async for event in session.turn(Prompt(text="HANG" if "--ignore-term" in flags else "SAY x\nWAIT")):
                events.append(event)
                if not started:
                    started = time.monotonic()
                    await session.abort()

            assert end_of(events) == TurnEnded(TurnOutcome.ABORTED)
            assert time.monotonic() - started < 5.0
            assert session.gone.is_set()

    run(scenario())


def test_closing_ends_a_running_turn_and_an_agent_that_ignores_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path, "--ignore-term")) as session:
            turn = session.turn(Prompt(text="HANG"))
            first = await anext(turn)

            await session.close()

            assert first == TextDelta("x")
            assert [event async for event in turn] == [TurnEnded(TurnOutcome.ABORTED)]

    run(scenario())


# --- what the agent says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("EMPTY", TurnOutcome.COMPLETED),
        ("REFUSE", TurnOutcome.DECLINED),
        ("MAXTOKENS", TurnOutcome.LIMIT),
    ],
)
def test_every_stop_reason_has_its_outcome(script: str, outcome: TurnOutcome, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            assert await events_of(session, script) == [TurnEnded(outcome)]

    run(scenario())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("-32000", FailureKind.AUTH),
        ("401", FailureKind.AUTH),
        ("429", FailureKind.OVERLOADED),
        ("5", FailureKind.OTHER),
    ],
)
def test_an_error_ends_the_turn_and_its_words_stay_in_the_detail(code: str, kind: FailureKind, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await events_of(session, f"SAY so far\nERROR {code}")

            end = end_of(events)
            assert end.outcome is TurnOutcome.FAILED and end.error is not None
            assert end.error.kind is kind and "/secret/path" in end.error.detail
            assert words(events) == "so far"
            assert "fine" in words(await events_of(session, "fine")), "the session goes on"

    run(scenario())


def test_thousands_of_updates_in_a_moment_arrive_in_order_and_the_turn_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await events_of(session, "FLOOD 10000")

            assert end_of(events).outcome is TurnOutcome.COMPLETED
            assert words(events).split() == [str(number) for number in range(1, 10_000, 2)]
            assert len(events) < 5_000

    run(scenario())


def test_a_consumer_that_does_not_read_stops_the_agent_instead_of_filling_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "TEXT_BACKLOG_CHARS", 4_000)

    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = []
            async for event in session.turn(Prompt(text="FLOOD 40000")):
                events.append(event)
                await asyncio.sleep(0.01)  # a slow consumer: the agent could be done long before

            assert words(events).split() == [str(number) for number in range(1, 40_000, 2)]
            assert max(len(event.text) for event in events if isinstance(event, TextDelta)) < 8_000

    run(scenario())


@pytest.mark.parametrize("megabytes", [0.07, 5, 60])
def test_a_long_line_costs_nothing(megabytes: float, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            assert words(await events_of(session, f"LINE {megabytes}\nSAY after")) == "after"

    run(scenario())


@pytest.mark.parametrize(("size", "kept"), [(4095, True), (4096, True), (4097, False)])
def test_a_line_over_the_limit_is_dropped_whole_and_the_stream_goes_on(
    size: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LINE_BYTES", 4096)

    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await events_of(session, f"SIZED {size}\nSAY after")

            assert end_of(events).outcome is TurnOutcome.COMPLETED
            assert words(events) == ("x" if kept else "") + "after"
            assert any(isinstance(event, AgentRemarked) for event in events) is not kept

    run(scenario())


def test_an_answer_over_the_limit_fails_the_turn_instead_of_hanging_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LINE_BYTES", 64 * 1024)

    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            died(await events_of(session, "LONGANSWER 1\nWAIT"))

    run(scenario())


def test_nonsense_on_the_stream_costs_a_remark_and_not_the_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await events_of(session, "SAY a\nJUNK\nODD\nSAY b")

            assert end_of(events).outcome is TurnOutcome.COMPLETED
            assert words(events) == "ab"
            assert any(isinstance(event, AgentRemarked) for event in events)
            assert {event.call_id for event in events if isinstance(event, ToolActivity)} == {"n1", "never"}

    run(scenario())


def test_every_request_of_the_agent_gets_an_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            told = words(await events_of(session, "UNKNOWN_REQUEST"))

            assert told.split() == [
                f"{name}=-32601" for name in ("_vendor/drain", "fs/read_text_file", "terminal/create", "no/such")
            ]

    run(scenario())


async def conversed(session: AgentSession, script: str, *answers: DialogAnswer) -> list[AgentEvent]:
    """All events of a turn in which the peer answers so."""
    left = list(answers)
    events = []
    async for event in session.turn(Prompt(script)):
        events.append(event)
        if isinstance(event, DialogAsked):
            assert await session.answer(event.dialog_id, left.pop(0))
    assert not left
    return events


def request(method: str, **params: object) -> str:
    return f"REQUEST {method} {json.dumps(params)}"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Confirmed(True), "selected"),
        (Confirmed(False), "selected"),
        (Picked("yes"), "selected"),
        (Dismissed(), "selected"),
    ],
)
def test_a_permission_is_asked_once_and_its_answer_reaches_the_agent(
    answer: DialogAnswer, said: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await conversed(session, "PERMISSION", answer)

            (dialog,) = (event for event in events if isinstance(event, DialogAsked))
            assert (dialog.purpose, dialog.title) == (DialogPurpose.PERMISSION, "touch zz")
            assert words(events) == f"permission={said}"
            assert end_of(events).outcome is TurnOutcome.COMPLETED
            assert not await session.answer(dialog.dialog_id, answer), "nobody waits any more"

    run(scenario())


def test_two_questions_at_once_are_put_one_after_the_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await conversed(session, "TWICE", Confirmed(True), Confirmed(False))

            assert json.loads(words(events)) == {"first": "yes", "second": "no"}

    run(scenario())


def test_a_question_that_the_agent_withdraws_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await events_of(session, "WITHDRAW\nSAY on")

            dialog, gone = (event for event in events if isinstance(event, DialogAsked | DialogGone))
            assert isinstance(gone, DialogGone) and gone.dialog_id == dialog.dialog_id
            assert words(events) == "on"

    run(scenario())


def test_a_form_is_asked_property_by_property_and_answered_whole(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}, "sure": {"type": "boolean"}},
    }

    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            script = request("elicitation/create", mode="form", message="Paint?", requestedSchema=schema)
            events = await conversed(session, script, Picked("1"), Confirmed(True))

            assert json.loads(words(events)) == {"action": "accept", "content": {"colour": "blue", "sure": True}}

    run(scenario())


def test_a_plans_feedback_is_the_agents_next_prompt_of_the_same_turn(tmp_path: Path) -> None:
    call = {"toolCallId": "x", "kind": "switch_mode", "content": [{"content": {"type": "text", "text": "1. dig"}}]}
    options = [
        {"optionId": "exit-plan-auto", "name": "Auto", "kind": "allow_always"},
        {"optionId": "exit-plan-default", "name": "Go", "kind": "allow_once"},
        {"optionId": "stay", "name": "No", "kind": "reject_once"},
    ]

    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            script = request("session/request_permission", toolCall=call, options=options)
            events = await conversed(session, script, Typed("SAY deeper"))

            (dialog,) = (event for event in events if isinstance(event, DialogAsked))
            assert (dialog.purpose, dialog.body) == (DialogPurpose.PLAN_REVIEW, "1. dig")
            assert words(events) == '{"outcome": {"outcome": "selected", "optionId": "stay"}}deeper'
            assert sum(isinstance(event, TurnEnded) for event in events) == 1

    run(scenario())


@pytest.mark.parametrize("script", ["PERMISSION", "TWICE"])
def test_a_stop_settles_what_is_open_before_the_agent_hears_of_it(script: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = []
            async for event in session.turn(Prompt(script)):
                events.append(event)
                if isinstance(event, DialogAsked):
                    await session.abort()
                    assert not await session.answer(event.dialog_id, Confirmed(True))
            assert end_of(events).outcome is TurnOutcome.ABORTED
            assert not session.gone.is_set(), "it stopped by itself"
            assert words(await events_of(session, "SAY next")) == "next"

    run(scenario())


def test_tools_plan_and_usage_become_events_and_thoughts_become_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await events_of(session, "SAY a\nTHINK\nTOOLS 1\nUSAGE\nSAY b")

            assert words(events) == "ab"
            assert events[:2] == [TextDelta("a"), TextBoundary(BoundaryReason.TOOL)]
            tools = [event for event in events if isinstance(event, ToolActivity)]
            assert tools[-1] == ToolActivity("t0", "execute", "execute", "step 0", ToolStatus.DONE)
            assert PlanChanged((("a", "pending"),)) in events
            assert UsageSeen(context_used=1000, context_size=128000) in events

    run(scenario())


def test_a_new_message_of_the_agent_is_a_boundary(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            events = await events_of(session, "MESSAGE x")

            boundary = TextBoundary(BoundaryReason.MESSAGE)
            assert events[:-1] == [TextDelta("x one"), boundary, TextDelta("x two")]

    run(scenario())


@pytest.mark.parametrize("last", ["SAY the third part", "SAY the first part is here, the second part, the third part"])
def test_an_answer_repeated_whole_after_the_last_tool_is_told_once(last: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            script = f"SAY the first part is here, \nTOOLS 1\nSAY the second part, \nTOOLS 2\n{last}"

            told = words(await events_of(session, script))

            assert told == "the first part is here, the second part, the third part"

    run(scenario())


def test_half_a_character_costs_only_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            assert words(await events_of(session, "SURROGATE")) == "ok \ufffd done 😀"

    run(scenario())


def test_the_prompt_keeps_the_bridges_notes_apart_from_the_peers_words(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n....")

    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            told = words(
                await events_of(
                    session, "BLOCKS", notes=("[note 1]", "[note 2]"), images=(str(picture),), files=("/srv/b c.txt",)
                )
            )

            blocks = json.loads(told)
            assert [block["type"] for block in blocks] == ["text"] * 3 + ["image"] + ["resource_link"] * 2
            assert [block["text"] for block in blocks[:3]] == ["[note 1]", "[note 2]", "BLOCKS"]
            assert blocks[-1]["uri"] == "file:///srv/b%20c.txt"

    run(scenario())


def test_a_prompt_that_looks_like_a_command_reaches_the_agent_as_text(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("acp", spec_in(tmp_path)) as session:
            assert words(await events_of(session, "/quit")) == "You said: /quit"
            assert words(await events_of(session, "!ls\u2028@file")) == "You said: !ls\u2028@file"

    run(scenario())
