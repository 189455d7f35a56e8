"""What the bridge adds to Pi, in the real Pi: what its model sees, what its peer is asked, and what stays out."""

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.agents import Approvals, Thinking
from protocol.content import Access, Prompt
from protocol.to_supervisor import DialogPurpose, OpenedHow, TurnOutcome
from protocol.to_worker import Confirmed, DialogAnswer, Dismissed, Picked, Typed
from tests.fakes import programs
from tests.fakes.hosts import end_of, events_of, opened, spec_in, words
from tests.fakes.model import FakeModel
from worker.hosts.base import AgentEvent, AgentSession, DialogAsked, PlanChanged, SessionSpec, ToolActivity, ToolStatus
from worker.hosts.pi.session import PiSession

pytestmark = pytest.mark.second

DEADLINE_S = 110.0
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with FakeModel() as server:
        yield server


@pytest.fixture
def spec(tmp_path: Path, model: FakeModel) -> SessionSpec:
    return replace(
        spec_in(tmp_path), command=programs.pi(), model="openai-compatible:fake-1", gateway_url=model.url, token="t0k3n",
        contract="The reader holds a phone.\n",
    )  # fmt: skip


def run(work: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(bounded())


async def answered(session: AgentSession, text: str, *answers: DialogAnswer) -> tuple[str, list[DialogAsked]]:
    """The words of a turn whose dialogs get these answers, in order."""
    left, events = list(answers), []
    async for event in session.turn(Prompt(text=text)):
        events.append(event)
        if isinstance(event, DialogAsked):
            assert await session.answer(event.dialog_id, left.pop(0))
    assert end_of(events).outcome is TurnOutcome.COMPLETED
    assert left == []
    return words(events), [event for event in events if isinstance(event, DialogAsked)]


def parts_of(message: dict[str, Any]) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part.get("text", part["type"]) for part in content]


def tools_in(body: dict[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in body.get("tools", [])}


def test_the_model_sees_the_contract_the_notes_apart_and_the_words_as_they_are(
    spec: SessionSpec, model: FakeModel, tmp_path: Path
) -> None:
    shot = tmp_path / "shot"
    shot.write_bytes(PNG)

    async def scenario() -> None:
        async with opened("pi", spec) as session:
            for text in ("/new", "/quit", "!ls", "@file /model x", "a\u2028b 你好 😀", '{"notes":["x"],"text":"y"}'):
                end_of(await events_of(session, text, notes=("[bridge: late]",)))

                system, *_, newest = model.seen[-1].body["messages"]
                assert parts_of(newest) == ["[bridge: late]", text]
                assert spec.contract.strip() in "".join(parts_of(system))
            end_of(await events_of(session, "", images=(str(shot),)))
            newest = model.seen[-1].body["messages"][-1]
            assert parts_of(newest) == [f"[bridge: attached: {shot}]", "image_url"]
            assert {one.key for one in model.seen} == {"t0k3n"}
        assert not [file for file in spec.session_dir.rglob("*.json") if "t0k3n" in file.read_text()]

    run(scenario())


def test_a_command_runs_only_after_a_yes_and_files_are_asked_about_too(spec: SessionSpec, model: FakeModel) -> None:
    async def scenario() -> None:
        async with opened("pi", spec) as session:
            said, (asked,) = await answered(session, 'CALL bash {"command":"touch a; echo made"}', Confirmed(True))
            assert "made" in said and (spec.workspace / "a").exists()
            assert (asked.purpose, asked.title) == (DialogPurpose.PERMISSION, "bash")
            assert asked.body == "touch a; echo made"

            for answer in (Confirmed(False), Dismissed()):
                said, _ = await answered(session, 'CALL bash {"command":"touch b"}', answer)
                assert "did not allow" in said and not (spec.workspace / "b").exists()

            said, (asked,) = await answered(session, 'CALL write {"path":"c","content":"hi"}', Confirmed(False))
            assert asked.body == "c\nhi" and not (spec.workspace / "c").exists()
            await answered(session, 'CALL write {"path":"c","content":"hi"}', Confirmed(True))
            change = 'CALL edit {"path":"c","edits":[{"oldText":"hi","newText":"ho"}]}'
            said, (asked,) = await answered(session, change, Confirmed(True))
            assert asked.body == "c\n- hi\n+ ho" and (spec.workspace / "c").read_text() == "ho"
            said, _ = await answered(session, 'CALL read {"path":"c"}')
            assert "ho" in said

    run(scenario())


def test_what_was_allowed_for_good_is_not_asked_about_and_thinking_is_asked_for(
    spec: SessionSpec, model: FakeModel
) -> None:
    async def scenario() -> None:
        allowing = replace(spec, approvals=Approvals.ALLOW, thinking=Thinking.HIGH)
        async with opened("pi", allowing) as session:
            said, asked = await answered(session, 'CALL bash {"command":"echo made"}')

        assert "made" in said and not asked
        assert model.seen[-1].body["reasoning_effort"] == "high"

    run(scenario())


def test_questions_reach_the_peer_and_the_todo_list_the_bridge(spec: SessionSpec, model: FakeModel) -> None:
    async def scenario() -> None:
        async with opened("pi", spec) as session:
            question = 'CALL ask_user_question {"question":"Colour?","options":["red","blue"]}'
            said, (asked,) = await answered(session, question, Picked("1"))
            assert (asked.title, [option.label for option in asked.options]) == ("Colour?", ["red", "blue"])
            assert "answered: blue" in said
            said, _ = await answered(session, 'CALL ask_user_question {"question":"Name?"}', Typed("Ada"))
            assert "answered: Ada" in said
            said, _ = await answered(session, 'CALL ask_user_question {"question":"Name?"}', Dismissed())
            assert "did not answer" in said

            events = await events_of(session, 'CALL todo {"items":[{"text":"one","status":"pending"}]}')
            assert PlanChanged((("one", "pending"),)) in events

    run(scenario())


def test_a_file_is_laid_into_the_outbox_and_its_fate_told_to_the_model(spec: SessionSpec, model: FakeModel) -> None:
    (spec.workspace / "a b.txt").write_text("hello")
    outbox = spec.session_dir / "outbox"

    async def scenario() -> None:
        async with opened("pi", spec) as session:
            for answer, told in (({"ok": True, "detail": ""}, "was sent"), ({"ok": False, "detail": "6 MB"}, "6 MB")):
                events = []
                async for event in session.turn(Prompt(text='CALL send_file {"path":"a b.txt","caption":"look"}')):
                    events.append(event)
                    for offer in outbox.glob("*.json"):  # it is there by the time the tool is told to be running
                        assert json.loads(offer.read_text()) == {"name": "a b.txt", "caption": "look"}
                        assert (outbox / offer.stem / "a b.txt").read_text() == "hello"
                        offer.rename(offer.with_suffix(".taken"))
                        offer.with_suffix(".answer").write_text(json.dumps(answer))
                assert told in words(events)
                assert not list(outbox.glob("*.answer"))
            assert len(list(outbox.glob("*.taken"))) == 2
            said, _ = await answered(session, 'CALL send_file {"path":"missing"}')
            assert "ENOENT" in said

    run(scenario())


def test_the_operators_picture_is_laid_out_and_the_result_given_back(spec: SessionSpec, model: FakeModel) -> None:
    (spec.workspace / "p.png").write_bytes(b"png")
    outbox = spec.session_dir / "outbox"
    answer = {"ok": False, "detail": "they have to write again", "state": "refused"}

    async def scenario() -> None:
        async with opened("pi", replace(spec, sends=True)) as session:
            events = []
            async for event in session.turn(Prompt(text='CALL send {"image":"p.png"}')):
                events.append(event)
                for offer in outbox.glob("*.json"):
                    note = json.loads(offer.read_text())
                    assert note["send"]["text"] == "" and note["send"]["call"]
                    assert (outbox / offer.stem / "p.png").read_bytes() == b"png"
                    offer.rename(offer.with_suffix(".taken"))
                    offer.with_suffix(".answer").write_text(json.dumps(answer))
            assert '"sent":false,"state":"refused","error":"they have to write again"' in words(events).replace(
                "\\", ""
            )
            said, _ = await answered(session, "CALL send {}")
            assert "either" in said

    run(scenario())


def test_a_plan_is_reviewed_and_holds_changes_back_until_it_is_agreed_to(spec: SessionSpec, model: FakeModel) -> None:
    plan, change = 'CALL exit_plan_mode {"title":"Tidy","plan":"1. look"}', 'CALL bash {"command":"touch a"}'

    async def scenario() -> None:
        session = PiSession()
        made = await session.open(spec)
        said, (asked,) = await answered(session, plan, Picked("keep"))
        assert (asked.purpose, asked.title, asked.body) == (DialogPurpose.PLAN_REVIEW, "Tidy", "1. look")
        assert "go on planning" in said
        (file,) = spec.workspace.glob("plan-*.md")
        assert file.read_text() == "1. look\n"
        said, _ = await answered(session, change)
        assert "Plan mode is on" in said
        await session.close()

        again = PiSession()  # another process serves the same conversation
        await again.open(replace(spec, session_id=made.session_id))
        said, _ = await answered(again, change)
        assert "Plan mode is on" in said
        said, _ = await answered(again, plan, Typed("go"))
        assert "wants changes" in said and said.rstrip().endswith("go")
        said, _ = await answered(again, "CALL cancel_plan_mode {}")
        assert "Plan mode is off" in said
        await answered(again, change, Confirmed(True))
        for answer, told in ((Picked("go"), "approved"), (Picked("leave"), "left plan mode"), (Dismissed(), "did not")):
            said, _ = await answered(again, plan, answer)
            assert told in said
        await again.close()

    run(scenario())


@pytest.mark.parametrize(
    ("access", "narrowed", "expected"),
    [
        (Access.WORKSPACE, frozenset[str](), set[str]()),
        (Access.WORKSPACE, frozenset({"read", "ask"}), {"read", "ls", "ask_user_question"}),
        (Access.CHAT, None, {"ask_user_question"}),
        (Access.READONLY, None, {"read", "ls", "todo", "ask_user_question", "send_file"}),
    ],
)
def test_a_model_that_calls_every_tool_gets_those_of_the_list_and_no_other(
    spec: SessionSpec, model: FakeModel, access: Access, narrowed: frozenset[str] | None, expected: set[str]
) -> None:
    every = {"read", "ls", "bash", "write", "edit", "grep", "find", "powershell", "codemode", "tool_search", "todo"}
    every |= {"ask_user_question", "send_file", "send", "exit_plan_mode", "cancel_plan_mode", "mcp__x__y"}

    async def scenario() -> None:
        async with opened("pi", replace(spec, access=access, tools=narrowed)) as session:
            for name in sorted(every):
                async for event in session.turn(Prompt(text=f"CALL {name} {{}}")):
                    if isinstance(event, DialogAsked):
                        await session.answer(event.dialog_id, Dismissed())
                answer = model.seen[-1].body["messages"][-1]
                assert answer["role"] == "tool"
                assert (name in expected) == (f"Tool {name} not found" not in "".join(parts_of(answer)))
        assert {frozenset(tools_in(one.body)) for one in model.seen} == {frozenset(expected)}

    run(scenario())


def test_nothing_that_lies_in_the_workspace_or_in_pis_own_folder_is_loaded(spec: SessionSpec, model: FakeModel) -> None:
    mark = spec.workspace / "loaded"
    spy = f'import {{ writeFileSync }} from "node:fs"; export default () => writeFileSync("{mark}", "");\n'
    server = json.dumps({"mcpServers": {"x": {"command": "/bin/sh", "args": ["-c", f"touch {mark}"]}}})
    for folder in (spec.workspace / ".pi", spec.session_dir / "pi" / "agent", spec.session_dir / "home/.pi/agent"):
        for name, text in (
            ("extensions/wechat.ts", spy), ("mcp.json", server), ("prompts/new.md", "STOLEN"),
            ("APPEND_SYSTEM.md", "STOLEN"), ("SYSTEM.md", "STOLEN"), ("AGENTS.md", "STOLEN"),
            ("skills/x/SKILL.md", "---\nname: x\ndescription: STOLEN\n---\nSTOLEN"),
            ("settings.json", json.dumps({"extensions": [str(spec.workspace / ".pi/extensions/wechat.ts")]})),
        ):  # fmt: skip
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    (spec.workspace / "AGENTS.md").write_text("STOLEN")

    async def scenario() -> None:
        async with opened("pi", spec) as session:
            assert words(await events_of(session, "/new")).strip() == "ECHO: /new"

        assert not mark.exists()
        assert "STOLEN" not in json.dumps(model.seen[-1].body)

    run(scenario())


def test_a_turn_is_stopped_in_text_in_a_tool_in_a_dialog_and_while_it_waits_to_try_again(
    spec: SessionSpec, model: FakeModel
) -> None:
    scripts: list[tuple[str, DialogAnswer | None]] = [
        ("SLOW 100000", None),
        ('CALL bash {"command":"sleep 100; touch a"}', Confirmed(True)),
        ('CALL bash {"command":"touch a"}', None),
        ('CALL exit_plan_mode {"plan":"1. look"}', None),
        ('CALL ask_user_question {"question":"Name?"}', None),
        ("FAIL 503", None),
    ]

    async def scenario() -> None:
        async with opened("pi", spec) as session:
            for text, answer in scripts:
                events: list[AgentEvent] = []
                async for event in session.turn(Prompt(text=text)):
                    events.append(event)
                    running = isinstance(event, ToolActivity) and event.status is ToolStatus.RUNNING
                    if isinstance(event, DialogAsked) and answer is not None:
                        await session.answer(event.dialog_id, answer)
                    elif answer is None and not isinstance(event, ToolActivity) or running:
                        await session.abort()

                assert (text, end_of(events).outcome) == (text, TurnOutcome.ABORTED)
                assert not session.gone.is_set(), "Pi stopped by itself"
                assert "next" in words(await events_of(session, "next"))
            assert not (spec.workspace / "a").exists()

    run(scenario())


def test_a_session_goes_on_with_the_model_that_is_set_now_and_in_another_folder(
    spec: SessionSpec, model: FakeModel
) -> None:
    async def scenario() -> None:
        first = PiSession()
        made = await first.open(spec)
        end_of(await events_of(first, "remember the blue door"))
        await first.close()

        other = replace(spec, session_id=made.session_id, model="openai-compatible:fake-2")
        async with opened("pi", other) as session:
            end_of(await events_of(session, "and now"))
            assert model.seen[-1].body["model"] == "fake-2"
            assert "blue door" in json.dumps(model.seen[-1].body["messages"])

        moved = PiSession()
        found = await moved.open(replace(other, workspace=spec.session_dir, access=Access.CHAT))
        end_of(await events_of(moved, "still there"))
        await moved.close()
        assert found.how is OpenedHow.RESUMED
        assert "blue door" in json.dumps(model.seen[-1].body["messages"])

    run(scenario())


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("openai:fake-1", "/v1/responses"),
        ("anthropic:fake-1", "/v1/messages"),
        ("google:fake-1", "/v1beta/models/fake-1:streamGenerateContent"),
    ],
)
def test_each_providers_own_dialect_goes_to_the_gateway(
    spec: SessionSpec, model: FakeModel, name: str, path: str
) -> None:
    async def scenario() -> None:
        async with opened("pi", replace(spec, model=name)) as session:
            events = await events_of(session, "good morning")
            assert end_of(events).outcome is TurnOutcome.COMPLETED
            assert words(events) == "ECHO: good morning"

        assert len(model.seen) == 1
        assert model.seen[-1].path.partition("?")[0] == path
        assert model.seen[-1].key == "t0k3n"

    run(scenario())
