"""The host for Pi in RPC mode: JSON lines over its standard streams.

In come prompts, out go AgentEvents. records.py translates; extension.ts is what the bridge adds to Pi, and a Pi
that does not load it is not used: it would ask for nothing. Everything of Pi's lies below `<session>/pi`.

A turn ends with `agent_settled`, never earlier: retries and compaction follow an `agent_end`. What Pi says counts only
between our prompt's acceptance and that word.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from protocol.content import Prompt
from protocol.errors import FailureKind
from protocol.ids import DialogId, SessionId
from protocol.to_supervisor import OpenedHow, TurnOutcome
from protocol.to_worker import DialogAnswer, Dismissed
from worker.hosts.base import (
    AgentEvent,
    AgentRemarked,
    DialogGone,
    EventQueue,
    HostError,
    HostTraits,
    Opened,
    SessionSpec,
    ToolControl,
    TurnEnded,
    failed,
    kind_in_words,
)
from worker.hosts.lines import lines, read_object
from worker.hosts.pi.records import (
    ASKS,
    ENVIRONMENT,
    OLDEST,
    SETTINGS,
    Ear,
    Record,
    arguments,
    cancelled,
    dialog_in,
    greets,
    models,
    prompt_record,
    reply,
    shown,
    tools,
    version_in,
)
from worker.hosts.pictures import picture
from worker.hosts.program import CLOSE_TERM_S, OBITUARY_S, TERM_S, AgentProgram
from worker.hosts.tasks import SessionTasks

EXTENSION = Path(__file__).with_name("extension.ts")
VERSION_BYTES = 64 * 1024
REMARKS = 20  # a session; an agent that talks nonsense all day is no news
DIALOGS_MOST = 100

# Long records that say again what was said before. Pi writes the type first.
_REPETITIONS = (b'{"type":"agent_end"', b'{"type":"turn_end"', b'{"type":"message_start"')


class PiSession:
    """One program, one session."""

    def __init__(self) -> None:
        self.traits = HostTraits(name="pi")
        self.gone = asyncio.Event()
        self._spec: SessionSpec | None = None
        self._program: AgentProgram | None = None
        self._waiting: dict[str, asyncio.Future[Record]] = {}  # requests of ours that Pi has not answered
        self._numbers = 0
        self._greeted = False
        self._context_size: int | None = None
        self._conversations: _Conversations | None = None
        self._session_id = SessionId("")
        self._turn: _Turn | None = None
        self._remarks = 0
        self._closed = False
        # Tasks of this session. They outlive the call that starts them (a process is watched between turns), so that
        # no TaskGroup can hold them; close() cancels and awaits every one.
        self._tasks = SessionTasks()

    # --- open ---------------------------------------------------------------------------------------------------

    async def open(self, spec: SessionSpec) -> Opened:
        if not spec.command:
            raise HostError(FailureKind.NOT_CONFIGURED, "no command is set for Pi")
        if not spec.model:
            raise HostError(FailureKind.NOT_CONFIGURED, 'Pi needs [agent] model, such as "openai:NAME"')
        try:
            allowed = tools(spec.access, spec.tools, sends=spec.sends)
        except ValueError as error:
            raise HostError(FailureKind.NOT_CONFIGURED, str(error)) from error
        self._spec = spec
        version = await self._version(spec)
        if version < OLDEST:
            too_old = f"Pi {shown(version)} is too old: {shown(OLDEST)} or newer is needed"
            raise HostError(FailureKind.NOT_CONFIGURED, too_old)
        self.traits = HostTraits("pi", shown(version), images=True, resume=True, tool_control=ToolControl.EXACT)
        self._conversations = conversations = _Conversations(spec.session_dir / "pi" / "sessions", spec.workspace)
        if spec.session_id is not None:
            flags, session_id = conversations.resumed(spec.session_id)
            if flags:
                try:
                    await self._start(spec, allowed, flags)
                    self._session_id = session_id
                    return Opened(session_id, OpenedHow.RESUMED)
                except HostError as error:
                    # It died over a session of its own. A fresh one is better than none ever again.
                    if error.kind is not FailureKind.AGENT_DIED:
                        raise
                    await self._dismiss()
        flags, session_id = conversations.fresh()
        await self._start(spec, allowed, flags)
        self._session_id = session_id
        how = OpenedHow.NEW if spec.session_id is None else OpenedHow.FRESH_AFTER_FAILED_RESUME
        return Opened(session_id, how)

    async def _version(self, spec: SessionSpec) -> tuple[int, int, int]:
        """Asked once a program; an older Pi would only say that it knows no such flag. raises HostError"""
        known, identity = spec.session_dir / "pi" / "version", _identity(spec.command)
        with contextlib.suppress(OSError):
            kept, _, of = known.read_text().partition(" ")
            version = version_in(kept)
            if version is not None and of == identity:
                return version
        program = await AgentProgram.start(_prepared(spec, (*spec.command, "--version")))
        self._program = program
        self._tasks.start(program.read_stderr(), "pi stderr")
        version = version_in((await program.stdout.read(VERSION_BYTES)).decode("utf-8", "replace"))
        obituary = "" if version is not None else await program.obituary()
        await self._dismiss()
        if version is None:
            raise HostError(FailureKind.AGENT_DIED, f"no answer to --version; {obituary}")
        _write(known, f"{shown(version)} {identity}")
        return version

    async def _start(self, spec: SessionSpec, allowed: tuple[str, ...], session: tuple[str, ...]) -> None:
        """raises HostError"""
        assert self._conversations is not None
        own = spec.session_dir / "pi"
        # Pi's configuration is what stands here, whatever an earlier turn has left in the folder (SYSTEM.md is read).
        shutil.rmtree(own / "agent", ignore_errors=True)
        outbox = spec.session_dir / "outbox"
        outbox.mkdir(mode=0o700, exist_ok=True)
        _write(own / "agent" / "models.json", json.dumps(models(spec.model, spec.gateway_url, spec.thinking)))
        _write(own / "agent" / "settings.json", json.dumps(SETTINGS))
        command = (
            *spec.command,
            *arguments(
                model=spec.model,
                thinking=spec.thinking,
                sessions=str(self._conversations.folder),
                session=session,
                contract=spec.contract,
                extension=str(EXTENSION),
                allowed=allowed,
            ),
        )
        more = {"BRIDGE_ASK": ",".join(ASKS[spec.approvals]), "BRIDGE_OUTBOX": str(outbox)}
        program = await AgentProgram.start(_prepared(spec, command, more))
        self._program, self._greeted = program, False
        self.gone.clear()
        self._tasks.start(program.read_stderr(), "pi stderr")
        self._tasks.start(self._attend(program), "pi stdout")
        try:
            state = await self._ask({"type": "get_state"})
        except (ConnectionError, OSError) as error:
            raise HostError(FailureKind.AGENT_DIED, await program.obituary()) from error
        if state.get("success") is not True:
            raise HostError(FailureKind.PROTOCOL, f"Pi does not tell its state: {state.get('error')}")
        if not self._greeted:
            raise HostError(FailureKind.PROTOCOL, "Pi has not loaded the bridge's extension")
        model = (state.get("data") or {}).get("model") or {}
        size = model.get("contextWindow") if isinstance(model, dict) else None
        self._context_size = size if isinstance(size, int) else None

    async def _ask(self, record: Record) -> Record:
        """A command of ours and its response. raises ConnectionError"""
        self._numbers += 1
        number = f"b{self._numbers}"
        self._waiting[number] = response = cast(asyncio.Future[Record], asyncio.get_running_loop().create_future())
        try:
            await self._send({**record, "id": number})
            return await response
        finally:
            self._waiting.pop(number, None)

    async def _send(self, record: Record) -> None:
        """raises ConnectionError"""
        try:
            self._say(record)
            await self._program_of().stdin.drain()
        except (OSError, RuntimeError) as error:
            raise ConnectionError("Pi is gone") from error

    def _say(self, record: Record) -> None:
        """Without an await, so that an abort never overtakes what it aborts. One nobody reads any more is no news."""
        with contextlib.suppress(OSError, RuntimeError):
            self._program_of().stdin.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")

    # --- what Pi says -------------------------------------------------------------------------------------------

    async def _attend(self, program: AgentProgram) -> None:
        """Hear the program until it has ended, by its exit or by the end of its output, whichever comes first."""
        hearing = self._tasks.start(self._hear_all(program), "pi records")
        exiting = self._tasks.start(program.exited(), "pi exit")
        await asyncio.wait({hearing, exiting}, return_when=asyncio.FIRST_COMPLETED)
        if not hearing.done():
            program.kill()  # a child of Pi's may keep its output open
            await asyncio.wait({hearing}, timeout=OBITUARY_S)  # its last words may still be on their way
            hearing.cancel()
        if self._program is not program:
            return
        for response in self._waiting.values():
            if not response.done():
                response.set_exception(ConnectionError("Pi is gone"))
        obituary = await program.obituary()
        if self._program is not program:
            return  # another one was started while this one was being described
        self.gone.set()
        if self._turn is not None:
            self._turn.end(failed(FailureKind.AGENT_DIED, obituary))

    async def _hear_all(self, program: AgentProgram) -> None:
        async for line in lines(program.stdout, self._too_long):
            if not line.startswith(_REPETITIONS):
                record = read_object(line)
                if record is None:
                    self._remark("the agent wrote a line that is no record")
                else:
                    self._hear(record)
            if self._turn is not None:
                await self._turn.events.has_room()

    def _too_long(self) -> None:
        self._remark("the agent sent a line over the limit; it was dropped")

    def _hear(self, record: Record) -> None:
        turn = self._turn
        match record.get("type"):
            case "response":
                response = self._waiting.get(str(record.get("id")))
                if response is not None and not response.done():
                    response.set_result(record)
            case "extension_ui_request":
                self._hear_extension(record)
            case "agent_start" if turn is not None and turn.asked:
                turn.started = True
                if turn.aborting:  # the abort came before there was anything to abort
                    self._say({"type": "abort"})
            case "agent_settled" if turn is not None and turn.started:
                if self._conversations is not None:
                    self._conversations.mark(self._session_id)
                turn.end(turn.ear.end())
            case _ if turn is not None and turn.started:
                for event in turn.ear.hear(record):
                    turn.events.put(event)

    def _hear_extension(self, record: Record) -> None:
        if greets(record):
            self._greeted = True
            return
        turn = self._turn
        if record.get("method") == "notify":
            self._remark(str(record.get("message")), level=str(record.get("notifyType") or "info"))
            return
        asked = dialog_in(record)
        if asked is None:
            if record.get("method") in ("select", "confirm", "input", "editor"):
                self._say(cancelled(record.get("id")))
        elif turn is None or not turn.started or turn.aborting or len(turn.dialogs) >= DIALOGS_MOST:
            self._say(cancelled(record.get("id")))
        else:
            turn.dialogs[asked.dialog_id] = record
            turn.events.put(asked)
            if asked.expires_s is not None:  # Pi answers itself then
                turn.timers.append(
                    asyncio.get_running_loop().call_later(asked.expires_s, turn.dialog_over, asked.dialog_id)
                )

    def _remark(self, text: str, *, level: str = "warning") -> None:
        self._remarks += 1
        if self._turn is not None and self._remarks <= REMARKS:
            self._turn.events.put(AgentRemarked(level, text))

    # --- turn ---------------------------------------------------------------------------------------------------

    def turn(self, prompt: Prompt) -> AsyncIterator[AgentEvent]:
        if self._turn is not None:
            raise RuntimeError("a turn is running")
        self._turn = turn = _Turn(self._context_size)
        return self._run(turn, prompt)

    async def _run(self, turn: "_Turn", prompt: Prompt) -> AsyncIterator[AgentEvent]:
        asking = self._tasks.start(self._prompt(turn, prompt), "pi prompt")
        try:
            async for event in turn.events.drain():
                if isinstance(event, TurnEnded):
                    self._turn = None
                yield event
        finally:
            turn.close()
            asking.cancel()
            if self._turn is turn:
                self._turn = None

    async def _prompt(self, turn: "_Turn", prompt: Prompt) -> None:
        found = [await asyncio.to_thread(picture, Path(path)) for path in prompt.images]
        if turn.aborting:
            turn.end(TurnEnded(TurnOutcome.ABORTED))
            return
        turn.asked = True
        try:
            response = await self._ask(prompt_record(prompt, [one for one in found if one is not None]))
        except ConnectionError:
            await self.gone.wait()  # _attend() ends the turn, with how the program ended
            turn.end(failed(FailureKind.AGENT_DIED))
            return
        if response.get("success") is not True:
            words = str(response.get("error"))
            turn.end(failed(kind_in_words(words), words))
        elif (response.get("data") or {}).get("disposition") == "handled":  # no run follows
            turn.end(TurnEnded(TurnOutcome.COMPLETED))

    async def answer(self, dialog_id: DialogId, answer: DialogAnswer) -> bool:
        turn = self._turn
        record = None if turn is None else turn.dialogs.pop(dialog_id, None)
        if record is None:
            return False
        self._say(reply(record, answer))
        return True

    async def abort(self) -> None:
        turn = self._turn
        if turn is None or turn.aborting:
            return
        turn.aborting = True
        turn.events.mute()
        # Pi answers an abort when it is idle, and an open dialog keeps it busy: dialogs first.
        for record in turn.dialogs.values():
            self._say(reply(record, Dismissed()))
        turn.dialogs.clear()
        if turn.asked:
            self._say({"type": "abort"})
        self._tasks.start(self._insist(turn), "pi abort")

    async def _insist(self, turn: "_Turn") -> None:
        """Wait for the grace, then end the program."""
        assert self._spec is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._spec.stop_grace_s):
                await turn.over.wait()
                return
        await self._program_of().end(TERM_S)
        self.gone.set()
        turn.end(TurnEnded(TurnOutcome.ABORTED))

    # --- close --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._turn is not None:
            await self.abort()
            self._turn.end(TurnEnded(TurnOutcome.ABORTED))
        try:
            if self._program is not None:
                await self._program.close()
        finally:
            if self._program is not None:
                self._program.discard()  # also when close() itself is cancelled
            self.gone.set()
            await self._tasks.end()

    async def _dismiss(self) -> None:
        """End the program that was started last: another one follows."""
        program, self._program = self._program_of(), None
        await program.end(CLOSE_TERM_S)
        program.discard()

    def _program_of(self) -> AgentProgram:
        assert self._program is not None, "open() comes first"
        return self._program


class _Turn:
    """One turn. asked: our prompt is on its way; started: what Pi says is about it."""

    def __init__(self, context_size: int | None) -> None:
        self.events = EventQueue()
        self.ear = Ear(context_size)
        self.over = asyncio.Event()
        self.asked = self.started = self.aborting = False
        self.dialogs: dict[DialogId, Record] = {}  # open, with Pi's request
        self.timers: list[asyncio.TimerHandle] = []

    def end(self, end: TurnEnded) -> None:
        """However it ended: after our abort it was stopped."""
        self.events.put(TurnEnded(TurnOutcome.ABORTED) if self.aborting else end)

    def dialog_over(self, dialog_id: DialogId) -> None:
        if self.dialogs.pop(dialog_id, None) is not None:
            self.events.put(DialogGone(dialog_id))

    def close(self) -> None:
        self.over.set()
        self.dialogs.clear()
        for timer in self.timers:
            timer.cancel()


class _Conversations:
    """Pi's session files: one per conversation, named in its first line, with the folder it was held in.

    Pi finds a conversation by id only from that folder, and writes it down with the first answer.
    """

    def __init__(self, folder: Path, workspace: Path) -> None:
        self.folder = folder
        self._workspace = str(workspace)

    def fresh(self) -> tuple[tuple[str, ...], SessionId]:
        session_id = SessionId(secrets.token_hex(16))
        return ("--session-id", session_id), session_id

    def resumed(self, session_id: SessionId) -> tuple[tuple[str, ...], SessionId]:
        """Start flags, and the id it has from then on. No flags: it is lost."""
        found = self._find(session_id)
        if found is None:
            # Never prompted, so that there is nothing to lose? Then it simply begins under its own id.
            lost = not _is_id(session_id) or self._begun(session_id).exists()
            return () if lost else ("--session-id", session_id), session_id
        path, held_in = found
        if held_in == self._workspace:
            return ("--session-id", session_id), session_id
        flags, copy = self.fresh()  # the access level, and with it the folder, has changed: take the history along
        return ("--fork", str(path), *flags), copy

    def mark(self, session_id: SessionId) -> None:
        """After each turn. What Pi has written down and is not found later was lost."""
        with contextlib.suppress(OSError):
            if not self._begun(session_id).exists() and self._find(session_id) is not None:
                self._begun(session_id).touch()

    def _begun(self, session_id: SessionId) -> Path:
        return self.folder / f"{session_id}.begun"

    def _find(self, session_id: SessionId) -> tuple[Path, str] | None:
        for path in sorted(self.folder.glob("*.jsonl")):
            with contextlib.suppress(OSError), path.open("rb") as file:
                header = read_object(file.readline(64 * 1024)) or {}
                if header.get("id") == session_id:
                    return path, str(header.get("cwd"))
        return None


def _is_id(session_id: str) -> bool:
    return session_id.isalnum() and session_id.isascii()


def _prepared(spec: SessionSpec, command: tuple[str, ...], more: dict[str, str] | None = None) -> SessionSpec:
    """As AgentProgram starts it. The operator's own variables give way to what keeps Pi closed."""
    ours = {"PI_CODING_AGENT_DIR": str(spec.session_dir / "pi" / "agent"), **ENVIRONMENT, **(more or {})}
    return replace(spec, command=command, env=(*spec.env, *ours.items()))


def _identity(command: tuple[str, ...]) -> str:
    """Of the program as it is called, and as it lies on the disk now."""
    told = []
    for word in command:
        path = shutil.which(word) or word
        told.append(word)
        with contextlib.suppress(OSError, ValueError):
            found = os.stat(path)
            told.append(f"{os.path.realpath(path)}:{found.st_mtime_ns}:{found.st_size}")
    return json.dumps(told)


def _write(path: Path, text: str) -> None:
    """raises HostError"""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text(text)
        new.replace(path)
    except OSError as error:
        raise HostError(FailureKind.OTHER, f"{path.name} cannot be written: {error.strerror}") from error
