"""The host for agents that speak the Agent Client Protocol (version 1) over their standard streams.

In come prompts, out go AgentEvents; in between stands the official SDK over a transport of ours. We start the program
ourselves: the SDK's own way leaves stderr unread, trims the environment and kills only the direct child. The transport
is ours because the SDK's takes one malformed line as a reason to end the connection, has no upper bound for a line and
never slows a flooding agent down.

What the agent says counts only while a prompt of ours is in flight: a replayed history, words before open() returned
and words behind the end of a turn are dropped. Nobody answers dialogs yet: permission requests and elicitations are
answered as cancelled at once.
"""

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from acp import connect_to_agent
from acp.exceptions import RequestError
from acp.schema import (
    AgentCapabilities,
    AgentMessageChunk,
    AgentPlanUpdate,
    CancelElicitationResponse,
    ClientCapabilities,
    CurrentModeUpdate,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    FileSystemCapabilities,
    ImageContentBlock,
    Implementation,
    RequestPermissionResponse,
    ResourceContentBlock,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
)
from pydantic import ValidationError

from protocol.content import Access, Prompt
from protocol.errors import FailureKind
from protocol.ids import DialogId, SessionId
from protocol.to_supervisor import OpenedHow, TurnOutcome
from protocol.to_worker import DialogAnswer
from worker.hosts.base import (
    AgentError,
    AgentEvent,
    AgentRemarked,
    BoundaryReason,
    EventQueue,
    HostError,
    HostTraits,
    Opened,
    PlanChanged,
    SessionSpec,
    TextBoundary,
    TextDelta,
    ToolActivity,
    ToolControl,
    ToolStatus,
    TurnEnded,
    UsageSeen,
    failed,
    for_the_log,
    kind_in_words,
    patched,
)
from worker.hosts.lines import LINE_BYTES, mended
from worker.hosts.pictures import picture
from worker.hosts.program import CLOSE_TERM_S, OBITUARY_S, READ_BYTES, TERM_S, AgentProgram

TOOLS_KNOWN = 2000  # an agent that starts more in one turn loses the names of the oldest
REMARKS = 20  # a session; an agent that talks nonsense all day is no news

REPLAY_S = 0.5  # for an agent that does not answer an unknown request


# Modes of known agents in which they ask before they act, best first; and those in which they do not.
ASKING_MODES = ("default", "ask", "read-only")
CARELESS_MODES = frozenset(
    ("auto", "auto_edit", "autoEdit", "auto-edit", "auto-approve", "acceptEdits", "accept-edits", "accept_edits")
    + ("bypassPermissions", "dontAsk", "yolo", "full-access", "agent-full-access", "danger-full-access")
)

_UPDATES = frozenset(
    ("user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan")
    + ("plan_update", "plan_removed", "available_commands_update", "current_mode_update", "config_option_update")
    + ("session_info_update", "usage_update")
)
_TOOL_STATUS = {
    "pending": ToolStatus.STARTED,
    "in_progress": ToolStatus.RUNNING,
    "completed": ToolStatus.DONE,
    "failed": ToolStatus.FAILED,
}
_OUTCOMES = {
    "end_turn": TurnOutcome.COMPLETED,
    "cancelled": TurnOutcome.ABORTED,
    "refusal": TurnOutcome.DECLINED,
    "max_tokens": TurnOutcome.LIMIT,
    "max_turn_requests": TurnOutcome.LIMIT,
}


class AcpSession:
    """One program, one session. Also the client object whose handlers the SDK calls."""

    def __init__(self) -> None:
        self.traits = HostTraits(name="acp")
        self.gone = asyncio.Event()
        self._spec: SessionSpec | None = None
        self._program: AgentProgram | None = None
        self._agent: Any = None
        self._session_id = ""
        self._mode = ""
        self._set_mode: Callable[[], Coroutine[Any, Any, object]] | None = None
        self._turn: _Turn | None = None
        self._remarks = 0
        self._closed = False
        # Tasks of this session. They outlive the call that starts them (a process is watched between turns), so that
        # no TaskGroup can hold them; close() cancels and awaits every one.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._log = _RootLog(self._remark)

    # --- open ---------------------------------------------------------------------------------------------------

    async def open(self, spec: SessionSpec) -> Opened:
        if not spec.command:
            raise HostError(FailureKind.NOT_CONFIGURED, "no command is set for the agent")
        if spec.tools is not None and (spec.tools or spec.access is not Access.CHAT):
            raise HostError(FailureKind.NOT_CONFIGURED, "this agent cannot be narrowed to a list of tools")
        self._spec = spec
        logging.getLogger().addHandler(self._log)
        capabilities = await self._start_program(spec)
        if spec.session_id is None:
            return Opened(await self._new(spec), OpenedHow.NEW)
        try:
            if await self._resume(spec, spec.session_id, capabilities):
                return Opened(spec.session_id, OpenedHow.RESUMED)
        except HostError as error:
            # Some agents die over a session of their own. A fresh one is better than none ever again.
            if error.kind is not FailureKind.AGENT_DIED:
                raise
            await self._program_of().end(CLOSE_TERM_S)
            self._program_of().discard()
            await self._start_program(spec)
        return Opened(await self._new(spec), OpenedHow.FRESH_AFTER_FAILED_RESUME)

    async def _start_program(self, spec: SessionSpec) -> AgentCapabilities:
        self.gone.clear()
        program = await AgentProgram.start(spec)
        self._program = program
        self._spawn(program.read_stderr(), "acp stderr")
        transport = _Transport(program, self._has_room, self._remark)
        self._spawn(self._watch(program, transport), "acp watch")
        self._spawn(transport.pump(), "acp stdout")
        self._agent = connect_to_agent(cast(Any, self), transport, use_unstable_protocol=True)
        # The question tool of some agents exists only for clients with forms; fs and terminal no agent needs.
        offers = ClientCapabilities(
            fs=FileSystemCapabilities(read_text_file=False, write_text_file=False),
            terminal=False,
            elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()),
        )
        us = Implementation(name="bridge-supervisor", version="0.1.0")
        hello = await self._asked(self._agent.initialize(1, client_capabilities=offers, client_info=us))
        if hello.protocol_version != 1:
            raise HostError(FailureKind.PROTOCOL, f"the agent speaks protocol version {hello.protocol_version}")
        capabilities: AgentCapabilities = hello.agent_capabilities or AgentCapabilities()
        about = hello.agent_info
        prompts, sessions = capabilities.prompt_capabilities, capabilities.session_capabilities
        self.traits = HostTraits(
            name=about.name if about else Path(spec.command[0]).name,
            version=about.version if about else "",
            images=bool(prompts and prompts.image),
            resume=bool(capabilities.load_session or (sessions and sessions.resume is not None)),
            tool_control=ToolControl.SANDBOX_ONLY,
        )
        return capabilities

    async def _new(self, spec: SessionSpec) -> SessionId:
        reply = await self._asked(self._agent.new_session(cwd=str(spec.workspace), mcp_servers=[]))
        await self._settle_in(reply.session_id, reply)
        return SessionId(reply.session_id)

    async def _resume(self, spec: SessionSpec, session_id: SessionId, capabilities: AgentCapabilities) -> bool:
        """Try what the agent offers, one after the other. False: none worked."""
        sessions = capabilities.session_capabilities
        ways = []
        if sessions is not None and sessions.resume is not None:
            ways.append(self._agent.resume_session)
        if capabilities.load_session:
            ways.append(self._agent.load_session)
        for way in ways:
            try:
                reply = await self._asked(way(cwd=str(spec.workspace), session_id=session_id, mcp_servers=[]))
            except HostError as error:
                if error.kind is FailureKind.AGENT_DIED:
                    raise
                self._remark("warning", f"the session could not be resumed: {error.kind}")
                continue
            await self._settle_in(session_id, reply)
            await self._let_replay_pass()
            return True
        return False

    async def _let_replay_pass(self) -> None:
        """Some agents go on replaying behind their answer. What they write before they answer this is history too."""
        with contextlib.suppress(RequestError, ConnectionError, TimeoutError):
            async with asyncio.timeout(REPLAY_S):
                await self._agent.ext_method("bridge-supervisor/ping", {})

    async def _settle_in(self, session_id: str, reply: Any) -> None:
        """Defaults of many agents do not ask: choose the mode that does, after every new, load and resume."""
        self._session_id = session_id
        self._set_mode = None
        if reply.modes is not None:
            offered = [mode.id for mode in reply.modes.available_modes]
            mode = next((mode for mode in ASKING_MODES if mode in offered), None)
            if mode is not None:
                self._set_mode = lambda: self._agent.set_session_mode(mode_id=mode, session_id=session_id)
        else:
            # The newer way: a mode is one of the session's options.
            offered, mode, option = _mode_option(reply.config_options or [])
            if mode is not None:
                self._set_mode = lambda: self._agent.set_config_option(
                    config_id=option, session_id=session_id, value=mode
                )
        self._mode = mode or ""
        self.traits = replace(self.traits, modes=tuple(offered))
        await self._ask_before_acting()

    async def _ask_before_acting(self) -> None:
        if self._set_mode is None:
            return
        try:
            await self._set_mode()
        except (RequestError, ValidationError, ConnectionError):
            self._remark("warning", "the agent did not take the mode in which it asks")

    async def _asked(self, request: Coroutine[Any, Any, Any]) -> Any:
        """A request of open(). raises HostError"""
        try:
            return await request
        except RequestError as error:
            raise HostError(_kind_of(error), _words_of(error)) from error
        except ValidationError as error:
            raise HostError(FailureKind.PROTOCOL, "the agent's answer makes no sense") from error
        except (ConnectionError, OSError) as error:
            raise HostError(FailureKind.AGENT_DIED, await self._program_of().obituary()) from error

    # --- turn ---------------------------------------------------------------------------------------------------

    def turn(self, prompt: Prompt) -> AsyncIterator[AgentEvent]:
        if self._turn is not None:
            raise RuntimeError("a turn is running")
        self._turn = turn = _Turn()
        return self._run(turn, prompt)

    async def _run(self, turn: "_Turn", prompt: Prompt) -> AsyncIterator[AgentEvent]:
        asking = self._spawn(self._prompt(turn, prompt), "acp prompt")
        try:
            async for event in turn.events.drain():
                if isinstance(event, TurnEnded):
                    self._turn = None
                yield event
        finally:
            turn.over.set()
            asking.cancel()
            if self._turn is turn:
                self._turn = None

    async def _prompt(self, turn: "_Turn", prompt: Prompt) -> None:
        if turn.aborting:
            turn.events.put(TurnEnded(TurnOutcome.ABORTED))
            return
        turn.asked = True
        try:
            blocks = _blocks(prompt, pictures=self.traits.images)
            reply = await self._agent.prompt(session_id=self._session_id, prompt=blocks)
            if reply.usage is not None:
                turn.tell_usage(input_tokens=reply.usage.input_tokens, output_tokens=reply.usage.output_tokens)
            end = TurnEnded(_OUTCOMES.get(reply.stop_reason, TurnOutcome.COMPLETED))
        except RequestError as error:
            end = TurnEnded(TurnOutcome.FAILED, AgentError(_kind_of(error), _words_of(error)))
        except ValidationError:
            end = failed(FailureKind.PROTOCOL, "the agent's answer to the prompt makes no sense")
        except (ConnectionError, OSError):
            end = failed(FailureKind.AGENT_DIED, await self._program_of().obituary())
            self.gone.set()
        # Some agents answer a cancel with end_turn, some with an error: it was stopped all the same.
        turn.events.put(TurnEnded(TurnOutcome.ABORTED) if turn.aborting else end)

    async def answer(self, dialog_id: DialogId, answer: DialogAnswer) -> bool:
        return False  # no dialog is ever opened

    async def abort(self) -> None:
        turn = self._turn
        if turn is None or turn.aborting:
            return
        turn.aborting = True
        turn.events.mute()
        self._spawn(self._stop_turn(turn), "acp abort")

    async def _stop_turn(self, turn: "_Turn") -> None:
        """Ask, wait for the grace, insist."""
        assert self._spec is not None
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(self._spec.stop_grace_s):
                if turn.asked:
                    await self._agent.cancel(session_id=self._session_id)
                await turn.over.wait()
                return
        await self._program_of().end(TERM_S)
        self.gone.set()
        turn.events.put(TurnEnded(TurnOutcome.ABORTED))

    # --- close --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._turn is not None:
            self._turn.aborting = True
            self._turn.events.mute()
            self._turn.events.put(TurnEnded(TurnOutcome.ABORTED))
        try:
            if self._program is not None:
                await self._program.close()
            if self._agent is not None:
                await self._agent.close()
        finally:
            if self._program is not None:
                self._program.discard()  # also when close() itself is cancelled
            self.gone.set()
            logging.getLogger().removeHandler(self._log)
            tasks = [task for task in self._tasks if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _program_of(self) -> AgentProgram:
        assert self._program is not None, "open() comes first"
        return self._program

    async def _watch(self, program: AgentProgram, transport: "_Transport") -> None:
        """The exit ends the turn even where a child of the agent keeps its output open."""
        await program.exited()
        program.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OBITUARY_S):  # its last words may still be on their way
                await transport.ended.wait()
        transport.end()
        if self._program is program:
            self.gone.set()

    def _remark(self, level: str, text: str) -> None:
        self._remarks += 1
        if self._turn is not None and self._remarks <= REMARKS:
            self._turn.events.put(AgentRemarked(level, text))

    async def _has_room(self) -> None:
        if self._turn is not None:
            await self._turn.events.has_room()

    # --- what the agent says and asks -----------------------------------------------------------------------------

    async def session_update(self, session_id: str, update: object, **meta: Any) -> None:
        """No await in here: the SDK runs each message as a task of its own, and only so they stay in order."""
        if session_id != self._session_id:
            return
        if isinstance(update, CurrentModeUpdate):
            if update.current_mode_id in CARELESS_MODES and update.current_mode_id != self._mode:
                self._spawn(self._ask_before_acting(), "acp mode")
            return
        if self._turn is not None and self._turn.asked:
            self._turn.hear(update)

    async def request_permission(self, **meta: Any) -> RequestPermissionResponse:
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))

    async def create_elicitation(self, **meta: Any) -> CancelElicitationResponse:
        return CancelElicitationResponse(action="cancel")

    async def complete_elicitation(self, **meta: Any) -> None:
        pass

    async def _not_offered(self, **meta: Any) -> None:
        raise RequestError.method_not_found("not offered")

    # Named so that the SDK answers -32601 instead of an empty success.
    read_text_file = write_text_file = _not_offered
    create_terminal = terminal_output = release_terminal = wait_for_terminal_exit = kill_terminal = _not_offered


class _Turn:
    """What one turn knows: its events and what its tools are called."""

    def __init__(self) -> None:
        self.events = EventQueue()
        self.over = asyncio.Event()
        self.asked = False  # the prompt is on its way to the agent
        self.aborting = False
        self._tools: dict[str, ToolActivity] = {}
        self._usage = UsageSeen()
        self._message_id: str | None = None
        self._text_open = False
        self._said = _Said()

    def hear(self, update: object) -> None:
        match update:
            case AgentMessageChunk(content=TextContentBlock(text=text), message_id=message_id):
                self._hear_text(text, message_id)
            case ToolCallStart() | ToolCallProgress():
                self._hear_tool(update)
            case AgentPlanUpdate(entries=entries):
                self.events.put(PlanChanged(tuple((entry.content, entry.status) for entry in entries)))
            case UsageUpdate(used=used, size=size):
                self.tell_usage(context_used=used, context_size=size)
            case _:
                pass  # thoughts, echoes of the prompt, commands: proof of life, no more

    def tell_usage(self, **known: int) -> None:
        self._usage = replace(self._usage, **known)
        self.events.put(self._usage)

    def _hear_text(self, text: str, message_id: str | None) -> None:
        if message_id is not None and self._message_id not in (None, message_id):
            self._pause(BoundaryReason.MESSAGE)
        self._message_id = message_id or self._message_id
        text = self._said.news(text)
        if text:
            self._text_open = True
            self.events.put(TextDelta(text))

    def _hear_tool(self, update: ToolCallStart | ToolCallProgress) -> None:
        call_id = update.tool_call_id
        known = self._tools.get(call_id)
        if known is None:
            self._pause(BoundaryReason.TOOL)
        status = _TOOL_STATUS.get(update.status or "", known.status if known else ToolStatus.STARTED)
        # A title may hold the peer's words and paths; the kind is a closed list.
        kind = update.kind or ("" if known else "other")
        activity = patched(known, ToolActivity(call_id, kind, kind, update.title or "", status))
        if len(self._tools) >= TOOLS_KNOWN and known is None:
            self._tools.pop(next(iter(self._tools)))
        self._tools[call_id] = activity
        self.events.put(activity)

    def _pause(self, reason: BoundaryReason) -> None:
        if self._text_open:
            self._text_open = False
            self._said.block_ended()
            self.events.put(TextBoundary(reason))


class _Said:
    """Takes out what some agents say twice: after the last tool they repeat the whole answer as one chunk."""

    LEAST_CHARS = 16  # a shorter repetition may well be meant
    MOST_CHARS = 256 * 1024

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._chars = 0
        self._at_block_start = False

    def block_ended(self) -> None:
        self._at_block_start = True

    def news(self, text: str) -> str:
        if self._at_block_start and self.LEAST_CHARS <= self._chars <= min(len(text), self.MOST_CHARS):
            text = text.removeprefix("".join(self._texts))
        self._at_block_start = False
        self._chars += len(text)
        if self._chars <= self.MOST_CHARS:
            self._texts.append(text)
        else:
            self._texts.clear()
        return text


class _Transport:
    """JSON objects, one a line. Lines that are none, and lines without end, cost themselves and a remark."""

    def __init__(
        self,
        program: AgentProgram,
        has_room: Callable[[], Coroutine[Any, Any, None]],
        remark: Callable[[str, str], None],
    ) -> None:
        self.ended = asyncio.Event()  # set after the last line has been handed on
        self._reader = program.stdout
        self._writer = program.stdin
        self._has_room = has_room
        self._remark = remark
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._partial = bytearray()
        self._skipping = False  # inside a line that is too long
        self._eof = False
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            # write() first and without an await before it: a cancel must never overtake its prompt.
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            if "method" in message:
                raise ConnectionError("Connection closed") from error
            # An answer that nobody reads any more is no news: the end of the stream says it.

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end of the stream."""
        while True:
            await self._has_room()
            if self._lines:
                line = self._lines.popleft()
                self._waiting_bytes -= len(line)
                self._taken.set()
                message = self._read_line(line)
                if message is not None:
                    return message
            elif self._eof:
                self.ended.set()
                return None
            else:
                self._arrived.clear()
                await self._arrived.wait()

    async def close(self) -> None:
        self.end()

    def end(self) -> None:
        """Nothing more will be read, whoever holds the stream open."""
        self._eof = True
        self._arrived.set()

    async def pump(self) -> None:
        """Read bytes and cut them into lines, at most READ_BYTES ahead of who takes them."""
        while not self._eof:
            while self._waiting_bytes > READ_BYTES:
                self._taken.clear()
                await self._taken.wait()
            data = await self._reader.read(READ_BYTES)
            if not data:
                self._line_over()
                self.end()
                return
            *whole, rest = data.split(b"\n")
            for part in whole:
                self._add(part)
                self._line_over()
            self._add(rest)

    def _add(self, part: bytes) -> None:
        if self._skipping:
            return
        if len(self._partial) + len(part) <= LINE_BYTES:
            self._partial += part
            return
        self._remark("warning", "the agent sent a line over the limit; it was dropped")
        if b'"method"' not in self._partial[:4096] + part[:4096]:
            self.end()  # it may be an answer that we wait for: a failed turn is better than one without an end
        self._partial.clear()
        self._skipping = True

    def _line_over(self) -> None:
        if self._partial:
            self._lines.append(bytes(self._partial))
            self._waiting_bytes += len(self._partial)
            self._partial.clear()
            self._arrived.set()
        self._skipping = False

    def _read_line(self, line: bytes) -> dict[str, Any] | None:
        """None: a line of no use."""
        if not line.strip():
            return None
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError):
            self._remark("warning", "the agent wrote a line that is not JSON")
            return None
        if not isinstance(message, dict) or not _is_sound(message):
            self._remark("warning", "the agent wrote a line that is no message")
            return None
        if b"\\ud" in line or b"\\uD" in line:
            message = cast(dict[str, Any], mended(message))
        if message.get("method") == "session/update":
            return self._prepared(message)
        return message

    def _prepared(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """An update as the SDK's strict models take it."""
        params = message.get("params")
        update = params.get("update") if isinstance(params, dict) else None
        if not isinstance(params, dict) or not isinstance(update, dict) or update.get("sessionUpdate") not in _UPDATES:
            self._remark("warning", "the agent sent an update of an unknown kind")
            return None
        params.pop("_meta", None)  # the SDK lets its keys shadow real ones
        if update["sessionUpdate"] == "tool_call" and not isinstance(update.get("title"), str):
            update["title"] = ""
        return message


def _is_sound(message: dict[str, Any]) -> bool:
    """Whether the SDK can route it: what fails in its reading loop ends the connection."""
    identity = message.get("id")
    if "method" in message:
        return isinstance(message["method"], str) and isinstance(identity, int | str | None)
    return isinstance(identity, int | str) and isinstance(message.get("error") or {}, dict)


class _RootLog(logging.Handler):
    """The SDK logs on the root logger, with tracebacks that quote what was said. Only the fact is passed on."""

    def __init__(self, remark: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = remark

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "root":
            self._tell(record.levelname.lower(), str(record.msg))


def _mode_option(options: list[Any]) -> tuple[list[str], str | None, str]:
    """The modes on offer, the one to choose, and the option's id."""
    for option in options:
        if getattr(option, "category", None) != "mode" or option.type != "select":
            continue
        offered = []
        for entry in option.options:
            offered += [entry.value] if hasattr(entry, "value") else [one.value for one in entry.options]
        return offered, next((mode for mode in ASKING_MODES if mode in offered), None), option.id
    return [], None, ""


def _blocks(prompt: Prompt, *, pictures: bool) -> list[Any]:
    """The bridge's notes, each a block of its own, then the peer's words, then pictures and files by path."""
    blocks: list[Any] = [TextContentBlock(type="text", text=note) for note in prompt.notes]
    if prompt.text:
        blocks.append(TextContentBlock(type="text", text=prompt.text))
    for path in prompt.images:
        if pictures and (shown := picture(Path(path))):
            blocks.append(ImageContentBlock(type="image", data=shown.data, mime_type=shown.mime))
    for path in (*prompt.images, *prompt.files):
        blocks.append(ResourceContentBlock(type="resource_link", name=Path(path).name, uri=Path(path).as_uri()))
    return blocks


def _kind_of(error: RequestError) -> FailureKind:
    """By code where there is one, else by the words that model servers use."""
    if error.code == -32000:
        return FailureKind.AUTH
    return kind_in_words(_words_of(error))


def _words_of(error: RequestError) -> str:
    return for_the_log(f"{error.code} {error} {error.data if error.data is not None else ''}".strip())
