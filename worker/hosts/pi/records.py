"""Pi's RPC records as values: what starts it, what is said to it, and its own records as events. Pure.

session.py owns the process and the pipes. The other end of the envelope and of the dialogs' titles is extension.ts.
Shapes and version limits were measured on Pi 1.6.0; docs/rpc.md and docs/json.md of its package describe them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from protocol.agents import PI_TOOLS, Approvals, Thinking, tools_of
from protocol.content import Access, Prompt
from protocol.errors import FailureKind
from protocol.ids import DialogId
from protocol.to_supervisor import DialogKind, DialogOption, DialogPurpose, TurnOutcome
from protocol.to_worker import Confirmed, DialogAnswer, Dismissed, Picked, Typed
from worker.hosts.base import (
    AgentError,
    AgentEvent,
    AgentRemarked,
    BoundaryReason,
    DialogAsked,
    PlanChanged,
    TextBoundary,
    TextDelta,
    ToolActivity,
    ToolStatus,
    TurnEnded,
    UsageSeen,
    for_the_log,
    kind_in_words,
    patched,
)
from worker.hosts.pictures import Picture

Record = dict[str, Any]

OLDEST = (1, 0, 4)  # `--no-mcp`; before 0.84 each delta repeats the whole message, before 0.80 nothing says the end
EXTENSION_KEY, EXTENSION_VERSION = "bridge-supervisor", "1"
TITLE = "bridge:"

# How the providers that a model's name may begin with are reached: Pi's own entry for them, sent to our gateway, knows
# their models. Anything else is a chat-completions server of which nothing is known.
PROVIDERS = {"openai": "/v1", "anthropic": "", "google": "/v1beta"}
OTHER = "gateway"
TOKEN_VARIABLE = "OPENAI_API_KEY"  # base.gateway_environment; so the token is in no file

SETTINGS: Mapping[str, object] = {
    "cacheWarming": "off",  # model calls that nobody asked for would be counted against the peer
    "enableInstallTelemetry": False,
    "defaultProjectTrust": "never",
}
ENVIRONMENT: Mapping[str, str] = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
# Nothing found in the workspace or in Pi's own folder is loaded.
CLOSED_START = (
    "--no-extensions",
    "--no-skills",
    "--no-prompt-templates",
    "--no-themes",
    "--no-context-files",
    "--no-mcp",
    "--no-approve",
)
# Reading inside the walls is nobody's concern.
ASKS: Mapping[Approvals, tuple[str, ...]] = {
    Approvals.ASK: ("bash", "write", "edit"),
    Approvals.NEVER_ASK_READS: ("bash", "write", "edit"),
    Approvals.ALLOW: (),
}
DANGEROUS = frozenset({"bash"})

TITLE_CHARS, BODY_CHARS, SHOWN_CHARS = 200, 8000, 2000
OPTIONS_MOST = 100
TIMEOUT_MOST_MS = 24 * 3600 * 1000  # what waits longer waits for as long as it takes


def version_in(text: str) -> tuple[int, int, int] | None:
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def shown(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def tools(access: Access, narrowed: frozenset[str] | None, *, sends: bool = False) -> tuple[str, ...]:
    """Pi's names of the tools that this session has.

    raises ValueError: a name that Pi has no tool for
    """
    unknown = sorted((narrowed or frozenset()) - PI_TOOLS.keys())
    if unknown:
        raise ValueError(f"Pi has no tool {', '.join(unknown)}; it has {', '.join(PI_TOOLS)}")
    allowed = tools_of(access, sends, narrowed)
    return tuple(name for tool, names in PI_TOOLS.items() if tool in allowed for name in names)


def provider_and_model(model: str) -> tuple[str, str]:
    """Of a name such as "openai:gpt-5", "openai-compatible:NAME" or "NAME", as Pi's own two flags take them."""
    provider, colon, name = model.partition(":")
    if colon and provider in PROVIDERS:
        return provider, name
    return OTHER, name if colon and provider == "openai-compatible" else model


def models(model: str, gateway_url: str, thinking: Thinking = Thinking.AGENTS_OWN) -> Record:
    """models.json: the one way to a model. The key is read from the environment at each call."""
    provider, name = provider_and_model(model)
    entry: Record = {"apiKey": f"${TOKEN_VARIABLE}", "baseUrl": gateway_url + PROVIDERS.get(provider, "/v1")}
    if provider == OTHER:
        thinks = thinking not in (Thinking.AGENTS_OWN, Thinking.OFF)
        compat = {"supportsDeveloperRole": False, "supportsReasoningEffort": thinks}
        known = {"id": name, "input": ["text", "image"], "contextWindow": 128_000, "maxTokens": 8_000}
        known["reasoning"] = thinks
        entry |= {"api": "openai-completions", "compat": compat, "models": [known]}
    return {"providers": {provider: entry}}


def arguments(
    *,
    model: str,
    thinking: Thinking,
    sessions: str,
    session: tuple[str, ...],
    contract: str,
    extension: str,
    allowed: tuple[str, ...],
) -> tuple[str, ...]:
    """session: flags that name the conversation"""
    provider, name = provider_and_model(model)
    carried = ("--append-system-prompt", contract) if contract else ()
    return (
        *("--mode", "rpc", "--provider", provider, "--model", name, "--session-dir", sessions, *session),
        *(("--thinking", thinking.value) if thinking is not Thinking.AGENTS_OWN else ()),
        *carried,
        *CLOSED_START,
        *("-e", extension),
        *(("--tools", ",".join(allowed)) if allowed else ("--no-tools",)),
    )


def prompt_record(prompt: Prompt, pictures: Iterable[Picture]) -> Record:
    """The peer's words and the bridge's notes in one envelope, whatever they begin with."""
    notes = [*prompt.notes, *(f"[bridge: attached: {path}]" for path in (*prompt.images, *prompt.files))]
    images = [{"type": "image", "data": one.data, "mimeType": one.mime} for one in pictures]
    message = json.dumps({"notes": notes, "text": prompt.text})
    return {"type": "prompt", "message": message, **({"images": images} if images else {})}


def greets(record: Record) -> bool:
    """Our extension is there, and it is the one that belongs to this file."""
    return (
        record.get("type") == "extension_ui_request"
        and record.get("method") == "setStatus"
        and record.get("statusKey") == EXTENSION_KEY
        and record.get("statusText") == EXTENSION_VERSION
    )


# --- dialogs --------------------------------------------------------------------------------------------------


def dialog_in(record: Record) -> DialogAsked | None:
    """What an extension asks the peer. None: nothing that can be asked."""
    method, identity = record.get("method"), record.get("id")
    if not isinstance(identity, str) or method not in ("select", "confirm", "input", "editor"):
        return None
    dialog_id, kind = DialogId(identity), DialogKind(method)
    title = _text(record.get("title"))
    about = _about(title)
    timeout = record.get("timeout")
    expires_s = timeout / 1000 if isinstance(timeout, int | float) and 0 < timeout < TIMEOUT_MOST_MS else None
    match about.get("about"):
        case "permission":
            tool = _text(about.get("tool"))
            body = _what_it_does(about.get("input"))
            pair = (DialogOption("yes", "", dangerous=True), DialogOption("no", "")) if tool in DANGEROUS else ()
            return DialogAsked(dialog_id, kind, DialogPurpose.PERMISSION, tool, body, pair, expires_s=expires_s)
        case "plan":
            plan = _text(record.get("prefill"))
            return DialogAsked(dialog_id, kind, DialogPurpose.PLAN_REVIEW, _text(about.get("title")), plan)
    if about:
        title = _text(about.get("title"))
    options: tuple[DialogOption, ...] = ()
    if kind is DialogKind.SELECT:
        labels = record.get("options")
        if not isinstance(labels, list) or not labels or len(labels) > OPTIONS_MOST:
            return None
        options = tuple(DialogOption(str(place), _text(label)) for place, label in enumerate(labels))
    # A longer question is a text, and a title is one line.
    title, body = (title, "") if len(title) <= TITLE_CHARS and "\n" not in title else ("", title[:BODY_CHARS])
    more = _text(record.get("message") if kind is DialogKind.CONFIRM else record.get("placeholder"))
    return DialogAsked(
        dialog_id,
        kind,
        DialogPurpose.QUESTION,
        title,
        "\n".join(part for part in (body, more[:BODY_CHARS]) if part),
        options,
        prefill=_text(record.get("prefill")),
        other_allowed=about.get("other") is True,
        expires_s=expires_s,
    )


def reply(record: Record, answer: DialogAnswer) -> Record:
    """The answer as Pi takes it. record: the request"""
    said: Record = {"type": "extension_ui_response", "id": record.get("id")}
    match answer:
        case Dismissed():
            return said | {"cancelled": True}
        case Confirmed(yes):
            return said | {"confirmed": yes}
        case Picked(option_id):
            labels = record.get("options")
            if isinstance(labels, list):
                place = int(option_id) if option_id.isdecimal() else -1
                return said | ({"value": labels[place]} if 0 <= place < len(labels) else {"cancelled": True})
            return said | {"value": option_id}  # of a plan review
        case Typed(text):
            is_plan = _about(_text(record.get("title"))).get("about") == "plan"
            return said | {"value": f"changes:{text}" if is_plan else text}


def cancelled(identity: object) -> Record:
    return {"type": "extension_ui_response", "id": identity, "cancelled": True}


def _about(title: str) -> Record:
    """What our extension says of a dialog; empty for anybody else's."""
    if not title.startswith(TITLE):
        return {}
    try:
        found: object = json.loads(title.removeprefix(TITLE))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _what_it_does(arguments: object) -> str:
    """A tool's arguments as a peer can judge them."""
    if not isinstance(arguments, dict):
        return ""
    if isinstance(arguments.get("command"), str):
        return _cut(arguments["command"], BODY_CHARS)
    path = _text(arguments.get("path"))
    lines = [path] if path else []
    if isinstance(arguments.get("content"), str):
        lines.append(_cut(arguments["content"], SHOWN_CHARS))
    edits = arguments.get("edits")
    for edit in edits[:OPTIONS_MOST] if isinstance(edits, list) else []:
        if isinstance(edit, dict):
            lines += _marked("- ", _text(edit.get("oldText"))) + _marked("+ ", _text(edit.get("newText")))
    if not lines:
        lines.append(json.dumps(arguments, ensure_ascii=False))
    return _cut("\n".join(lines), BODY_CHARS)


def _marked(mark: str, text: str) -> list[str]:
    return [mark + line for line in _cut(text, SHOWN_CHARS).splitlines()]


def _cut(text: str, limit_chars: int) -> str:
    return text if len(text) <= limit_chars else f"{text[:limit_chars]} […{len(text) - limit_chars}]"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


# --- one turn's records → events ------------------------------------------------------------------------------

_ENDS = {"stop": TurnOutcome.COMPLETED, "toolUse": TurnOutcome.COMPLETED, "length": TurnOutcome.LIMIT}
_DECLINED = re.compile(r"refused to complete|content_filter|stopped with: sensitive", re.IGNORECASE)
_TOOLS_KNOWN = 2000


class Ear:
    """What one turn's records say. The last assistant message decides how it ended: earlier ones may have been retried."""

    def __init__(self, context_size: int | None = None) -> None:
        self._tools: dict[str, ToolActivity] = {}
        self._text_open = False
        self._stop_reason, self._error = "", ""
        self._input = self._output = 0
        self._used: int | None = None
        self._size = context_size

    def hear(self, record: Record) -> tuple[AgentEvent, ...]:
        match record.get("type"):
            case "message_update":
                return self._hear_update(record.get("assistantMessageEvent"))
            case "message_end":
                return self._hear_message(record.get("message"))
            case "tool_execution_start":
                return (*self._pause(BoundaryReason.TOOL), *self._hear_tool(record, ToolStatus.STARTED))
            case "tool_execution_update":
                return self._hear_tool(record, ToolStatus.RUNNING)
            case "tool_execution_end":
                return self._hear_tool(record, ToolStatus.FAILED if record.get("isError") is True else ToolStatus.DONE)
            case "extension_error":
                return (AgentRemarked("warning", f"an extension failed in {_text(record.get('event'))}"),)
            case "auto_retry_start":
                return (AgentRemarked("warning", "the model server failed; the agent tries again"),)
            case "compaction_start":
                return (AgentRemarked("info", "the agent shortens its memory of the conversation"),)
        return ()

    def end(self) -> TurnEnded:
        """Once nothing more will come of this turn (agent_settled)."""
        if self._stop_reason in _ENDS:
            return TurnEnded(_ENDS[self._stop_reason])
        if self._stop_reason == "aborted":  # not by us, or nobody would ask
            return TurnEnded(TurnOutcome.FAILED, AgentError(FailureKind.OTHER, "the agent stopped by itself"))
        if self._stop_reason == "error":
            if _DECLINED.search(self._error):
                return TurnEnded(TurnOutcome.DECLINED)
            return TurnEnded(TurnOutcome.FAILED, AgentError(kind_in_words(self._error), for_the_log(self._error)))
        return TurnEnded(TurnOutcome.COMPLETED)

    def _hear_update(self, update: object) -> tuple[AgentEvent, ...]:
        if not isinstance(update, dict):
            return ()
        match update.get("type"):
            case "text_delta":
                text = _text(update.get("delta"))
                self._text_open = self._text_open or bool(text)
                return (TextDelta(text),) if text else ()
            case "text_end":
                return self._pause(BoundaryReason.BLOCK)
            case "toolcall_end":
                return self._pause(BoundaryReason.TOOL)
        return ()

    def _hear_message(self, message: object) -> tuple[AgentEvent, ...]:
        if not isinstance(message, dict) or message.get("role") != "assistant":
            return ()
        self._stop_reason, self._error = _text(message.get("stopReason")), _text(message.get("errorMessage"))
        events: list[AgentEvent] = [*self._pause(BoundaryReason.MESSAGE)]
        usage = message.get("usage")
        if isinstance(usage, dict):
            self._input += sum(_count(usage.get(name)) for name in ("input", "cacheRead", "cacheWrite"))
            self._output += _count(usage.get("output"))
            self._used = _count(usage.get("totalTokens")) or self._used
            events.append(UsageSeen(self._input, self._output, self._used, self._size))
        return tuple(events)

    def _hear_tool(self, record: Record, status: ToolStatus) -> tuple[AgentEvent, ...]:
        call_id, name = _text(record.get("toolCallId")), _text(record.get("toolName"))
        activity = patched(self._tools.get(call_id), ToolActivity(call_id, name, name, "", status))
        if call_id not in self._tools and len(self._tools) >= _TOOLS_KNOWN:
            self._tools.pop(next(iter(self._tools)))
        self._tools[call_id] = activity
        if status is ToolStatus.STARTED and name == "todo" and (entries := _todo(record.get("args"))) is not None:
            return activity, PlanChanged(entries)
        return (activity,)

    def _pause(self, reason: BoundaryReason) -> tuple[AgentEvent, ...]:
        if not self._text_open:
            return ()
        self._text_open = False
        return (TextBoundary(reason),)


def _todo(arguments: object) -> tuple[tuple[str, str], ...] | None:
    items = arguments.get("items") if isinstance(arguments, dict) else None
    if not isinstance(items, list):
        return None
    return tuple((_text(item.get("text")), _text(item.get("status"))) for item in items if isinstance(item, dict))


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
