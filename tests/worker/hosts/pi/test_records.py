"""Pi's records: what starts it, what is said to it, and what its own mean."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.agents import PI_TOOLS, TOOLS, TOOLS_BY_ACCESS, Approvals, Thinking
from protocol.content import Access, Prompt
from protocol.errors import FailureKind
from protocol.to_supervisor import PLAN_GO, DialogKind, DialogPurpose, TurnOutcome
from protocol.to_worker import Confirmed, Dismissed, Picked, Typed
from worker.hosts.base import (
    AgentEvent,
    BoundaryReason,
    PlanChanged,
    TextBoundary,
    TextDelta,
    ToolActivity,
    ToolStatus,
    TurnEnded,
    UsageSeen,
)
from worker.hosts.pi.records import (
    ASKS,
    EXTENSION_KEY,
    EXTENSION_VERSION,
    TITLE,
    Ear,
    Record,
    arguments,
    dialog_in,
    greets,
    models,
    prompt_record,
    reply,
    tools,
    version_in,
)
from worker.hosts.pi.session import EXTENSION
from worker.hosts.pictures import Picture

# --- starting -------------------------------------------------------------------------------------------------


def test_tool_names_are_ones_that_replace_pis_defaults_and_never_add_to_them() -> None:
    # A name that begins with + or - changes the defaults instead, and * is a pattern.
    assert all(re.fullmatch("[a-z_][a-z0-9_]*", name) for names in PI_TOOLS.values() for name in names)
    assert set(PI_TOOLS) == set(TOOLS)


@given(st.sampled_from(list(Access)), st.none() | st.frozensets(st.sampled_from(sorted(PI_TOOLS))))
def test_a_list_of_tools_only_takes_away_from_the_access_level(access: Access, narrowed: frozenset[str] | None) -> None:
    given_names = set(tools(access, narrowed))

    allowed = TOOLS_BY_ACCESS[access] if narrowed is None else TOOLS_BY_ACCESS[access] & narrowed
    assert given_names == {name for tool in allowed for name in PI_TOOLS[tool]}


def test_send_is_the_operators_own_sessions_alone() -> None:
    assert "send" in tools(Access.WORKSPACE, None, sends=True)
    assert "send" not in tools(Access.WORKSPACE, frozenset({"read"}), sends=True)
    assert "send" not in tools(Access.CHAT, None, sends=True)
    assert "send" not in tools(Access.FULL, frozenset({"send"}), sends=False)


def test_a_tool_that_pi_does_not_have_is_named_together_with_those_it_has() -> None:
    with pytest.raises(ValueError, match=r"mcp:x, oven; it has read, write"):
        tools(Access.WORKSPACE, frozenset({"oven", "read", "mcp:x"}))


def started(**more: Any) -> list[str]:
    wanted: dict[str, Any] = {
        "model": "openai:m", "thinking": Thinking.AGENTS_OWN, "sessions": "/s", "session": ("--session-id", "i"), "contract": "C", "extension": "/e.ts",
        "allowed": ("read", "ls"),
    }  # fmt: skip
    return list(arguments(**wanted | more))


def test_pi_is_started_closed_with_one_extension_and_exactly_the_tools() -> None:
    command = started()

    for closed in ("extensions", "skills", "prompt-templates", "themes", "context-files", "mcp", "approve"):
        assert f"--no-{closed}" in command
    assert [command[at + 1] for at, word in enumerate(command) if word == "-e"] == ["/e.ts"]
    assert command[command.index("--tools") + 1] == "read,ls"
    assert command[command.index("--append-system-prompt") + 1] == "C"
    assert "--no-tools" not in command


def test_no_tool_at_all_has_a_flag_of_its_own_and_no_contract_has_none() -> None:
    command = started(allowed=(), contract="")

    assert "--no-tools" in command and "--tools" not in command
    assert "--append-system-prompt" not in command


@pytest.mark.parametrize(
    ("model", "provider", "name", "url"),
    [
        ("openai:gpt-5", "openai", "gpt-5", "http://g/v1"),
        ("anthropic:claude-x", "anthropic", "claude-x", "http://g"),
        ("google:gemini-x", "google", "gemini-x", "http://g/v1beta"),
        ("openai-compatible:qwen3:8b", "gateway", "qwen3:8b", "http://g/v1"),
        ("qwen3:8b", "gateway", "qwen3:8b", "http://g/v1"),
        ("plain", "gateway", "plain", "http://g/v1"),
    ],
)
def test_every_model_is_reached_through_the_gateway_alone(model: str, provider: str, name: str, url: str) -> None:
    command = started(model=model)
    found = models(model, "http://g")["providers"]

    assert command[command.index("--provider") + 1] == provider
    assert command[command.index("--model") + 1] == name
    assert list(found) == [provider]
    assert found[provider]["baseUrl"] == url
    assert found[provider]["apiKey"] == "$OPENAI_API_KEY", "the key itself is in no file"
    assert [one["id"] for one in found[provider].get("models", [])] == ([name] if provider == "gateway" else [])


def test_thinking_is_told_only_where_it_was_set() -> None:
    assert "--thinking" not in started()
    command = started(thinking=Thinking.HIGH)
    assert command[command.index("--thinking") + 1] == "high"
    for thinking, reasons in ((Thinking.AGENTS_OWN, False), (Thinking.OFF, False), (Thinking.LOW, True)):
        (known,) = models("m", "http://g", thinking)["providers"]["gateway"]["models"]
        assert known["reasoning"] is reasons


def test_versions_are_compared_by_number() -> None:
    assert version_in("pi 1.10.0\n") == (1, 10, 0)
    assert version_in("v0.74.2-beta") == (0, 74, 2)
    assert version_in("who knows") is None


def test_a_prompt_is_an_envelope_whatever_its_words() -> None:
    record = prompt_record(
        Prompt(text="/new [bridge: late]", notes=("[bridge: late]",), images=("/m/a.png",), files=("/m/b.txt",)),
        [Picture("AAAA", "image/png")],
    )

    assert json.loads(record["message"]) == {
        "notes": ["[bridge: late]", "[bridge: attached: /m/a.png]", "[bridge: attached: /m/b.txt]"],
        "text": "/new [bridge: late]",
    }
    assert record["images"] == [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]
    assert record["message"].startswith("{")
    assert "images" not in prompt_record(Prompt(text="x"), [])


def test_the_extension_speaks_of_the_same_things() -> None:
    text = EXTENSION.read_text()

    assert f'const VERSION = "{EXTENSION_VERSION}"' in text
    assert f'const TITLE = "{TITLE}"' in text
    assert f'setStatus("{EXTENSION_KEY}"' in text
    ours = {name for tool, names in PI_TOOLS.items() for name in names if tool not in ("read", "write", "edit", "bash")}
    assert set(re.findall(r'^    name: "(\w+)"', text, re.MULTILINE)) == ours
    assert set(ASKS[Approvals.ASK]) == set(re.findall(r'"(\w+)"', text.split("const CHANGES")[1].split("\n")[0]))


def test_only_our_own_extension_greets() -> None:
    ours = {"type": "extension_ui_request", "method": "setStatus", "statusKey": EXTENSION_KEY, "statusText": "1"}

    assert greets(ours)
    assert not greets(ours | {"statusText": "2"})
    assert not greets(ours | {"statusKey": "other"})
    assert not greets({"type": "extension_ui_request"})


# --- dialogs --------------------------------------------------------------------------------------------------


def asked(method: str, **fields: Any) -> Record:
    return {"type": "extension_ui_request", "id": "d1", "method": method, **fields}


def titled(**about: Any) -> str:
    return TITLE + json.dumps(about)


def test_a_command_is_asked_as_a_dangerous_permission_in_its_own_words() -> None:
    record = asked("confirm", title=titled(about="permission", tool="bash", input={"command": "rm -rf x\ny"}))

    dialog = dialog_in(record)

    assert dialog is not None
    assert (dialog.kind, dialog.purpose) == (DialogKind.CONFIRM, DialogPurpose.PERMISSION)
    assert (dialog.title, dialog.body) == ("bash", "rm -rf x\ny")
    assert [option.dangerous for option in dialog.options] == [True, False]
    assert reply(record, Confirmed(True)) == {"type": "extension_ui_response", "id": "d1", "confirmed": True}
    assert reply(record, Confirmed(False))["confirmed"] is False
    assert reply(record, Dismissed()) == {"type": "extension_ui_response", "id": "d1", "cancelled": True}


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        ({"path": "a.py", "content": "print()\n"}, "a.py\nprint()\n"),
        ({"path": "a.py", "edits": [{"oldText": "x\ny", "newText": "z"}]}, "a.py\n- x\n- y\n+ z"),
        ({"odd": ["ü"]}, '{"odd": ["ü"]}'),
        (["no", "object"], ""),
    ],
)
def test_a_change_is_shown_with_its_path_and_text(arguments: object, body: str) -> None:
    dialog = dialog_in(asked("confirm", title=titled(about="permission", tool="edit", input=arguments)))

    assert dialog is not None and dialog.body == body
    assert dialog.options == (), "a change of files inside the workspace takes a plain yes"


def test_a_long_text_is_cut_and_says_by_how_much() -> None:
    arguments = {"path": "a", "content": "x" * 5000}

    dialog = dialog_in(asked("confirm", title=titled(about="permission", tool="write", input=arguments)))

    assert dialog is not None and dialog.body.endswith("x […3000]")


def test_a_choice_is_answered_by_its_text_and_in_own_words_only_where_that_was_offered() -> None:
    closed = asked("select", title="Colour?", options=["red", "blue"])
    open_ = asked("select", title=titled(about="question", title="Colour?", other=True), options=["red", "blue"])

    first, second = dialog_in(closed), dialog_in(open_)

    assert first is not None and second is not None
    assert [option.label for option in first.options] == ["red", "blue"]
    assert (first.title, first.other_allowed) == ("Colour?", False)
    assert (second.title, second.other_allowed) == ("Colour?", True)
    assert reply(closed, Picked("1"))["value"] == "blue"
    assert reply(closed, Picked("7"))["cancelled"] is True
    assert reply(open_, Typed("green"))["value"] == "green"


def test_text_is_asked_with_its_hint_or_what_it_was() -> None:
    line, text = asked("input", title="Name?", placeholder="first, last"), asked("editor", title="E", prefill="old")

    first, second = dialog_in(line), dialog_in(text)

    assert first is not None and second is not None
    assert (first.kind, first.title, first.body) == (DialogKind.INPUT, "Name?", "first, last")
    assert (second.kind, second.purpose, second.prefill) == (DialogKind.EDITOR, DialogPurpose.QUESTION, "old")
    assert reply(text, Typed("new"))["value"] == "new"


def test_a_plan_is_reviewed_and_a_wish_is_never_taken_for_one_of_the_three_actions() -> None:
    record = asked("editor", title=titled(about="plan", title="Tidy", file="p.md"), prefill="1. a")

    dialog = dialog_in(record)

    assert dialog is not None
    assert (dialog.purpose, dialog.title, dialog.body, dialog.options) == (
        DialogPurpose.PLAN_REVIEW, "Tidy", "1. a", (),
    )  # fmt: skip
    assert reply(record, Picked(PLAN_GO))["value"] == "go"
    assert reply(record, Typed("go"))["value"] == "changes:go"
    assert reply(record, Dismissed())["cancelled"] is True


def test_a_question_longer_than_a_line_becomes_the_body() -> None:
    dialog = dialog_in(asked("confirm", title="a\nb", message="c", timeout=1500))

    assert dialog is not None
    assert (dialog.title, dialog.body, dialog.expires_s) == ("", "a\nb\nc", 1.5)


@pytest.mark.parametrize(
    "record",
    [
        asked("select", title="?"),
        asked("select", title="?", options=[]),
        asked("select", title="?", options=["x"] * 101),
        asked("notify", message="x"),
        {"type": "extension_ui_request", "id": 7, "method": "confirm"},
        {},
    ],
)
def test_what_cannot_be_asked_is_none(record: Record) -> None:
    assert dialog_in(record) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
names = st.sampled_from(
    ["type", "id", "method", "title", "options", "message", "placeholder", "prefill", "timeout", "role", "usage"]
    + ["assistantMessageEvent", "delta", "toolCallId", "toolName", "args", "items", "stopReason", "errorMessage"]
)
kinds = st.sampled_from(
    ["select", "confirm", "input", "editor", "message_update", "message_end", "tool_execution_start", "text_delta"]
    + ["tool_execution_end", "text_end", "toolcall_end", "assistant", "todo", "bridge:{", 'bridge:{"about":"plan"}']
)
records = st.dictionaries(names, kinds | json_values, max_size=8)


@settings(deadline=None)
@example(asked("confirm", title="?", timeout=10**400))
@given(records)
def test_no_record_breaks_the_reading_of_dialogs(record: Record) -> None:
    dialog = dialog_in(record)

    if dialog is not None:
        for answer in (Dismissed(), Confirmed(True), Picked("0"), Picked("x"), Typed("t")):
            assert reply(record, answer)["id"] == record["id"]


# --- a turn ---------------------------------------------------------------------------------------------------


def updated(kind: str, **fields: Any) -> Record:
    return {"type": "message_update", "assistantMessageEvent": {"type": kind, **fields}}


def message(reason: str, error: str = "", **usage: int) -> Record:
    return {
        "type": "message_end",
        "message": {"role": "assistant", "stopReason": reason, "errorMessage": error, "usage": usage},
    }


def ran(kind: str, name: str = "bash", **more: Any) -> Record:
    return {"type": f"tool_execution_{kind}", "toolCallId": "c1", "toolName": name, **more}


def heard(*records: Record, size: int | None = None) -> list[AgentEvent]:
    ear = Ear(size)
    events = [event for record in records for event in ear.hear(record)]
    return [*events, ear.end()]


def test_text_is_told_as_it_comes_with_a_boundary_behind_each_block_and_before_a_tool() -> None:
    events = heard(
        updated("thinking_delta", delta="hm"), updated("text_delta", delta="a"), updated("text_delta", delta=""),
        updated("text_end"), updated("text_delta", delta="b"), updated("toolcall_end"), ran("start"),
    )  # fmt: skip

    assert events == [
        TextDelta("a"),
        TextBoundary(BoundaryReason.BLOCK),
        TextDelta("b"),
        TextBoundary(BoundaryReason.TOOL),
        ToolActivity("c1", "bash", "bash", "", ToolStatus.STARTED),
        TurnEnded(TurnOutcome.COMPLETED),
    ]


def test_a_tools_life_is_told_without_its_arguments() -> None:
    events = heard(ran("start", args={"command": "secret"}), ran("update"), ran("end", isError=True))

    assert [event.status for event in events if isinstance(event, ToolActivity)] == [
        ToolStatus.STARTED, ToolStatus.RUNNING, ToolStatus.FAILED,
    ]  # fmt: skip
    assert "secret" not in repr(events)


def test_the_todo_list_is_told_whole() -> None:
    items = [{"text": "one", "status": "completed"}, {"text": "two", "status": "pending"}]

    events = heard(ran("start", "todo", args={"items": items}))

    assert PlanChanged((("one", "completed"), ("two", "pending"))) in events


def test_usage_adds_up_over_a_turns_messages() -> None:
    events = heard(
        message("toolUse", input=10, output=1, cacheRead=5, cacheWrite=1, totalTokens=17),
        message("stop", input=20, output=2, totalTokens=22), size=1000,
    )  # fmt: skip

    seen = [event for event in events if isinstance(event, UsageSeen)]
    assert seen == [UsageSeen(16, 1, 17, 1000), UsageSeen(36, 3, 22, 1000)]


@pytest.mark.parametrize(
    ("reason", "error", "outcome", "kind"),
    [
        ("stop", "", TurnOutcome.COMPLETED, None),
        ("toolUse", "", TurnOutcome.COMPLETED, None),
        ("length", "", TurnOutcome.LIMIT, None),
        ("error", "The model refused to complete the request", TurnOutcome.DECLINED, None),
        ("error", "Provider finish_reason: content_filter", TurnOutcome.DECLINED, None),
        ("error", "401: bad key", TurnOutcome.FAILED, FailureKind.AUTH),
        ("error", "429 Too Many Requests", TurnOutcome.FAILED, FailureKind.OVERLOADED),
        ("error", "insufficient_quota", TurnOutcome.FAILED, FailureKind.QUOTA),
        ("error", "maximum context length is 8192 tokens", TurnOutcome.FAILED, FailureKind.CONTEXT_FULL),
        ("error", "500: who knows", TurnOutcome.FAILED, FailureKind.OTHER),
        ("aborted", "This operation was aborted", TurnOutcome.FAILED, FailureKind.OTHER),
    ],
)
def test_the_last_message_says_how_a_turn_ended(
    reason: str, error: str, outcome: TurnOutcome, kind: FailureKind | None
) -> None:
    end = heard(message("error", "503: overloaded"), message(reason, error))[-1]

    assert isinstance(end, TurnEnded)
    assert end.outcome is outcome
    assert (end.error.kind if end.error else None) is kind


@settings(deadline=None)
@given(st.lists(records, max_size=6))
def test_no_record_breaks_a_turn(said: list[Record]) -> None:
    events = heard(*said)

    assert all(event.text for event in events if isinstance(event, TextDelta))
    assert sum(isinstance(event, TurnEnded) for event in events) == 1
