"""The host for agents that speak the Agent Client Protocol (version 1) over their standard streams.

In come prompts, out go AgentEvents; in between stands the official SDK over a transport of ours (transport.py). We start
the program ourselves: the SDK's own way leaves stderr unread, trims the environment and kills only the direct child.

What the agent says counts only while a prompt of ours is in flight: a replayed history, words before open() returned
and words behind the end of a turn are dropped. What it asks becomes dialogs (dialogs.py), one at a time.
"""

import asyncio
import base64
import contextlib
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
    BlobResourceContents,
    ClientCapabilities,
    CurrentModeUpdate,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    EmbeddedResourceContentBlock,
    FileSystemCapabilities,
    ImageContentBlock,
    Implementation,
    McpServerStdio,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
)
from pydantic import ValidationError

from protocol.agents import HOSTS
from protocol.content import Access, Prompt
from protocol.errors import FailureKind
from protocol.ids import DialogId, SessionId
from protocol.to_supervisor import OpenedHow, TurnOutcome
from protocol.to_worker import DialogAnswer
from worker.hosts.acp.dialogs import Ask, Exchange, form, permission
from worker.hosts.acp.presets import preset_for, write_files
from worker.hosts.acp.transport import RequestId, RootLog, Transport
from worker.hosts.base import (
    AgentError,
    AgentEvent,
    AgentRemarked,
    BoundaryReason,
    DialogAsked,
    DialogGone,
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
from worker.hosts.pictures import picture
from worker.hosts.program import CLOSE_TERM_S, OBITUARY_S, TERM_S, AgentProgram
from worker.hosts.tasks import SessionTasks
from worker.workspace import NoFile, Outbox, path_of, picture_name

TOOLS_KNOWN = 2000  # an agent that starts more in one turn loses the names of the oldest
REMARKS = 20  # a session; an agent that talks nonsense all day is no news

REPLAY_S = 0.5  # for an agent that does not answer an unknown request


# Modes of known agents in which they ask before they act, best first; and those in which they do not.
ASKING_MODES = ("default", "ask", "read-only")
CARELESS_MODES = frozenset(
    ("auto", "auto_edit", "autoEdit", "auto-edit", "auto-approve", "acceptEdits", "accept-edits", "accept_edits")
    + ("bypassPermissions", "dontAsk", "yolo", "full-access", "agent-full-access", "danger-full-access")
)

# Agents that give up on a question by themselves, and after how many seconds; a little less is what the peer gets.
PATIENCE_S = {"hermes": 50.0}

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
        self._told_at_new: dict[str, Any] = {}
        self._set_mode: Callable[[], Coroutine[Any, Any, object]] | None = None
        self._turn: _Turn | None = None
        self._remarks = 0
        self._dialogs = 0
        self._patience_s: float | None = None  # how long the agent waits for an answer; None: as long as it takes
        self._transport: Transport | None = None
        self._closed = False
        # Tasks of this session. They outlive the call that starts them (a process is watched between turns), so that
        # no TaskGroup can hold them; close() cancels and awaits every one.
        self._tasks = SessionTasks()
        self._log = RootLog(self._remark)

    # --- open ---------------------------------------------------------------------------------------------------

    async def open(self, spec: SessionSpec) -> Opened:
        if not spec.command:
            raise HostError(FailureKind.NOT_CONFIGURED, "no command is set for the agent")
        narrows = HOSTS[spec.agent].exact_tools if spec.agent in HOSTS else False
        if not narrows and spec.tools is not None and (spec.tools or spec.access is not Access.CHAT):
            raise HostError(FailureKind.NOT_CONFIGURED, "this agent cannot be narrowed to a list of tools")
        preset = preset_for(spec)
        write_files(spec.session_dir, preset.files)
        self._spec = spec = preset.applied_to(spec)
        self._told_at_new = preset.session_meta
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
        self._program = program = await AgentProgram.start(spec)
        self.gone.clear()  # not before: until now _watch() may have told the end of the one before
        self._tasks.start(program.read_stderr(), "acp stderr")
        transport = Transport(program, self._has_room, self._remark, self)
        self._transport = transport
        self._tasks.start(self._watch(program, transport), "acp watch")
        self._tasks.start(transport.pump(), "acp stdout")
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
        self._patience_s = next(
            (seconds for name, seconds in PATIENCE_S.items() if about and about.name.lower().startswith(name)), None
        )
        prompts, sessions = capabilities.prompt_capabilities, capabilities.session_capabilities
        self.traits = HostTraits(
            name=about.name if about else Path(spec.command[0]).name,
            version=about.version if about else "",
            images=bool(prompts and prompts.image),
            resume=bool(capabilities.load_session or (sessions and sessions.resume is not None)),
            tool_control=ToolControl.EXACT
            if spec.agent in HOSTS and HOSTS[spec.agent].exact_tools
            else ToolControl.SANDBOX_ONLY,
        )
        return capabilities

    async def _new(self, spec: SessionSpec) -> SessionId:
        reply = await self._asked(
            self._agent.new_session(cwd=str(spec.workspace), mcp_servers=_servers(spec), **self._told_at_new)
        )
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
                reply = await self._asked(
                    way(
                        cwd=str(spec.workspace),
                        session_id=session_id,
                        mcp_servers=_servers(spec),
                        **self._told_at_new,
                    )
                )
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
        self._turn = turn = _Turn(self._outbox())
        return self._run(turn, prompt)

    def _outbox(self) -> Outbox | None:
        """Where pictures and files of an answer go; None where this session may send none."""
        return Outbox(self._spec.session_dir) if self._spec is not None and self._spec.tool_servers else None

    async def _run(self, turn: "_Turn", prompt: Prompt) -> AsyncIterator[AgentEvent]:
        asking = self._tasks.start(self._prompt(turn, prompt), "acp prompt")
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
            while turn.feedback and not turn.aborting:
                words = TextContentBlock(type="text", text=turn.feedback.popleft())
                turn.next_prompt()
                reply = await self._agent.prompt(session_id=self._session_id, prompt=[words])
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
        return self._turn is not None and self._turn.settle(dialog_id, answer)

    async def abort(self) -> None:
        turn = self._turn
        if turn is None or turn.aborting:
            return
        turn.aborting = True
        turn.events.mute()
        self._tasks.start(self._stop_turn(turn, turn.close_all()), "acp abort")

    async def _stop_turn(self, turn: "_Turn", left: list[tuple[RequestId, Exchange]]) -> None:
        """Ask, wait for the grace, insist. left: questions of the agent's that have no reply yet"""
        assert self._spec is not None
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(self._spec.stop_grace_s):
                # Some agents wait for these answers before they hear of the stop.
                for request, exchange in left:
                    await self._reply(request, exchange.cancelled())
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
            await self._tasks.end()

    def _transport_of(self) -> Transport:
        assert self._transport is not None, "open() comes first"
        return self._transport

    def _program_of(self) -> AgentProgram:
        assert self._program is not None, "open() comes first"
        return self._program

    async def _watch(self, program: AgentProgram, transport: Transport) -> None:
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
                self._tasks.start(self._ask_before_acting(), "acp mode")
            return
        if self._turn is not None and self._turn.asked:
            self._turn.hear(update)

    async def request_permission(self, **meta: Any) -> None:
        raise RequestError.method_not_found("answered by the transport")

    create_elicitation = request_permission

    def asked(self, request: RequestId, method: str, params: dict[str, Any]) -> None:
        """A question of the agent's. One at a time is put to the peer, in the order in which they came."""
        turn = self._turn
        if method == "elicitation/create":
            exchange = form(params)
        else:
            known = turn.tool(_object(params.get("toolCall")).get("toolCallId")) if turn is not None else None
            exchange = permission(
                params, known_title=known.title if known else "", known_kind=known.kind if known else ""
            )
        of_ours = params.get("sessionId") in (None, self._session_id)
        if turn is None or not turn.asked or turn.aborting or not of_ours:
            self._tasks.start(self._reply(request, exchange.cancelled()), "acp answer")
            return
        turn.open[request] = exchange
        self._tasks.start(self._converse(turn, request, exchange), "acp dialog")

    def withdrawn(self, request: object) -> None:
        turn = self._turn
        if turn is not None and isinstance(request, int | str) and turn.open.pop(request, None) is not None:
            turn.withdraw(request)

    async def _converse(self, turn: "_Turn", request: RequestId, exchange: Exchange) -> None:
        async with turn.asking:
            while request in turn.open and (ask := exchange.ask()) is not None:
                self._dialogs += 1
                answer = await turn.put(DialogId(f"acp-{self._dialogs}"), request, ask, self._patience_s)
                if answer is None:
                    return  # withdrawn, or the turn is being stopped: whoever did it has replied
                exchange.take(answer)
        if turn.open.pop(request, None) is None:
            return
        if exchange.say:
            turn.events.put(TextDelta(exchange.say))
        if exchange.feedback:
            turn.feedback.append(exchange.feedback)
        await self._reply(request, exchange.reply())
        if exchange.leaves:
            await self._ask_before_acting()

    async def _reply(self, request: RequestId, result: dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            await self._transport_of().send({"jsonrpc": "2.0", "id": request, "result": result})

    async def complete_elicitation(self, **meta: Any) -> None:
        pass

    async def _not_offered(self, **meta: Any) -> None:
        raise RequestError.method_not_found("not offered")

    # Named so that the SDK answers -32601 instead of an empty success.
    read_text_file = write_text_file = _not_offered
    create_terminal = terminal_output = release_terminal = wait_for_terminal_exit = kill_terminal = _not_offered


class _Turn:
    """What one turn knows: its events and what its tools are called."""

    def __init__(self, outbox: Outbox | None = None) -> None:
        self._outbox = outbox
        self.events = EventQueue()
        self.over = asyncio.Event()
        self.asked = False  # the prompt is on its way to the agent
        self.aborting = False
        self.feedback: deque[str] = deque()  # what the agent is to be told as a further prompt
        self.open: dict[RequestId, Exchange] = {}  # its requests that have no reply yet
        self.asking = asyncio.Lock()
        self._waiting: tuple[DialogId, RequestId, asyncio.Future[DialogAnswer | None]] | None = None
        self._tools: dict[str, ToolActivity] = {}
        self._usage = UsageSeen()
        self._message_id: str | None = None
        self._text_open = False
        self._said = _Said()

    async def put(
        self, dialog_id: DialogId, request: RequestId, ask: Ask, expires_s: float | None
    ) -> DialogAnswer | None:
        """Ask the peer and wait. None: nobody wants to know any more."""
        answered: asyncio.Future[DialogAnswer | None] = asyncio.get_running_loop().create_future()
        self._waiting = (dialog_id, request, answered)
        self.events.put(
            DialogAsked(
                dialog_id,
                ask.kind,
                ask.purpose,
                ask.title,
                ask.body,
                ask.options,
                ask.prefill,
                ask.other_allowed,
                expires_s,
            )
        )
        try:
            return await answered
        finally:
            self._waiting = None

    def settle(self, dialog_id: DialogId, answer: DialogAnswer) -> bool:
        """False: nobody waits for this answer any more."""
        if self._waiting is None or self._waiting[0] != dialog_id or self._waiting[2].done():
            return False
        self._waiting[2].set_result(answer)
        return True

    def withdraw(self, request: RequestId) -> None:
        """The agent no longer waits for this one."""
        if self._waiting is not None and self._waiting[1] == request and not self._waiting[2].done():
            self.events.put(DialogGone(self._waiting[0]))
            self._waiting[2].set_result(None)

    def close_all(self) -> list[tuple[RequestId, Exchange]]:
        """The turn is being stopped: what was open, each still without a reply."""
        left = list(self.open.items())
        self.open.clear()
        if self._waiting is not None and not self._waiting[2].done():
            self._waiting[2].set_result(None)
        return left

    def tool(self, call_id: object) -> ToolActivity | None:
        return self._tools.get(call_id) if isinstance(call_id, str) else None

    def next_prompt(self) -> None:
        """What follows belongs to another prompt of the same turn."""
        self._pause(BoundaryReason.MESSAGE)

    def hear(self, update: object) -> None:
        match update:
            case AgentMessageChunk(content=TextContentBlock(text=text), message_id=message_id):
                self._hear_text(text, message_id)
            case AgentMessageChunk(content=content):
                self._hear_file(content)
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

    def _hear_file(self, content: object) -> None:
        """A picture or file inside the answer is offered like one that the agent's tool sends."""
        if self._outbox is None:
            return
        with contextlib.suppress(NoFile, ValueError):
            match content:
                case ImageContentBlock(data=data, mime_type=mime):
                    self._outbox.lay_bytes(picture_name(mime), base64.b64decode(data, validate=True))
                case EmbeddedResourceContentBlock(resource=BlobResourceContents(blob=blob, uri=uri)):
                    name = uri.rstrip("/").rpartition("/")[2]
                    self._outbox.lay_bytes(name, base64.b64decode(blob, validate=True))
                case EmbeddedResourceContentBlock(resource=TextResourceContents(text=text, uri=uri)):
                    self._outbox.lay_bytes(uri.rstrip("/").rpartition("/")[2], text.encode("utf-8", "replace"))
                case ResourceContentBlock(uri=uri):
                    if (path := path_of(uri)) is not None:
                        self._outbox.lay(path)

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


def _servers(spec: SessionSpec) -> list[Any]:
    return [
        McpServerStdio(name=one.name, command=one.command, args=list(one.arguments), env=[])
        for one in spec.tool_servers
    ]


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _kind_of(error: RequestError) -> FailureKind:
    """By code where there is one, else by the words that model servers use."""
    if error.code == -32000:
        return FailureKind.AUTH
    return kind_in_words(_words_of(error))


def _words_of(error: RequestError) -> str:
    return for_the_log(f"{error.code} {error} {error.data if error.data is not None else ''}".strip())
