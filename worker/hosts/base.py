"""What a host is: the adapter that drives one agent program for one peer.

In come a SessionSpec and prompts, out come immutable AgentEvents. The rules every host keeps (one contract suite,
tests/worker/hosts/test_contract.py):

- exactly one TurnEnded per turn, last, also when the agent dies, talks nonsense or never answers
- one turn at a time; a second turn() raises RuntimeError
- words of an earlier turn, of a replayed history or of the time before open() returned are dropped
- abort() is idempotent, returns at once, and ends the agent program when the grace is over
- an agent's error text goes into AgentError.detail, capped, and nowhere else
- nothing is read from the worker's environment: the SessionSpec says it all
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from protocol.agents import (
    GATEWAY_VARIABLES,
    NO_PROXY_VARIABLES,
    PROXY,
    PROXY_VARIABLES,
    TOKEN,
    URL,
    Approvals,
    Thinking,
)
from protocol.content import Access, Prompt
from protocol.errors import BridgeError, FailureKind
from protocol.ids import DialogId, SessionId
from protocol.to_supervisor import DialogKind, DialogOption, DialogPurpose, OpenedHow, TurnOutcome
from protocol.to_worker import DialogAnswer

DETAIL_CHARS = 700  # most of an AgentError's detail: 2 KiB on the wire even where every character takes three bytes


class ToolControl(StrEnum):
    """How a tool list is kept: by the host itself, or by nothing but the sandbox around it."""

    EXACT = "exact"
    SANDBOX_ONLY = "sandbox_only"


@dataclass(frozen=True, slots=True)
class HostTraits:
    """name and version are the agent program's own once it has told them."""

    name: str
    version: str = ""
    images: bool = False
    resume: bool = False
    tool_control: ToolControl = ToolControl.SANDBOX_ONLY
    modes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolServer:
    """A local MCP server, started by the agent program itself inside its sandbox."""

    name: str
    command: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """All that a host knows. Paths are absolute and exist; session_id None starts a fresh conversation.

    contract      static text for the session's system prompt, for hosts that have a carrier for it
    tools         None = all of the access level, empty = none
    stop_grace_s  how long an aborted turn may take before its program is ended
    gateway_url   where models are; token is the only key that works there. proxy_url: the public web
    agent         as settings name it: of those that a host can drive, the one it is to know the ways of
    sends         the session has the `send` tool, as far as tools leaves it
    tool_servers  for agents that take their tools from elsewhere
    rules         "always" answers that stand (DialogOption.rule); the embedded agent's alone
    """

    session_dir: Path
    workspace: Path
    session_id: SessionId | None
    access: Access
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    model: str = ""
    contract: str = ""
    tools: frozenset[str] | None = None
    stop_grace_s: float = 5.0
    gateway_url: str = ""
    token: str = ""
    proxy_url: str = ""
    rules: tuple[str, ...] = ()
    thinking: Thinking = Thinking.AGENTS_OWN
    approvals: Approvals = Approvals.ASK
    tool_servers: tuple[ToolServer, ...] = ()
    agent: str = ""
    sends: bool = False


def gateway_environment(spec: SessionSpec) -> dict[str, str]:
    """Where an agent program finds models and, where it may, the web, as the usual libraries read it."""
    if not spec.gateway_url:
        return {}
    variables = GATEWAY_VARIABLES | NO_PROXY_VARIABLES | (PROXY_VARIABLES if spec.proxy_url else {})
    values = {URL: spec.gateway_url, TOKEN: spec.token, PROXY: spec.proxy_url}
    return {name: _filled_in(value, values) for name, value in variables.items()}


def _filled_in(text: str, values: Mapping[str, str]) -> str:
    for place, value in values.items():
        text = text.replace(place, value)
    return text


@dataclass(frozen=True, slots=True)
class Opened:
    session_id: SessionId
    how: OpenedHow


# What model servers quote when they refuse a key, and how such keys begin. A habit, no wall: an agent may spell a key as
# it likes, but the log is read, mailed and kept by people who do not expect one there.
_KEYS = re.compile(
    r"""(\b(?:bearer|basic)\s+|[\w-]*(?:api[_-]?key|token|secret|password)["']?\s*[:=]\s*["']?)[^\s"',;}]+"""
    r"|()\b(?:(?:sk|pk|rk|ghp|gho|github_pat|xox[a-z])[-_][\w-]{8,}|AIza[\w-]{20,}|AKIA[A-Z0-9]{12,}|eyJ[\w-]+\.[\w.-]+)",
    re.IGNORECASE,
)


def for_the_log(text: str) -> str:
    """An agent's words as an AgentError may carry them: without keys, capped, and encodable whatever they hold."""
    masked = _KEYS.sub(lambda found: f"{found[1] or ''}***", text[: 4 * DETAIL_CHARS])
    return masked[:DETAIL_CHARS].encode("utf-8", "replace").decode()


class HostError(BridgeError):
    """The agent program could not be opened. detail is for the operator's log alone."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        self.kind = kind
        self.detail = for_the_log(detail)
        super().__init__(f"{kind}: {self.detail}")


@dataclass(frozen=True, slots=True)
class AgentError:
    """detail may hold paths and prompts: the operator's log is the only place for it."""

    kind: FailureKind
    detail: str = ""


class BoundaryReason(StrEnum):
    BLOCK = "block"
    TOOL = "tool"
    MESSAGE = "message"


class ToolStatus(StrEnum):
    STARTED = "started"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str  # never empty


@dataclass(frozen=True, slots=True)
class TextBoundary:
    """A good place to end a piece."""

    reason: BoundaryReason


@dataclass(frozen=True, slots=True)
class ToolActivity:
    """Never a bubble."""

    call_id: str
    name: str
    kind: str
    title: str
    status: ToolStatus


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """The agent's own todo list, whole: (text, status) each."""

    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DialogAsked:
    dialog_id: DialogId
    kind: DialogKind
    purpose: DialogPurpose
    title: str
    body: str
    options: tuple[DialogOption, ...] = ()
    prefill: str = ""
    other_allowed: bool = False
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class DialogGone:
    """The agent no longer waits for this answer."""

    dialog_id: DialogId


@dataclass(frozen=True, slots=True)
class FileOffered:
    """An entry of the outbox folder, by its name there."""

    file_id: str
    caption: str


@dataclass(frozen=True, slots=True)
class SendAsked:
    """A call of `send`: a text, or the picture in this entry of the outbox folder."""

    file_id: str
    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class UsageSeen:
    """Whatever is known; None is unknown."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    context_used: int | None = None
    context_size: int | None = None


@dataclass(frozen=True, slots=True)
class AgentRemarked:
    """The agent program's own warning: for the event stream, never for the peer."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    outcome: TurnOutcome
    error: AgentError | None = None


AgentEvent = (
    TextDelta
    | TextBoundary
    | ToolActivity
    | PlanChanged
    | DialogAsked
    | DialogGone
    | FileOffered
    | SendAsked
    | UsageSeen
    | AgentRemarked
    | TurnEnded
)


class AgentSession(Protocol):
    """One conversation of one agent. Made by hosts.make, opened once, closed once."""

    @property
    def traits(self) -> HostTraits: ...

    @property
    def gone(self) -> asyncio.Event:
        """Set once no further turn is possible here: the agent program has ended, by itself or by an abort."""
        ...

    async def open(self, spec: SessionSpec) -> Opened:
        """raises HostError. The caller sets the deadline; after a cancel, close() still cleans up"""
        ...

    def turn(self, prompt: Prompt) -> AsyncIterator[AgentEvent]:
        """raises RuntimeError while a turn runs"""
        ...

    async def answer(self, dialog_id: DialogId, answer: DialogAnswer) -> bool:
        """False: nobody waits for this answer any more."""
        ...

    async def abort(self) -> None:
        """Idempotent, returns at once; the turn's iterator ends it. Without a turn it does nothing."""
        ...

    async def close(self) -> None:
        """Orderly and bounded, also before or during open(); the nanny's kill stands behind it."""
        ...


TEXT_BACKLOG_CHARS = 1024 * 1024
EVENT_BACKLOG = 1000


class EventQueue:
    """The events of one turn on their way from the agent's reader to the worker.

    put() never waits, so that order is kept; what belongs together is merged, so that a flood of small updates stays
    small. Beyond the backlog has_room() tells the reader to stop reading. The end travels apart from the queue and
    cannot be lost in it.
    """

    def __init__(self) -> None:
        self._items: deque[AgentEvent | list[str]] = deque()  # a list is text still growing
        self._text_chars = 0
        self._tools: dict[str, ToolActivity] = {}  # queued and not yet taken, newest state
        self._latest: dict[type[AgentEvent], AgentEvent] = {}  # plan and usage: only the newest counts
        self._end: TurnEnded | None = None
        self._muted = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, event: AgentEvent) -> None:
        """After mute() or the end, nothing is taken any more."""
        if self._end is not None:
            return
        if isinstance(event, TurnEnded):
            self._end = event
            self._room.set()
        elif self._muted:
            return
        else:
            self._merge(event)
            if self._text_chars > TEXT_BACKLOG_CHARS or len(self._items) > EVENT_BACKLOG:
                self._room.clear()
        self._arrived.set()

    def _merge(self, event: AgentEvent) -> None:
        match event:
            case TextDelta(text=text):
                self._text_chars += len(text)
                if self._items and isinstance(self._items[-1], list):
                    self._items[-1].append(text)
                else:
                    self._items.append([text])
            case ToolActivity(call_id=call_id):
                waiting = self._tools.get(call_id)
                if waiting is None:
                    self._items.append(event)
                self._tools[call_id] = event
            case PlanChanged() | UsageSeen():
                kind = type(event)
                if kind not in self._latest:
                    self._items.append(event)
                self._latest[kind] = event
            case TextBoundary():
                last = self._items[-1] if self._items else None
                if isinstance(last, TextBoundary) and last.reason is event.reason:
                    return
                self._items.append(event)
            case _:
                self._items.append(event)

    def mute(self) -> None:
        """Nothing but the end counts from here on (the turn is being aborted)."""
        self._muted = True
        self._items.clear()
        self._tools.clear()
        self._latest.clear()
        self._text_chars = 0
        self._room.set()

    async def has_room(self) -> None:
        await self._room.wait()

    async def drain(self) -> AsyncIterator[AgentEvent]:
        """Every event in order, TurnEnded last."""
        while True:
            while self._items:
                yield self._take()
            if self._end is not None:
                yield self._end
                return
            self._arrived.clear()
            await self._arrived.wait()

    def _take(self) -> AgentEvent:
        item = self._items.popleft()
        if isinstance(item, list):
            text = "".join(item)
            self._text_chars -= len(text)
            event: AgentEvent = TextDelta(text)
        elif isinstance(item, ToolActivity):
            event = self._tools.pop(item.call_id)
        elif isinstance(item, PlanChanged | UsageSeen):
            event = self._latest.pop(type(item))
        else:
            event = item
        if self._text_chars <= TEXT_BACKLOG_CHARS // 2 and len(self._items) <= EVENT_BACKLOG // 2:
            self._room.set()
        return event


_KINDS = (
    (FailureKind.AUTH, r"\b401\b|\b403\b|unauthori[sz]ed|invalid api key|authentication"),
    (FailureKind.QUOTA, r"quota|insufficient|billing|\b402\b"),
    (FailureKind.OVERLOADED, r"\b429\b|rate.?limit|overloaded|\b503\b|\b529\b"),
    (FailureKind.CONTEXT_FULL, r"context.{0,20}(length|window|limit)|too many tokens|prompt is too long"),
)


def kind_in_words(text: str) -> FailureKind:
    """What an agent's error text is about, by the words that model servers use."""
    found = (kind for kind, pattern in _KINDS if re.search(pattern, text, re.IGNORECASE))
    return next(found, FailureKind.OTHER)


def failed(kind: FailureKind, detail: str = "") -> TurnEnded:
    return TurnEnded(TurnOutcome.FAILED, AgentError(kind, for_the_log(detail)))


def patched(old: ToolActivity | None, new: ToolActivity) -> ToolActivity:
    """A tool update is a patch: what it leaves empty stays as it was."""
    if old is None:
        return new
    return replace(new, name=new.name or old.name, kind=new.kind or old.kind, title=new.title or old.title)
