"""The built-in agent against a scripted model server: tools, permissions, plans, stops, its memory, and its model's faults."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.models.function import FunctionModel

from protocol.agents import TOOLS_BY_ACCESS, Approvals
from protocol.content import Access, Prompt
from protocol.errors import FailureKind
from protocol.to_supervisor import (
    ALLOW_ONCE,
    PLAN_GO,
    PLAN_KEEP,
    PLAN_LEAVE,
    REFUSE,
    DialogPurpose,
    OpenedHow,
    TurnOutcome,
)
from protocol.to_worker import DialogAnswer, Dismissed, Picked, Typed
from tests.fakes.hosts import builtin_in, end_of, events_of, model, opened, run, words
from worker import hosts
from worker.hosts.base import (
    AgentEvent,
    AgentSession,
    DialogAsked,
    HostError,
    PlanChanged,
    SessionSpec,
    ToolActivity,
    ToolStatus,
    UsageSeen,
)
from worker.hosts.builtin import history
from worker.hosts.builtin import session as module
from worker.hosts.builtin.tools import REFUSED

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


def call(tool: str, **arguments: Any) -> str:
    return f"CALL {tool} {json.dumps(arguments)}"


async def conversed(session: AgentSession, text: str, *answers: DialogAnswer) -> list[AgentEvent]:
    """All events of a turn in which the peer answers so."""
    left, events = list(answers), []
    async for event in session.turn(Prompt(text)):
        events.append(event)
        if isinstance(event, DialogAsked):
            assert await session.answer(event.dialog_id, left.pop(0))
    assert not left, "not all answers were asked for"
    return events


def play(spec: SessionSpec, scenario: Callable[[AgentSession], Any]) -> None:
    async def played() -> None:
        async with opened("builtin", spec) as session:
            await scenario(session)

    run(played())


def dialogs(events: list[AgentEvent]) -> list[DialogAsked]:
    return [event for event in events if isinstance(event, DialogAsked)]


def asked_of_the_model() -> dict[str, Any]:
    return model().seen[-1].body


def test_a_tool_runs_and_its_result_reaches_the_model(tmp_path: Path) -> None:
    spec = builtin_in(tmp_path)
    (spec.workspace / "notes.txt").write_text("milk, eggs")

    async def scenario(session: AgentSession) -> None:
        events = await conversed(session, call("read", path="notes.txt"))

        assert words(events) == "RESULT: milk, eggs"
        tools = [event for event in events if isinstance(event, ToolActivity)]
        assert [(tool.name, tool.status) for tool in tools][-1] == ("read", ToolStatus.DONE)
        assert end_of(events).outcome is TurnOutcome.COMPLETED
        (usage,) = [event for event in events if isinstance(event, UsageSeen)]
        assert (usage.input_tokens, usage.output_tokens) == (2000, 20), "two requests"

    play(spec, scenario)


@pytest.mark.parametrize(("answer", "written"), [(ALLOW_ONCE, True), ("always", True), (REFUSE, False)])
def test_what_changes_a_file_is_asked_first(tmp_path: Path, answer: str, written: bool) -> None:
    spec = builtin_in(tmp_path)

    async def scenario(session: AgentSession) -> None:
        events = await conversed(session, call("write", path="a.txt", content="hello"), Picked(answer))

        (dialog,) = dialogs(events)
        assert (dialog.purpose, dialog.title, dialog.body) == (DialogPurpose.PERMISSION, "write: a.txt", "hello")
        assert [option.rule for option in dialog.options] == ["", "write", ""]
        assert (spec.workspace / "a.txt").exists() is written
        assert words(events) == f"RESULT: {'Written: 5 characters.' if written else REFUSED}"

    play(spec, scenario)


def test_an_always_holds_for_the_same_thing_in_this_session_and_in_later_ones(tmp_path: Path) -> None:
    spec = builtin_in(tmp_path)
    script = call("bash", command="echo one")

    async def first(session: AgentSession) -> None:
        events = await conversed(session, script, Picked("always"))
        assert [option.rule for option in dialogs(events)[0].options] == ["", "bash: echo one", ""]
        assert all(option.dangerous for option in dialogs(events)[0].options[:2])
        assert dialogs(await conversed(session, script)) == []
        assert len(dialogs(await conversed(session, call("bash", command="echo two"), Picked(REFUSE)))) == 1

    async def later(session: AgentSession) -> None:
        assert dialogs(await conversed(session, script)) == []

    play(spec, first)
    play(replace(spec, rules=("bash: echo one",)), later)


def test_a_command_is_shown_whole_however_long_and_its_title_alone_may_be_cut(tmp_path: Path) -> None:
    command = "echo harmless && " + "true && " * 100 + "touch /tmp/evil"

    async def scenario(session: AgentSession) -> None:
        events = await conversed(session, call("bash", command=command), Picked(REFUSE))
        (dialog,) = dialogs(events)
        assert dialog.body == command

    play(builtin_in(tmp_path), scenario)


def test_a_model_that_says_nothing_ends_a_turn_without_text(tmp_path: Path) -> None:
    async def nothing(messages: object, info: object) -> AsyncIterator[str]:
        yield ""

    async def played() -> None:
        session = module.BuiltinSession(FunctionModel(stream_function=nothing))
        await session.open(builtin_in(tmp_path))
        events = await events_of(session, "hello")
        await session.close()
        assert (words(events), end_of(events).outcome) == ("", TurnOutcome.COMPLETED)

    run(played())


def test_with_approvals_allowed_nothing_is_asked(tmp_path: Path) -> None:
    async def scenario(session: AgentSession) -> None:
        events = await conversed(session, call("bash", command="echo $((6*7)); exit 3"))
        assert words(events) == "RESULT: 42\n\n(exit code 3)"

    play(replace(builtin_in(tmp_path), approvals=Approvals.ALLOW), scenario)


@pytest.mark.parametrize("access", list(Access))
@pytest.mark.parametrize("tools", [None, frozenset(), frozenset({"read", "ask"})])
def test_the_model_is_offered_exactly_what_is_allowed(
    tmp_path: Path, access: Access, tools: frozenset[str] | None
) -> None:
    async def scenario(session: AgentSession) -> None:
        await events_of(session, "hello")
        offered = {tool["function"]["name"] for tool in asked_of_the_model().get("tools", [])}
        allowed = TOOLS_BY_ACCESS[access]
        assert offered == (allowed if tools is None else allowed & tools)

    play(replace(builtin_in(tmp_path), access=access, tools=tools), scenario)


def test_a_tool_that_is_not_allowed_is_not_run_whatever_the_model_calls(tmp_path: Path) -> None:
    spec = replace(builtin_in(tmp_path), tools=frozenset(), approvals=Approvals.ALLOW)

    async def scenario(session: AgentSession) -> None:
        for tool in sorted(TOOLS_BY_ACCESS[Access.WORKSPACE]):
            end_of(
                await conversed(session, call(tool, path="x", content="x", command="touch x", plan="x", question="x"))
            )
        assert list(spec.workspace.iterdir()) == []

    play(spec, scenario)


def test_a_question_is_asked_with_its_options_or_in_words(tmp_path: Path) -> None:
    async def scenario(session: AgentSession) -> None:
        picked = await conversed(session, call("ask", question="Which?", options=["red", "blue"]), Picked("1"))
        typed = await conversed(session, call("ask", question="Why?"), Typed("because"))
        nobody = await conversed(session, call("ask", question="Why?"), Dismissed())

        assert words(picked) == "RESULT: The user picked: blue"
        assert words(typed) == "RESULT: The user answered: because"
        assert words(nobody) == "RESULT: The user did not answer."

    play(builtin_in(tmp_path), scenario)


@pytest.mark.parametrize(
    ("answer", "told", "may_write"),
    [
        (Picked(PLAN_GO), "The user agrees", True),
        (Picked(PLAN_KEEP), "The user wants to keep planning", False),
        (Picked(PLAN_LEAVE), "The plan was left", True),
        (Dismissed(), "The plan was left", True),
        (Typed("fewer files"), "The user wants changes: fewer files", False),
    ],
)
def test_a_plan_is_reviewed_and_nothing_is_changed_while_it_stands_open(
    tmp_path: Path, answer: DialogAnswer, told: str, may_write: bool
) -> None:
    spec = replace(builtin_in(tmp_path), approvals=Approvals.ALLOW)

    async def scenario(session: AgentSession) -> None:
        events = await conversed(session, call("exit_plan_mode", plan="# Plan\n1. dig"), answer)
        (dialog,) = dialogs(events)
        assert (dialog.purpose, dialog.body) == (DialogPurpose.PLAN_REVIEW, "# Plan\n1. dig")
        assert words(events).startswith(f"RESULT: {told}")
        assert (spec.workspace / "plan.md").read_text() == "# Plan\n1. dig"

        await conversed(session, call("write", path="x", content="x"))
        assert (spec.workspace / "x").exists() is may_write
        await conversed(session, call("cancel_plan_mode"))
        await conversed(session, call("write", path="y", content="y"))
        assert (spec.workspace / "y").exists()

    play(spec, scenario)


def test_a_list_of_things_to_do_is_the_plan_of_the_turn(tmp_path: Path) -> None:
    async def scenario(session: AgentSession) -> None:
        items = [{"text": "dig", "status": "completed"}, {"text": "plant"}]
        events = await conversed(session, call("todo", items=items))

        (plan,) = [event for event in events if isinstance(event, PlanChanged)]
        assert plan.entries == (("dig", "completed"), ("plant", "pending"))
        assert words(events) == "RESULT: 2 on the list, 1 of them open."

    play(builtin_in(tmp_path), scenario)


def test_a_picture_is_shown_to_the_model_and_notes_stand_apart_from_the_peers_words(tmp_path: Path) -> None:
    spec = builtin_in(tmp_path)
    (tmp_path / "p.png").write_bytes(PNG)

    async def scenario(session: AgentSession) -> None:
        await events_of(session, "look", notes=("[bridge: late]",), images=(str(tmp_path / "p.png"),))
        content = asked_of_the_model()["messages"][-1]["content"]
        assert [part.get("text") for part in content[:2]] == ["[bridge: late]", "look"]
        assert content[2]["image_url"]["url"].startswith("data:image/png;base64,")

    play(spec, scenario)


def test_the_contract_is_part_of_every_request_and_the_token_is_the_only_key(tmp_path: Path) -> None:
    async def scenario(session: AgentSession) -> None:
        for text in ("one", "two"):
            await events_of(session, text)
            system = json.dumps(asked_of_the_model()["messages"][0])
            assert "PHONE CONTRACT" in system
            assert model().seen[-1].key == "t"

    play(replace(builtin_in(tmp_path), contract="PHONE CONTRACT"), scenario)


def test_a_conversation_goes_on_after_its_worker_was_reaped_and_after_it_was_killed(tmp_path: Path) -> None:
    spec = builtin_in(tmp_path)

    async def played() -> None:
        session = hosts.make("builtin")
        made = await session.open(spec)
        await events_of(session, "my name is Ada")
        await session.close()
        async with opened("builtin", replace(spec, session_id=made.session_id)) as again:
            await events_of(again, "and now")
            said = json.dumps(asked_of_the_model()["messages"])
            assert "my name is Ada" in said and "ECHO: my name is Ada" in said

        found = history.load(spec.session_dir / "history" / f"{made.session_id}.json")
        assert found is not None
        found.begin("do the dangerous thing")  # and then the worker is killed
        async with opened("builtin", replace(spec, session_id=made.session_id)) as after:
            await events_of(after, "what happened")
            said = json.dumps(asked_of_the_model()["messages"])
            assert "do the dangerous thing" in said and "was cut off" in said

    run(played())


def test_a_damaged_conversation_is_set_aside_and_a_fresh_one_says_so(tmp_path: Path) -> None:
    spec = builtin_in(tmp_path)

    async def played() -> None:
        session = hosts.make("builtin")
        made = await session.open(spec)
        await session.close()
        file = spec.session_dir / "history" / f"{made.session_id}.json"
        file.write_text('{"conversation": 7}')
        second = hosts.make("builtin")
        again = await second.open(replace(spec, session_id=made.session_id))
        await second.close()
        assert again.how is OpenedHow.FRESH_AFTER_FAILED_RESUME and again.session_id != made.session_id
        assert file.with_name(f"{file.name}.damaged").exists()

    run(played())


def test_a_long_conversation_is_shortened_to_a_summary_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "LONG_CHARS", 3000)
    monkeypatch.setattr(history, "KEPT_CHARS", 1500)

    async def scenario(session: AgentSession) -> None:
        for number in range(6):
            await events_of(session, f"turn {number} " + "x" * 500)
        await events_of(session, "the last one")
        messages = asked_of_the_model()["messages"]
        said = json.dumps(messages)
        assert "What was said before, in short" in said
        assert "turn 0" not in said.replace(said[said.find("Sum up") :], "") or len(messages) < 12
        assert "turn 5" in said and "the last one" in said

    play(builtin_in(tmp_path), scenario)


@pytest.mark.parametrize("moment", ["tool", "dialog"])
def test_a_stop_ends_a_running_tool_or_a_question_and_the_next_turn_knows_of_it(tmp_path: Path, moment: str) -> None:
    spec = replace(builtin_in(tmp_path), approvals=Approvals.ALLOW if moment == "tool" else Approvals.ASK)

    async def scenario(session: AgentSession) -> None:
        events: list[AgentEvent] = []
        async for event in session.turn(Prompt(call("bash", command="sleep 300"))):
            events.append(event)
            if isinstance(event, DialogAsked if moment == "dialog" else ToolActivity):
                await asyncio.sleep(0.2)
                await session.abort()
        assert end_of(events).outcome is TurnOutcome.ABORTED

        assert words(await events_of(session, "hello")) == "ECHO: hello"
        assert "sleep 300" in json.dumps(asked_of_the_model()["messages"])

    play(spec, scenario)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, FailureKind.AUTH), (403, FailureKind.QUOTA), (500, FailureKind.OVERLOADED), (503, FailureKind.OVERLOADED)],
)
def test_a_model_that_refuses_fails_the_turn_with_its_kind_and_not_its_words(
    tmp_path: Path, status: int, kind: FailureKind
) -> None:
    async def scenario(session: AgentSession) -> None:
        events = await events_of(session, f"FAIL {status}")
        end = end_of(events)
        assert end.outcome is TurnOutcome.FAILED and end.error is not None
        assert end.error.kind is kind
        assert words(events) == ""
        assert words(await events_of(session, "hello")) == "ECHO: hello"

    play(builtin_in(tmp_path), scenario)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"model": ""}, "no model is set"),
        ({"gateway_url": ""}, "no model is set"),
        ({"model": "gpt-5"}, "no model is set"),
        ({"model": "carrier-pigeon:x"}, "not a kind of model"),
    ],
)
def test_without_a_model_one_line_says_what_to_configure(tmp_path: Path, spec: dict[str, str], said: str) -> None:
    async def played() -> None:
        session = hosts.make("builtin")
        try:
            with pytest.raises(HostError, match=said) as refused:
                await session.open(replace(builtin_in(tmp_path), **spec))  # type: ignore[arg-type]
            assert refused.value.kind is FailureKind.NOT_CONFIGURED
        finally:
            await session.close()

    run(played())


def test_a_chat_outlives_the_librarys_own_limit_of_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS", 2)

    async def scenario(session: AgentSession) -> None:
        for number in range(6):
            assert end_of(await events_of(session, f"turn {number}")).outcome is TurnOutcome.COMPLETED

    play(builtin_in(tmp_path), scenario)
