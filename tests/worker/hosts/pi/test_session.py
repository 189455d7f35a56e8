"""The Pi host against a scripted Pi (tests/fakes/pi_agent.py). tests/agents/test_pi.py has the real one."""

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.agents import Approvals
from protocol.content import Access, Prompt
from protocol.errors import FailureKind
from protocol.ids import SessionId
from protocol.to_supervisor import DialogKind, DialogPurpose, OpenedHow, TurnOutcome
from protocol.to_worker import Confirmed, DialogAnswer, Dismissed, Picked, Typed
from tests.fakes.hosts import end_of, events_of, opened, pi_in, run, words
from worker.hosts import lines as line_reader
from worker.hosts.base import (
    AgentEvent,
    AgentRemarked,
    AgentSession,
    DialogAsked,
    DialogGone,
    HostError,
    PlanChanged,
    SessionSpec,
    ToolActivity,
    ToolControl,
    ToolStatus,
)
from worker.hosts.pi.session import PiSession


def heard(folder: Path, text: str, *flags: str, **more: Any) -> list[AgentEvent]:
    """One turn of a session of its own."""

    async def scenario() -> list[AgentEvent]:
        async with opened("pi", pi_in(folder, *flags)) as session:
            return await events_of(session, text, **more)

    return run(scenario())


async def answered(
    session: AgentSession, text: str, *answers: DialogAnswer
) -> tuple[list[AgentEvent], list[DialogAsked]]:
    """A turn whose dialogs get these answers, in order."""
    left, events = list(answers), []
    async for event in session.turn(Prompt(text=text)):
        events.append(event)
        if isinstance(event, DialogAsked):
            answer = left.pop(0)
            assert await session.answer(event.dialog_id, answer)
            assert not await session.answer(event.dialog_id, answer), "an answer counts once"
    return events, [event for event in events if isinstance(event, DialogAsked)]


async def refused(spec: SessionSpec) -> HostError:
    session = PiSession()
    with pytest.raises(HostError) as error:
        await session.open(spec)
    await session.close()
    return error.value


def remarks(events: list[AgentEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, AgentRemarked)]


# --- opening --------------------------------------------------------------------------------------------------


def test_the_program_tells_its_version_and_an_older_one_is_refused_by_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("pi", pi_in(tmp_path)) as session:
            assert (session.traits.name, session.traits.version) == ("pi", "1.6.0")
            assert session.traits.tool_control is ToolControl.EXACT
            assert session.traits.images and session.traits.resume

        error = await refused(pi_in(tmp_path, "--old", "1.0.3"))

        assert error.kind is FailureKind.NOT_CONFIGURED
        assert "1.0.3" in error.detail and "1.0.4" in error.detail

    run(scenario())


def test_the_version_is_asked_once_a_program(tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = pi_in(tmp_path)
        async with opened("pi", spec):
            pass
        kept = spec.session_dir / "pi" / "version"
        kept.write_text(kept.read_text().replace("1.6.0", "1.7.0"))

        async with opened("pi", spec) as session:
            assert session.traits.version == "1.7.0"
        async with opened("pi", replace(spec, command=(*spec.command, "--deaf"))) as session:
            assert session.traits.version == "1.6.0", "another program is asked anew"

    run(scenario())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"command": ()}, "no command"),
        ({"model": ""}, "[agent] model"),
        ({"tools": frozenset({"oven"})}, "no tool oven; it has read"),
        ({"command": ("/nowhere/pi",)}, "pi does not start"),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    error = run(refused(replace(pi_in(tmp_path), **change)))

    assert error.kind is FailureKind.NOT_CONFIGURED
    assert says in error.detail


@pytest.mark.parametrize(
    ("flag", "kind", "says"),
    [
        ("--die-on-open", FailureKind.AGENT_DIED, "exit code 1; last words: Error: Model not found"),
        ("--no-extension", FailureKind.PROTOCOL, "extension"),
        ("--nameless", FailureKind.AGENT_DIED, "--version"),
    ],
)
def test_a_pi_that_cannot_be_used_is_told_with_its_reason(
    tmp_path: Path, flag: str, kind: FailureKind, says: str
) -> None:
    error = run(refused(pi_in(tmp_path, flag)))

    assert error.kind is kind
    assert says in error.detail


def test_pi_gets_its_own_folders_the_contract_and_no_more_than_it_needs(tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = replace(
            pi_in(tmp_path), contract="You are\non a phone.\n", tools=frozenset({"read", "ask"}),
            env=(("PI_OFFLINE", "0"), ("OWN", "1")), approvals=Approvals.ALLOW,
        )  # fmt: skip
        async with opened("pi", spec) as session:
            command = json.loads(words(await events_of(session, "ARGUMENTS")))
            environment = json.loads(words(await events_of(session, "ENVIRONMENT")))
            models = json.loads(words(await events_of(session, "MODELS")))

        own = str(spec.session_dir / "pi")
        assert command[command.index("--append-system-prompt") + 1] == spec.contract
        assert command[command.index("--tools") + 1] == "read,ls,ask_user_question"
        assert command[command.index("--session-dir") + 1].startswith(own)
        assert environment["PI_CODING_AGENT_DIR"].startswith(own)
        assert environment["HOME"].startswith(str(spec.session_dir))
        assert (environment["PI_OFFLINE"], environment["OWN"]) == ("1", "1"), "what keeps it closed is ours"
        assert models["providers"]["gateway"]["baseUrl"] == "http://127.0.0.1:9/v1"
        assert not {"SSH_AUTH_SOCK", "PYTHONPATH"} & environment.keys()
        assert environment["OPENAI_API_KEY"] == spec.token
        assert environment["BRIDGE_ASK"] == ""

    run(scenario())


@pytest.mark.parametrize(
    ("access", "tools", "expected"),
    [
        (Access.CHAT, None, ["--tools", "ask_user_question"]),
        (Access.READONLY, None, ["--tools", "read,ls,todo,ask_user_question,send_file"]),
        (Access.WORKSPACE, frozenset[str](), ["--no-tools"]),
        (Access.READONLY, frozenset({"bash"}), ["--no-tools"]),
    ],
)
def test_the_tools_are_those_of_the_access_level_and_the_list(
    tmp_path: Path, access: Access, tools: frozenset[str] | None, expected: list[str]
) -> None:
    async def scenario() -> None:
        async with opened("pi", replace(pi_in(tmp_path), access=access, tools=tools)) as session:
            command = json.loads(words(await events_of(session, "ARGUMENTS")))

        assert command[-len(expected) :] == expected

    run(scenario())


# --- resuming -------------------------------------------------------------------------------------------------


def conversation(spec: SessionSpec, *texts: str) -> SessionId:
    async def scenario() -> SessionId:
        session = PiSession()
        opened_ = await session.open(spec)
        for text in texts:
            await events_of(session, text)
        await session.close()
        return opened_.session_id

    return run(scenario())


def reopened(spec: SessionSpec) -> tuple[SessionId, OpenedHow, list[str]]:
    """How it was opened, and what it remembers."""

    async def scenario() -> tuple[SessionId, OpenedHow, list[str]]:
        session = PiSession()
        try:
            opened_ = await session.open(spec)
            return opened_.session_id, opened_.how, json.loads(words(await events_of(session, "MEMORY")))
        finally:
            await session.close()

    return run(scenario())


def test_a_conversation_goes_on_where_it_was(tmp_path: Path) -> None:
    spec = pi_in(tmp_path)
    session_id = conversation(spec, "one", "two")

    assert reopened(replace(spec, session_id=session_id)) == (session_id, OpenedHow.RESUMED, ["one", "two"])
    assert reopened(spec)[1:] == (OpenedHow.NEW, [])


def test_a_conversation_that_never_began_has_nothing_to_lose(tmp_path: Path) -> None:
    spec = pi_in(tmp_path)
    conversation(spec, "the one before")
    session_id = conversation(spec)

    assert reopened(replace(spec, session_id=session_id)) == (session_id, OpenedHow.RESUMED, [])


def test_a_conversation_that_was_lost_is_said_to_be_and_starts_anew(tmp_path: Path) -> None:
    spec = pi_in(tmp_path)
    session_id = conversation(spec, "one")
    for file in (spec.session_dir / "pi" / "sessions").glob("*.jsonl"):
        file.unlink()

    found, how, remembered = reopened(replace(spec, session_id=session_id))

    assert found != session_id
    assert (how, remembered) == (OpenedHow.FRESH_AFTER_FAILED_RESUME, [])


@pytest.mark.parametrize("session_id", ["../x", "-flag", "acp session", ""])
def test_an_id_that_is_none_of_pis_is_no_conversation(tmp_path: Path, session_id: str) -> None:
    found, how, _ = reopened(replace(pi_in(tmp_path), session_id=SessionId(session_id)))

    assert found.isalnum()
    assert how is OpenedHow.FRESH_AFTER_FAILED_RESUME


def test_a_pi_that_dies_over_a_conversation_gets_a_fresh_one(tmp_path: Path) -> None:
    spec = pi_in(tmp_path, "--die-on-session")
    session_id = conversation(spec, "one")

    found, how, remembered = reopened(replace(spec, session_id=session_id))

    assert found != session_id
    assert (how, remembered) == (OpenedHow.FRESH_AFTER_FAILED_RESUME, [])


def test_a_conversation_held_in_another_folder_is_taken_along(tmp_path: Path) -> None:
    """Pi finds a conversation only from the folder it began in, and an access level may bring another folder."""
    spec = pi_in(tmp_path)
    session_id = conversation(spec, "one")
    moved = replace(spec, workspace=spec.session_dir, access=Access.CHAT, session_id=session_id)

    found, how, remembered = reopened(moved)

    assert found != session_id
    assert (how, remembered) == (OpenedHow.RESUMED, ["one"])
    assert reopened(replace(moved, session_id=found))[0] == found


# --- turns ----------------------------------------------------------------------------------------------------


def test_words_outside_of_a_turn_are_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("pi", pi_in(tmp_path)) as session:
            first, second = await events_of(session, "one"), await events_of(session, "two")

            assert words(first) == "You said: one"
            assert words(second) == "You said: two"

    run(scenario())


def test_notes_stay_apart_from_the_peers_words_and_name_what_is_attached(tmp_path: Path) -> None:
    events = heard(tmp_path, "NOTES", notes=("[bridge: late]",), files=("/m/a.txt",))

    assert json.loads(words(events)) == ["[bridge: late]", "[bridge: attached: /m/a.txt]"]


def test_pictures_go_along_as_such_and_what_is_none_by_its_path_alone(tmp_path: Path) -> None:
    shot, text = tmp_path / "shot.dat", tmp_path / "text.png"
    shot.write_bytes(b"\x89PNG\r\n\x1a\nabc")
    text.write_bytes(b"no picture")

    events = heard(tmp_path, "PICTURES", images=(str(shot), str(text)))

    assert json.loads(words(events)) == [["image/png", 16]]


def test_only_the_last_word_ends_a_turn_that_was_retried(tmp_path: Path) -> None:
    events = heard(tmp_path, "RETRY")

    assert end_of(events).outcome is TurnOutcome.COMPLETED
    assert words(events) == "better"
    assert remarks(events) == ["the model server failed; the agent tries again"]


ENDS: list[tuple[str, TurnOutcome, FailureKind | None]] = [
    ("SILENT", TurnOutcome.COMPLETED, None),
    ("HANDLED", TurnOutcome.COMPLETED, None),
    ("SAY a\nSTOP length", TurnOutcome.LIMIT, None),
    ("FAIL 401 unauthorized", TurnOutcome.FAILED, FailureKind.AUTH),
    ("FAIL The model refused to complete the request", TurnOutcome.DECLINED, None),
    ("REFUSE", TurnOutcome.FAILED, FailureKind.OVERLOADED),
]


def test_every_end_has_its_outcome_and_leaves_the_session_usable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("pi", pi_in(tmp_path)) as session:
            for text, outcome, kind in ENDS:
                end = end_of(await events_of(session, text))

                assert (text, end.outcome, end.error.kind if end.error else None) == (text, outcome, kind)

    run(scenario())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SAY half\nDIE", "exit code -9"),
        ("SAY half\nEXIT 0", "exit code 0; last words: no more"),
        ("SAY half\nCLOSE", "closed its output"),
        ("SAY half\nCHILD", "exit code 7"),
        ("SAY half\nEXIT 3", "exit code 3"),
    ],
)
def test_a_pi_that_dies_costs_the_turn_after_its_last_words(tmp_path: Path, text: str, says: str) -> None:
    async def scenario() -> None:
        async with opened("pi", pi_in(tmp_path)) as session:
            events = await events_of(session, text)

            end = end_of(events)
            assert words(events) == "half"
            assert end.outcome is TurnOutcome.FAILED
            assert end.error is not None and end.error.kind is FailureKind.AGENT_DIED
            assert says in end.error.detail
            assert session.gone.is_set()

    run(scenario())


def test_a_pi_that_dies_between_turns_is_known_to_be_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = PiSession()
        await session.open(pi_in(tmp_path))
        session._program_of().kill()

        await session.gone.wait()

        assert end_of(await events_of(session, "hello")).outcome is TurnOutcome.FAILED
        await session.close()

    run(scenario())


def test_nonsense_costs_a_remark_and_odd_characters_nothing(tmp_path: Path) -> None:
    events = heard(tmp_path, "JUNK\nSTDERR 200000\nSAY end")

    assert words(events) == "\ufffd!a\u2028b\r\0end"
    assert end_of(events).outcome is TurnOutcome.COMPLETED
    assert remarks(events) == ["the agent wrote a line that is no record"] * 3


def test_a_line_of_megabytes_is_read_and_one_over_the_limit_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert words(heard(tmp_path, "LONG 5000000\nSAY end")) == "end"
    assert line_reader.lines.__kwdefaults__ is not None
    monkeypatch.setitem(line_reader.lines.__kwdefaults__, "limit_bytes", 4096)

    events = heard(tmp_path, "LONG 5000\nSAY end")

    assert words(events) == "end"
    assert remarks(events) == ["the agent sent a line over the limit; it was dropped"]


def test_tools_and_the_todo_list_are_told(tmp_path: Path) -> None:
    events = heard(tmp_path, "TOOL read\nTODO\nTOOL broken")

    ends = [(event.name, event.status) for event in events if isinstance(event, ToolActivity)]
    assert ends[-1] == ("broken", ToolStatus.FAILED)
    assert ("read", ToolStatus.DONE) in ends
    assert PlanChanged((("one", "completed"), ("two", "pending"))) in events


def test_a_notice_of_an_extension_is_for_the_operator(tmp_path: Path) -> None:
    events = heard(tmp_path, "NOTIFY low on tokens")

    assert [event for event in events if isinstance(event, AgentRemarked)] == [
        AgentRemarked("warning", "low on tokens")
    ]
    assert words(events) == ""


# --- dialogs --------------------------------------------------------------------------------------------------


DIALOGS: list[tuple[str, DialogKind, DialogAnswer, dict[str, Any]]] = [
    ("CONFIRM", DialogKind.CONFIRM, Confirmed(True), {"confirmed": True}),
    ("CONFIRM", DialogKind.CONFIRM, Dismissed(), {"cancelled": True}),
    ("SELECT", DialogKind.SELECT, Picked("1"), {"value": "blue"}),
    ("SELECT other", DialogKind.SELECT, Typed("green"), {"value": "green"}),
    ("INPUT", DialogKind.INPUT, Typed("Ada\nL."), {"value": "Ada\nL."}),
    ("EDITOR", DialogKind.EDITOR, Typed("new"), {"value": "new"}),
    ("EDITOR", DialogKind.EDITOR, Dismissed(), {"cancelled": True}),
    ("PERMIT rm x", DialogKind.CONFIRM, Confirmed(False), {"confirmed": False}),
    ("PLAN", DialogKind.EDITOR, Picked("keep"), {"value": "keep"}),
    ("PLAN", DialogKind.EDITOR, Typed("keep"), {"value": "changes:keep"}),
]


def test_a_dialogs_answer_reaches_pi(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("pi", pi_in(tmp_path)) as session:
            for text, kind, answer, told in DIALOGS:
                events, asked = await answered(session, text, answer)

                assert [dialog.kind for dialog in asked] == [kind]
                assert json.loads(words(events)) == told
                assert end_of(events).outcome is TurnOutcome.COMPLETED
                assert not await session.answer(asked[0].dialog_id, answer), "nobody waits any more"

    run(scenario())


def test_a_permission_shows_the_command(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("pi", pi_in(tmp_path)) as session:
            _, (asked,) = await answered(session, "PERMIT rm x", Confirmed(True))

            assert (asked.purpose, asked.title, asked.body) == (DialogPurpose.PERMISSION, "bash", "rm x")

    run(scenario())


def test_two_dialogs_at_once_are_both_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("pi", pi_in(tmp_path)) as session:
            events, asked = await answered(session, "TWICE", Typed("a"), Typed("b"))

            assert sorted(dialog.title for dialog in asked) == ["One?", "Two?"]
            assert end_of(events).outcome is TurnOutcome.COMPLETED

    run(scenario())


def test_what_cannot_be_asked_is_declined_at_once(tmp_path: Path) -> None:
    events = heard(tmp_path, "BAD_DIALOG")

    assert json.loads(words(events)) == {"cancelled": True}
    assert not [event for event in events if isinstance(event, DialogAsked)]


def test_a_dialog_that_pi_gave_up_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("pi", pi_in(tmp_path)) as session:
            events, late = [], []
            async for event in session.turn(Prompt(text="TIMED 50")):
                events.append(event)
                if isinstance(event, DialogGone):
                    late.append(await session.answer(event.dialog_id, Confirmed(True)))

            (asked,) = [event for event in events if isinstance(event, DialogAsked)]
            assert asked.expires_s == 0.05
            assert late == [False]
            assert end_of(events).outcome is TurnOutcome.COMPLETED

    run(scenario())


# --- stopping -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["SLOW 600", "SELECT", "CONFIRM\nSLOW 600", "PLAN\nSLOW 600"])
def test_an_abort_in_text_or_in_a_dialog_ends_the_turn_and_the_session_lives(tmp_path: Path, text: str) -> None:
    async def scenario() -> None:
        async with opened("pi", pi_in(tmp_path)) as session:
            started = time.monotonic()
            events = []
            async for event in session.turn(Prompt(text=text)):
                events.append(event)
                await session.abort()

            assert end_of(events).outcome is TurnOutcome.ABORTED
            assert time.monotonic() - started < 4, "well within the grace"
            assert not session.gone.is_set()
            assert words(await events_of(session, "next")) == "You said: next"

    run(scenario())


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--deaf",), "SLOW 600"),
        (("--deaf", "--ignore-term"), "SLOW 600"),
        (("--never-settles",), "SLOW 600"),
        ((), "HANG"),
    ],
)
def test_a_pi_that_does_not_stop_is_ended_after_the_grace(tmp_path: Path, flags: tuple[str, ...], text: str) -> None:
    async def scenario() -> None:
        async with opened("pi", replace(pi_in(tmp_path, *flags), stop_grace_s=0.2)) as session:
            events = []
            async for event in session.turn(Prompt(text=text)):
                events.append(event)
                await session.abort()

            assert end_of(events).outcome is TurnOutcome.ABORTED
            assert session.gone.is_set()

    run(scenario())


def test_a_pi_that_dies_while_it_is_stopped_counts_as_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("pi", pi_in(tmp_path, "--deaf")) as session:
            events: list[AgentEvent] = []
            async for event in session.turn(Prompt(text="SLOW 10\nEXIT 1")):
                events.append(event)
                await session.abort()

            assert end_of(events).outcome is TurnOutcome.ABORTED

    run(scenario())


def test_closing_in_the_middle_of_a_turn_ends_turn_and_program(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = PiSession()
        await session.open(pi_in(tmp_path, "--ignore-term"))
        pid = session._program_of()._pid
        turn = session.turn(Prompt(text="SLOW 600"))
        await anext(aiter(turn))

        await session.close()

        assert end_of([event async for event in turn]).outcome is TurnOutcome.ABORTED
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(scenario())


def test_closing_while_it_opens_leaves_no_program(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = PiSession()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await session.open(pi_in(tmp_path, "--hesitate"))
        pid = session._program_of()._pid

        await session.close()

        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(scenario())
