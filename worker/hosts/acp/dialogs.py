"""An agent's questions as ours, and our answers as its: permission requests, plan reviews and forms. Pure.

In come the JSON of a request and, one by one, the peer's answers; out go the questions to put and, at the end, the JSON of
the reply. Options are chosen by what they are, never by where they stand, and those that would hold for ever are never
offered: agents remember such an answer themselves, where nobody can take it back.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from protocol.to_supervisor import PLAN_GO, PLAN_LEAVE, DialogKind, DialogOption, DialogPurpose
from protocol.to_worker import Confirmed, DialogAnswer, Dismissed, Picked, Typed

BODY_CHARS = 2000
DIFF_LINES = 12
FIELDS = 20  # of a form; a longer one is declined
TRIES = 3  # at one field, before the form is declined
DANGEROUS = frozenset({"execute", "delete"})
# Ways out of plan mode after which an agent would no longer ask.
CARELESS = re.compile(r"auto|bypass|accept|yolo|dont.?ask|full", re.IGNORECASE)
_PLAIN = frozenset(
    {"yes", "no", "allow", "allow once", "approve", "reject", "reject once", "deny", "accept", "decline"}
)
_CUSTOM = re.compile(r"(.+)_(?:custom|note|other)$")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a DialogAsked is made of."""

    kind: DialogKind
    purpose: DialogPurpose
    title: str
    body: str = ""
    options: tuple[DialogOption, ...] = ()
    prefill: str = ""
    other_allowed: bool = False


class Exchange(Protocol):
    """One request of the agent's. ask() and take() in turn, until ask() is None; then reply().

    say         words for the peer that are no question
    feedback    what the agent is to be told as its next prompt
    leaves      the mode in which the agent plans is to be left
    """

    say: str
    feedback: str
    leaves: bool

    def ask(self) -> Ask | None: ...

    def take(self, answer: DialogAnswer) -> None: ...

    def reply(self) -> dict[str, Any]:
        """For the agent. Before the last answer: as if the peer would not."""
        ...

    def cancelled(self) -> dict[str, Any]:
        """The reply once the turn is being stopped."""
        ...


# --- permissions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Option:
    id: str
    name: str
    kind: str


def permission(params: Mapping[str, Any], *, known_title: str = "", known_kind: str = "") -> Exchange:
    """session/request_permission. known_title, known_kind: what was told of this tool call before"""
    call = _object(params.get("toolCall"))
    options = [
        _Option(one["optionId"], _text(one.get("name")), _text(one.get("kind")))
        for one in _objects(params.get("options"))
        if isinstance(one.get("optionId"), str)
    ]
    kind = _text(call.get("kind")) or known_kind
    title = _text(call.get("title")) or known_title or _command(call) or kind
    if _is_question(params, call):
        return _Unanswerable(options, _questions_as_text(call))
    if kind == "switch_mode":
        return _PlanReview(options, title, _content_text(call) or _text(_object(call.get("rawInput")).get("plan")))
    return _Permission(options, kind, title, _body(call, title))


class _Chosen:
    """Shared by all that end with one option."""

    def __init__(self, options: Sequence[_Option]) -> None:
        self.say = ""
        self.feedback = ""
        self.leaves = False
        self._allow = [one for one in options if one.kind == "allow_once"]
        self._reject = [one for one in options if one.kind == "reject_once"]
        self._picked: _Option | None = self._reject[0] if self._reject else None

    def reply(self) -> dict[str, Any]:
        if self._picked is None:
            return self.cancelled()
        return {"outcome": {"outcome": "selected", "optionId": self._picked.id}}

    def cancelled(self) -> dict[str, Any]:
        return {"outcome": {"outcome": "cancelled"}}


class _Permission(_Chosen):
    def __init__(self, options: Sequence[_Option], kind: str, title: str, body: str) -> None:
        super().__init__(options)
        self._dangerous = kind in DANGEROUS
        self._title, self._body = title, body
        self._open = bool(self._allow)  # nothing that could be allowed: declined without a question

    def ask(self) -> Ask | None:
        if not self._open:
            return None
        purpose = DialogPurpose.PERMISSION
        if len(self._allow) == len(self._reject) == 1:
            yes, no = self._allow[0], self._reject[0]
            tells = self._dangerous or not {yes.name.strip().lower(), no.name.strip().lower()} <= _PLAIN
            labels = (self._shown(yes), self._shown(no)) if tells else ()
            return Ask(DialogKind.CONFIRM, purpose, self._title, self._body, labels)
        shown = tuple(self._shown(one) for one in (*self._allow, *self._reject))
        return Ask(DialogKind.SELECT, purpose, self._title, self._body, shown)

    def _shown(self, one: _Option) -> DialogOption:
        return DialogOption(one.id, one.name or one.id, dangerous=self._dangerous and one in self._allow)

    def take(self, answer: DialogAnswer) -> None:
        self._open = False
        match answer:
            case Confirmed(yes=True):
                self._picked = self._allow[0]
            case Picked(option_id=option_id):
                found = [one for one in (*self._allow, *self._reject) if one.id == option_id]
                self._picked = found[0] if found else self._picked
            case Confirmed() | Typed() | Dismissed():
                pass  # the option that refuses, or nothing
            case _:
                assert_never(answer)


class _PlanReview(_Chosen):
    """Go on, by the way out that keeps asking; keep planning; leave. Other words are feedback."""

    def __init__(self, options: Sequence[_Option], title: str, plan: str) -> None:
        super().__init__(options)
        # Some agents call every way out "always": what counts is whether it goes on asking.
        ways = [one for one in options if one.kind.startswith("allow")]
        self._go = [one for one in ways if not CARELESS.search(one.id)]
        self._title, self._plan = title, plan
        self._open = bool(ways)

    def ask(self) -> Ask | None:
        if not self._open:
            return None
        return Ask(DialogKind.SELECT, DialogPurpose.PLAN_REVIEW, self._title, self._plan, other_allowed=True)

    def take(self, answer: DialogAnswer) -> None:
        self._open = False
        match answer:
            case Picked(option_id=option_id) if option_id == PLAN_GO and self._go:
                self._picked = self._go[0]
            case Typed(text=text):
                self.feedback = text
            case Dismissed():
                self.leaves = True
            case Picked(option_id=option_id):
                self.leaves = option_id in (PLAN_LEAVE, PLAN_GO)  # no way out that would go on asking: out without it
            case Confirmed():
                pass
            case _:
                assert_never(answer)


class _Unanswerable(_Chosen):
    """A question in the form of a permission, whose reply cannot carry an answer: it becomes words."""

    def __init__(self, options: Sequence[_Option], say: str) -> None:
        super().__init__(options)
        self.say = say

    def ask(self) -> Ask | None:
        return None

    def take(self, answer: DialogAnswer) -> None:
        pass


def _is_question(params: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    return any(_object(one.get("_meta")).get("qwenInteractionKind") == "user_question" for one in (params, call))


def _questions_as_text(call: Mapping[str, Any]) -> str:
    lines = []
    for one in _objects(_object(call.get("rawInput")).get("questions")):
        lines.append(_text(one.get("question")))
        for number, option in enumerate(_objects(one.get("options")), start=1):
            lines.append(f"{number}. {_text(option.get('label'))}")
    return "\n".join(line for line in lines if line) + "\n" if any(lines) else ""


def _command(call: Mapping[str, Any]) -> str:
    command = _object(call.get("rawInput")).get("command")
    if isinstance(command, list):
        return " ".join(str(word) for word in command)
    return _text(command)


def _content_text(call: Mapping[str, Any]) -> str:
    texts = [_object(one.get("content")).get("text") for one in _objects(call.get("content"))]
    return "\n".join(text for text in texts if isinstance(text, str))


def _body(call: Mapping[str, Any], title: str) -> str:
    """What is to be done, as far as the request says: the command, the changes, the agent's own words."""
    parts = [_command(call), _content_text(call)]
    for one in _objects(call.get("content")):
        if one.get("type") == "diff":
            lines = _text(one.get("newText")).splitlines()
            more = [f"… {len(lines) - DIFF_LINES}"] if len(lines) > DIFF_LINES else []
            parts.append("\n".join([_text(one.get("path")), *lines[:DIFF_LINES], *more]))
    if not any(parts):
        given = _object(call.get("rawInput"))
        parts = [json.dumps(given, ensure_ascii=False)] if given else []
    kept = [part for part in dict.fromkeys(parts) if part and part != title]
    return "\n".join(kept)[:BODY_CHARS]


# --- forms ------------------------------------------------------------------------------------------------------


class _Form:
    """elicitation/create, mode form: one question for each property, in order."""

    def __init__(self, message: str, properties: Mapping[str, Mapping[str, Any]]) -> None:
        self.say = ""
        self.feedback = ""
        self.leaves = False
        self._message = message
        free = {match[1]: name for name in properties if (match := _CUSTOM.fullmatch(name)) and match[1] in properties}
        self._fields = [
            _Field(name, schema, free.get(name)) for name, schema in properties.items() if name not in free.values()
        ]
        self._content: dict[str, Any] = {}
        self._reason = ""
        self._tries = 0
        self._declined = not 0 < len(self._fields) <= FIELDS

    def ask(self) -> Ask | None:
        if self._declined or not self._fields:
            return None
        return self._fields[0].ask(self._message, self._reason)

    def take(self, answer: DialogAnswer) -> None:
        field = self._fields[0]
        if isinstance(answer, Dismissed):
            self._declined = True
            return
        taken = field.take(answer)
        if isinstance(taken, str):
            self._reason, self._tries = taken, self._tries + 1
            self._declined = self._tries >= TRIES
            return
        self._content |= taken
        self._fields.pop(0)
        self._reason, self._tries = "", 0

    def reply(self) -> dict[str, Any]:
        if self._declined or self._fields:
            return {"action": "decline"}
        return {"action": "accept", "content": self._content}

    def cancelled(self) -> dict[str, Any]:
        return {"action": "cancel"}


class _Field:
    """One property. free: the property beside it that takes words of the peer's own."""

    def __init__(self, name: str, schema: Mapping[str, Any], free: str | None) -> None:
        self._name = name
        self._schema = schema
        self._free = free
        self._type = schema.get("type")
        self._choices = _choices(schema)
        items = _object(schema.get("items"))
        self._several = _choices(items) if self._type == "array" else []

    def ask(self, message: str, reason: str) -> Ask:
        title = _text(self._schema.get("title")) or self._name
        about = [reason, message, _text(self._schema.get("description"))]
        purpose = DialogPurpose.QUESTION
        if self._choices:
            return Ask(
                DialogKind.SELECT, purpose, title, _lines(about), self._options(), other_allowed=bool(self._free)
            )
        if self._type == "boolean":
            return Ask(DialogKind.CONFIRM, purpose, title, _lines(about))
        if self._several:
            about += [f"{number}. {label}" for number, (_, label, _) in enumerate(self._several, start=1)]
        prefill = self._schema.get("default")
        return Ask(DialogKind.INPUT, purpose, title, _lines(about), prefill=prefill if isinstance(prefill, str) else "")

    def _options(self) -> tuple[DialogOption, ...]:
        # By number: a value may be long, or be there twice.
        return tuple(DialogOption(str(at), label, hint) for at, (_, label, hint) in enumerate(self._choices))

    def take(self, answer: DialogAnswer) -> dict[str, Any] | str:
        """What to add to the content, or why the answer will not do."""
        match answer:
            case Picked(option_id=at) if at.isdecimal() and int(at) < len(self._choices):
                return {self._name: self._choices[int(at)][0]}
            case Confirmed(yes=yes) if self._type == "boolean":
                return {self._name: yes}
            case Typed(text=text):
                return self._typed(text.strip())
        return "?"

    def _typed(self, text: str) -> dict[str, Any] | str:
        if self._choices:
            return {self._free: text} if self._free else "?"
        if self._several:
            numbers = [int(word) for word in re.findall(r"\d+", unicodedata.normalize("NFKC", text))]
            if not numbers or not all(1 <= number <= len(self._several) for number in numbers):
                return f"1–{len(self._several)}"
            return {self._name: [self._several[number - 1][0] for number in dict.fromkeys(numbers)]}
        if self._type in ("number", "integer"):
            return self._number(text)
        return self._string(text)

    def _number(self, text: str) -> dict[str, Any] | str:
        try:
            value = float(unicodedata.normalize("NFKC", text))
        except ValueError:
            return "0–9"
        low, high = self._schema.get("minimum"), self._schema.get("maximum")
        if (isinstance(low, int | float) and value < low) or (isinstance(high, int | float) and value > high):
            return f"{'' if low is None else low}–{'' if high is None else high}"
        whole = self._type == "integer"
        if value != value or value in (float("inf"), float("-inf")) or (whole and value != int(value)):
            return "0–9"
        return {self._name: int(value) if whole else value}

    def _string(self, text: str) -> dict[str, Any] | str:
        least, most = self._schema.get("minLength"), self._schema.get("maxLength")
        if (isinstance(least, int) and len(text) < least) or (isinstance(most, int) and len(text) > most):
            return f"{least or 0}–{'' if most is None else most}"
        return {self._name: text}


def form(params: Mapping[str, Any]) -> Exchange:
    """elicitation/create. One that is no form (a page to open), or a form of nothing, is declined at once."""
    schema = _object(params.get("requestedSchema"))
    properties = {name: one for name, one in _object(schema.get("properties")).items() if isinstance(one, dict)}
    if params.get("mode") not in (None, "form"):
        properties = {}
    return _Form(_text(params.get("message")), properties)


def _choices(schema: Mapping[str, Any]) -> list[tuple[Any, str, str]]:
    """Value, label and hint of each thing to choose from."""
    for key in ("oneOf", "anyOf"):
        found = [
            (one["const"], _text(one.get("title")) or str(one["const"]), _text(one.get("description")))
            for one in _objects(schema.get(key))
            if "const" in one
        ]
        if found:
            return found
    values = schema.get("enum")
    names = schema.get("enumNames")
    if not isinstance(values, list):
        return []
    labels = names if isinstance(names, list) and len(names) == len(values) else values
    return [(value, str(label), "") for value, label in zip(values, labels, strict=True)]


# --- JSON of whoever ----------------------------------------------------------------------------------------------


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _lines(parts: Sequence[str]) -> str:
    return "\n".join(part for part in parts if part)[:BODY_CHARS]
