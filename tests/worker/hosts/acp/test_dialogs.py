"""dialogs: what real agents ask, how it is put, and which answer goes back. Requests as those agents write them."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.to_supervisor import PLAN_GO, PLAN_KEEP, PLAN_LEAVE, DialogKind, DialogPurpose
from protocol.to_worker import Confirmed, DialogAnswer, Dismissed, Picked, Typed
from worker.hosts.acp.dialogs import FIELDS, Ask, Exchange, form, permission

YES = {"optionId": "allow-once", "name": "Yes", "kind": "allow_once"}
NO = {"optionId": "reject-once", "name": "No", "kind": "reject_once"}
ALWAYS = {"optionId": "allow-always", "name": "Always", "kind": "allow_always"}
NEVER = {"optionId": "reject-always", "name": "Never", "kind": "reject_always"}


def wanted(kind: str = "edit", options: list[dict[str, str]] | None = None, **call: Any) -> Exchange:
    shown = [YES, NO] if options is None else options
    return permission({"toolCall": {"toolCallId": "t", "kind": kind, "title": "do it", **call}, "options": shown})


def asked(exchange: Exchange) -> Ask:
    ask = exchange.ask()
    assert ask is not None
    return ask


def chosen(exchange: Exchange, answer: DialogAnswer) -> str:
    assert exchange.ask() is not None
    exchange.take(answer)
    assert exchange.ask() is None
    outcome = exchange.reply()["outcome"]
    return str(outcome.get("optionId", outcome["outcome"]))


@pytest.mark.parametrize(
    ("answer", "option"),
    [(Confirmed(True), "allow-once"), (Confirmed(False), "reject-once"), (Dismissed(), "reject-once")],
)
def test_one_yes_and_one_no_are_a_plain_question(answer: DialogAnswer, option: str) -> None:
    ask = asked(wanted())

    assert (ask.kind, ask.purpose, ask.title, ask.options) == (
        DialogKind.CONFIRM,
        DialogPurpose.PERMISSION,
        "do it",
        (),
    )
    assert chosen(wanted(), answer) == option


@pytest.mark.parametrize("order", [[YES, NO, ALWAYS, NEVER], [NEVER, ALWAYS, NO, YES], [ALWAYS, YES, NEVER, NO]])
def test_what_would_hold_for_ever_is_never_offered_wherever_it_stands(order: list[dict[str, str]]) -> None:
    assert asked(wanted(options=order)).kind is DialogKind.CONFIRM
    assert chosen(wanted(options=order), Confirmed(True)) == "allow-once"
    assert chosen(wanted(options=order), Dismissed()) == "reject-once"


@pytest.mark.parametrize("kind", ["execute", "delete"])
def test_what_runs_or_deletes_is_marked_as_dangerous(kind: str) -> None:
    yes, no = asked(wanted(kind)).options

    assert (yes.dangerous, no.dangerous) == (True, False)
    assert chosen(wanted(kind), Picked("allow-once")) == "allow-once"


def test_several_ways_of_allowing_are_a_list() -> None:
    here = {"optionId": "here", "name": "Only in this folder", "kind": "allow_once"}
    options = [YES, here, NO]

    ask = asked(wanted(options=options))

    assert (ask.kind, [one.label for one in ask.options]) == (DialogKind.SELECT, ["Yes", "Only in this folder", "No"])
    assert chosen(wanted(options=options), Picked("here")) == "here"
    assert chosen(wanted(options=options), Picked("nonsense")) == "reject-once"
    assert chosen(wanted(options=options), Dismissed()) == "reject-once"


@pytest.mark.parametrize("options", [[], [NO], [ALWAYS, NEVER], [{"name": "no id"}]])
def test_what_cannot_be_allowed_once_is_refused_without_a_question(options: list[dict[str, str]]) -> None:
    exchange = wanted(options=options)

    assert exchange.ask() is None
    outcome = exchange.reply()["outcome"]
    assert outcome.get("optionId") == ("reject-once" if NO in options else None)


def test_a_title_that_is_missing_is_the_tool_calls_or_the_command() -> None:
    params = {"toolCall": {"title": None, "kind": None, "rawInput": {"command": ["touch", "zz"]}}, "options": [YES, NO]}

    assert asked(permission(params)).title == "touch zz"
    known = asked(permission(params, known_title="Make zz", known_kind="execute"))
    assert (known.title, known.body) == ("Make zz", "touch zz")
    assert known.options[0].dangerous


def test_a_change_is_shown_by_its_path_and_its_first_lines() -> None:
    new = "\n".join(f"line {number}" for number in range(30))

    body = asked(wanted(content=[{"type": "diff", "path": "/w/a.py", "oldText": "", "newText": new}])).body

    assert body.startswith("/w/a.py\nline 0\n")
    assert "line 12" not in body and body.endswith("… 18")


# --- plans ----------------------------------------------------------------------------------------------------------

WAYS = [
    {"optionId": "exit-plan-bypass", "name": "Yes, and do not ask", "kind": "allow_always"},
    {"optionId": "exit-plan-auto", "name": "Yes, auto", "kind": "allow_always"},
    {"optionId": "exit-plan-default", "name": "Yes", "kind": "allow_once"},
    {"optionId": "plan", "name": "Keep planning", "kind": "reject_once"},
]


def plan(options: list[dict[str, str]] = WAYS) -> Exchange:
    return wanted("switch_mode", options, content=[{"type": "content", "content": {"type": "text", "text": "# Plan"}}])


@pytest.mark.parametrize(
    ("answer", "option", "leaves", "feedback"),
    [
        (Picked(PLAN_GO), "exit-plan-default", False, ""),
        (Picked(PLAN_KEEP), "plan", False, ""),
        (Picked(PLAN_LEAVE), "plan", True, ""),
        (Dismissed(), "plan", True, ""),
        (Typed("use fewer files"), "plan", False, "use fewer files"),
    ],
)
def test_a_plan_is_reviewed_and_only_the_way_that_keeps_asking_is_taken(
    answer: DialogAnswer, option: str, leaves: bool, feedback: str
) -> None:
    exchange = plan()

    ask = asked(exchange)
    assert (ask.purpose, ask.body) == (DialogPurpose.PLAN_REVIEW, "# Plan")
    exchange.take(answer)

    assert exchange.reply() == {"outcome": {"outcome": "selected", "optionId": option}}
    assert (exchange.leaves, exchange.feedback) == (leaves, feedback)


def test_where_every_way_out_stops_asking_go_leaves_without_it() -> None:
    exchange = plan([WAYS[0], WAYS[1], WAYS[3]])
    exchange.ask()
    exchange.take(Picked(PLAN_GO))

    assert exchange.reply()["outcome"]["optionId"] == "plan"
    assert exchange.leaves


def test_a_question_in_the_form_of_a_permission_becomes_words() -> None:
    """Its "Submit" would carry no answer."""
    questions = [{"question": "Which?", "options": [{"label": "Red"}, {"label": "Blue"}]}]
    params = {
        "_meta": {"qwenInteractionKind": "user_question"},
        "toolCall": {"rawInput": {"questions": questions}},
        "options": [YES, NO],
    }

    exchange = permission(params)

    assert exchange.ask() is None
    assert exchange.say == "Which?\n1. Red\n2. Blue\n"
    assert exchange.reply()["outcome"]["optionId"] == "reject-once"


# --- forms ----------------------------------------------------------------------------------------------------------


def filled(properties: dict[str, Any], *answers: DialogAnswer, **params: Any) -> tuple[list[Ask], dict[str, Any]]:
    """What is asked and, once all is answered, the reply."""
    exchange = form({"mode": "form", "message": "Tell me", "requestedSchema": {"properties": properties}, **params})
    asks = []
    for answer in answers:
        asks.append(asked(exchange))
        exchange.take(answer)
    assert exchange.ask() is None
    return asks, exchange.reply()


COLOUR = {
    "type": "string",
    "title": "Colour",
    "oneOf": [{"const": "red", "title": "Red", "description": "like fire"}, {"const": "blue", "title": "Blue"}],
}


def test_a_choice_is_a_list_with_its_hints() -> None:
    (ask,), reply = filled({"q": COLOUR}, Picked("0"))

    assert (ask.kind, ask.title, ask.other_allowed) == (DialogKind.SELECT, "Colour", False)
    assert [(one.label, one.hint) for one in ask.options] == [("Red", "like fire"), ("Blue", "")]
    assert reply == {"action": "accept", "content": {"q": "red"}}


@pytest.mark.parametrize("companion", ["q_custom", "q_note", "q_other"])
def test_a_free_text_beside_a_choice_is_its_other_entry(companion: str) -> None:
    properties = {"q": COLOUR, companion: {"type": "string", "title": "Other"}}

    (ask,), reply = filled(properties, Typed("green"))

    assert ask.other_allowed
    assert reply == {"action": "accept", "content": {companion: "green"}}


@pytest.mark.parametrize("typed", ["1 3", "1,3", "1、3", "１，３", "3 then 1 and 3"])
def test_several_of_a_list_are_told_by_their_numbers(typed: str) -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b", "c"]}}

    (ask,), reply = filled({"q": schema}, Typed(typed))

    assert ask.kind is DialogKind.INPUT and "2. b" in ask.body
    assert sorted(reply["content"]["q"]) == ["a", "c"]


@pytest.mark.parametrize(
    ("schema", "bad", "good", "value"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, "10", "９", 9),
        ({"type": "integer"}, "2.5", "2", 2),
        ({"type": "number"}, "nan", "2.5", 2.5),
        ({"type": "number"}, "many", "-1e3", -1000.0),
        ({"type": "string", "minLength": 2, "maxLength": 3}, "long", " abc ", "abc"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "3", "2", ["b"]),
    ],
)
def test_an_answer_that_will_not_do_is_asked_again_with_the_reason(
    schema: dict[str, Any], bad: str, good: str, value: object
) -> None:
    (first, again), reply = filled({"q": schema}, Typed(bad), Typed(good))

    assert again.body != first.body and again.body.endswith(first.body)
    assert reply == {"action": "accept", "content": {"q": value}}


def test_a_yes_or_no_is_asked_as_one() -> None:
    (ask,), reply = filled({"sure": {"type": "boolean"}}, Confirmed(False))

    assert ask.kind is DialogKind.CONFIRM
    assert reply["content"] == {"sure": False}


def test_properties_come_in_order_and_one_refusal_ends_all() -> None:
    properties = {"a": {"type": "string"}, "b": COLOUR, "c": {"type": "boolean"}}

    asks, reply = filled(properties, Typed("x"), Dismissed())

    assert [ask.title for ask in asks] == ["a", "Colour"]
    assert reply == {"action": "decline"}


def test_after_three_answers_that_will_not_do_the_form_is_declined() -> None:
    _, reply = filled({"n": {"type": "integer"}}, *[Typed("no number")] * 3)

    assert reply == {"action": "decline"}


@pytest.mark.parametrize(
    "params",
    [
        {"mode": "url", "url": "https://example.invalid"},
        {"requestedSchema": {}},
        {"requestedSchema": {"properties": {f"p{n}": {"type": "string"} for n in range(FIELDS + 1)}}},
    ],
)
def test_what_is_no_form_is_declined_at_once(params: dict[str, Any]) -> None:
    exchange = form({"mode": "form", "message": "m", "requestedSchema": {"properties": {"a": {}}}, **params})

    assert exchange.ask() is None
    assert exchange.reply() == {"action": "decline"}
    assert exchange.cancelled() == {"action": "cancel"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["toolCall", "options", "optionId", "kind", "title", "rawInput", "command", "content", "_meta"]
            )
            | st.sampled_from(["requestedSchema", "properties", "type", "oneOf", "enum", "enumNames", "items", "const"])
            | st.text(max_size=4),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
ANSWERS = st.sampled_from(
    [Picked("0"), Picked("x"), Typed("1"), Typed(""), Confirmed(True), Confirmed(False), Dismissed()]
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the shape of such JSON takes its time on a busy machine
@given(
    params=st.dictionaries(st.sampled_from(["toolCall", "options", "mode", "requestedSchema", "message"]), JSON),
    data=st.data(),
)
def test_whatever_an_agent_sends_ends_with_a_reply(params: dict[str, Any], data: st.DataObject) -> None:
    for exchange in (permission(params), form(params)):
        for _ in range(4 * FIELDS):
            if exchange.ask() is None:
                break
            exchange.take(data.draw(ANSWERS))
        assert exchange.ask() is None
        assert set(exchange.reply()) <= {"outcome", "action", "content"}
