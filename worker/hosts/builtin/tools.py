"""What the built-in agent can do: files and commands in its workspace, lists, questions, files for the peer, plans.

Each tool bounds what it reads, writes and prints; where it may reach is the sandbox's business. The words that a tool
returns are for the model. Whoever is asked before a tool runs is asked here, inside the call.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel
from pydantic_ai import RunContext
from pydantic_ai.toolsets import FunctionToolset

from protocol.to_supervisor import PLAN_GO, PLAN_KEEP, DialogKind, DialogOption, DialogPurpose
from protocol.to_worker import DialogAnswer, Picked, Typed
from worker.hosts.base import SessionSpec, gateway_environment
from worker.hosts.builtin import approvals
from worker.hosts.builtin.approvals import Request
from worker.hosts.program import PATH
from worker.workspace import Outbox, send, send_file

READ_CHARS = 60_000
READ_LINES = 2000
FILE_BYTES = 8 * 1024 * 1024  # that read and edit take into memory
OUTPUT_CHARS = 30_000  # of a command; the middle of a longer one is left out
COMMAND_S = 120
COMMAND_MOST_S = 1800
OPTIONS = 20
PLAN_FILE = "plan.md"
REFUSED = "The user did not allow this. Ask what they want instead, or go on without it."


class TodoItem(BaseModel):
    text: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


class Peer(Protocol):
    """The chat, as tools see it."""

    async def ask(
        self,
        kind: DialogKind,
        purpose: DialogPurpose,
        title: str,
        body: str = "",
        options: tuple[DialogOption, ...] = (),
        *,
        other_allowed: bool = False,
    ) -> DialogAnswer: ...

    def plan(self, entries: Sequence[tuple[str, str]]) -> None: ...


class Toolbox:
    """One session's tools. rules: "always" answers; planning: the agent may look but not touch"""

    def __init__(self, spec: SessionSpec, peer: Peer) -> None:
        self._spec = spec
        self._peer = peer
        self._rules = frozenset(spec.rules)
        self._outbox = Outbox(spec.session_dir)
        self.planning = False

    def toolset(self, names: frozenset[str]) -> FunctionToolset[None]:
        """Exactly these. Names that are nobody's are left out: a list can only take away."""
        made: FunctionToolset[None] = FunctionToolset()
        tools: dict[str, Callable[..., Awaitable[str]]] = {
            "read": self.read,
            "write": self.write,
            "edit": self.edit,
            "bash": self.bash,
            "todo": self.todo,
            "ask": self.ask,
            "send_file": self.send_file,
            "exit_plan_mode": self.exit_plan_mode,
            "cancel_plan_mode": self.cancel_plan_mode,
        }
        for name, function in tools.items():
            if name in names:
                made.add_function(function, takes_ctx=False, name=name, sequential=True)
        if "send" in names:
            made.add_function(self.send, takes_ctx=True, name="send", sequential=True)
        return made

    # --- files ----------------------------------------------------------------------------------------------------

    async def read(self, path: str, first_line: int = 1, lines: int = READ_LINES) -> str:
        """Read a text file, or list a folder. Relative paths start in the workspace."""
        return await asyncio.to_thread(self._read, self._path(path), first_line, lines)

    def _read(self, path: Path, first_line: int, lines: int) -> str:
        try:
            if path.is_dir():
                names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in path.iterdir())
                return "\n".join(names)[:READ_CHARS] or "(an empty folder)"
            text = _whole(path).decode()
        except UnicodeDecodeError:
            return "The file is not text."
        except OSError as error:
            return f"Cannot be read: {error.strerror or error}."
        all_lines = text.splitlines(keepends=True)
        shown = "".join(all_lines[max(0, first_line - 1) :][: max(1, lines)])
        cut = shown[:READ_CHARS]
        left = len(all_lines) - max(0, first_line - 1) - cut.count("\n")
        return cut + (f"\n({left} more lines)" if left > 1 else "") if cut else "(empty)"

    async def write(self, path: str, content: str) -> str:
        """Write a text file, replacing what was there."""
        target = self._path(path)
        if refused := await self._refused(Request("write", path, content, self._is_within(target))):
            return refused
        return await asyncio.to_thread(self._write, target, content)

    def _write(self, path: Path, content: str) -> str:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and not path.is_symlink():
                # Moved into place whole: a worker may be killed at any time.
                unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
                unfinished.write_text(content)
                shutil.copymode(path, unfinished)
                unfinished.replace(path)
            else:
                path.write_text(content)
        except (OSError, UnicodeEncodeError) as error:
            return f"Cannot be written: {getattr(error, 'strerror', None) or 'it is not text'}."
        return f"Written: {len(content)} characters."

    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace one stretch of a text file. `old` must be there exactly once."""
        target = self._path(path)
        try:
            text = (await asyncio.to_thread(_whole, target)).decode()
        except (OSError, UnicodeDecodeError) as error:
            return (
                f"Cannot be read: {'it is not text' if isinstance(error, UnicodeError) else error.strerror or error}."
            )
        if not old or text.count(old) != 1:
            return f"`old` is there {text.count(old) if old else 0} times; it must be there once."
        if refused := await self._refused(Request("edit", path, f"- {old}\n+ {new}", self._is_within(target))):
            return refused
        return await asyncio.to_thread(self._write, target, text.replace(old, new, 1))

    def _path(self, path: str) -> Path:
        return self._spec.workspace / path  # an absolute one stays as it is: the sandbox decides

    def _is_within(self, path: Path) -> bool:
        """With links and dots followed."""
        return path.resolve().is_relative_to(self._spec.workspace.resolve())

    # --- commands -------------------------------------------------------------------------------------------------

    async def bash(self, command: str, timeout_s: int = COMMAND_S) -> str:
        """Run a shell command in the workspace and return what it prints."""
        if refused := await self._refused(Request("bash", command.strip().partition("\n")[0], command)):
            return refused
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                command,
                cwd=self._spec.workspace,
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            _kill(await starting)  # cancelled while it starts, it would be there and nobody's
            raise
        output = _Output()
        try:
            async with asyncio.timeout(min(max(1, timeout_s), COMMAND_MOST_S)):
                assert process.stdout is not None
                while data := await process.stdout.read(65536):
                    output.add(data)
                code = await process.wait()
            ending = "" if code == 0 else f"\n(exit code {code})"
        except TimeoutError:
            ending = f"\n(ended after {timeout_s} s)"
        finally:
            _kill(process)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await process.wait()
        return f"{output.text()}{ending}".strip() or "(no output)"

    def _environment(self) -> dict[str, str]:
        home, temporary = self._spec.session_dir / "home", self._spec.session_dir / "tmp"
        for folder in (home, temporary):
            folder.mkdir(mode=0o700, exist_ok=True)
        own = {"HOME": str(home), "TMPDIR": str(temporary)}
        # Not the token: what a command needs of the web it gets through the proxy, and models are the agent's.
        ways = {name: value for name, value in gateway_environment(self._spec).items() if "proxy" in name.lower()}
        return {"PATH": PATH, "LANG": "C.UTF-8"} | ways | dict(self._spec.env) | own

    # --- the peer -------------------------------------------------------------------------------------------------

    async def todo(self, items: list[TodoItem]) -> str:
        """Keep the list of what is to be done: call it with the whole list whenever something changes."""
        self._peer.plan([(item.text[:200], item.status) for item in items[:100]])
        left = sum(item.status != "completed" for item in items)
        return f"{len(items)} on the list, {left} of them open."

    async def ask(self, question: str, options: list[str] | None = None, other: bool = False) -> str:
        """Ask the user one question and wait. With options they pick one; `other` lets them answer in their own words."""
        if not options:
            answer = await self._peer.ask(DialogKind.INPUT, DialogPurpose.QUESTION, question)
        else:
            shown = tuple(DialogOption(str(at), label) for at, label in enumerate(options[:OPTIONS]))
            answer = await self._peer.ask(
                DialogKind.SELECT, DialogPurpose.QUESTION, question, options=shown, other_allowed=other
            )
        match answer:
            case Picked(option_id=at) if options and at.isdecimal() and int(at) < len(options):
                return f"The user picked: {options[int(at)]}"
            case Typed(text=text):
                return f"The user answered: {text}"
        return "The user did not answer."

    async def send_file(self, path: str, caption: str = "") -> str:
        """Send a file to the user's phone, pictures as pictures. `caption` is the line that comes with it."""
        return (await send_file(self._outbox, self._path(path), caption)).in_words()

    async def send(self, ctx: RunContext[None], text: str = "", image: str = "") -> str:
        """Send your operator one picture now, apart from your answer. Text is refused while they wait for the answer: it
        belongs there. Gives back sent, state and error."""
        answer = await send(self._outbox, self._spec.workspace, ctx.tool_call_id or "", text, image)
        return answer.as_result()

    async def exit_plan_mode(self, plan: str) -> str:
        """Show the user a plan (Markdown) and ask whether to carry it out. Nothing of it may be done before they agree."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread((self._spec.workspace / PLAN_FILE).write_text, plan)
        self.planning = True
        match await self._peer.ask(DialogKind.SELECT, DialogPurpose.PLAN_REVIEW, "Plan", plan, other_allowed=True):
            case Picked(option_id=option_id) if option_id == PLAN_GO:
                self.planning = False
                return "The user agrees: carry it out now, asking for permissions as usual."
            case Picked(option_id=option_id) if option_id == PLAN_KEEP:
                return "The user wants to keep planning. Do nothing of it yet; cancel_plan_mode ends this when they say so."
            case Typed(text=text):
                return f"The user wants changes: {text}\nRevise the plan and show it again."
        self.planning = False
        return "The plan was left without approval. Carry nothing of it out."

    async def cancel_plan_mode(self) -> str:
        """End planning without a plan, when the user says so."""
        self.planning = False
        return "Planning has ended."

    async def _refused(self, request: Request) -> str:
        """Empty: go on."""
        if self.planning:
            return "You are planning: nothing may be changed before the user agrees to the plan."
        if not approvals.must_ask(request, self._spec.approvals, self._rules):
            return ""
        kind, purpose = approvals.kind()
        title = f"{request.tool}: {' '.join(request.title.split())}"
        answer = await self._peer.ask(kind, purpose, title, request.body, approvals.options(request))
        if isinstance(answer, Picked) and answer.option_id == approvals.ALWAYS:
            self._rules |= {approvals.rule_of(request)}
        return "" if approvals.granted(answer) else REFUSED


class _Output:
    """A command's output: its beginning and its end."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._left_out = 0

    def add(self, data: bytes) -> None:
        room = OUTPUT_CHARS // 2 - len(self._head)
        self._head += data[: max(0, room)]
        self._tail += data[max(0, room) :]
        extra = len(self._tail) - OUTPUT_CHARS // 2
        if extra > 0:
            self._left_out += extra
            self._tail = self._tail[extra:]

    def text(self) -> str:
        gap = f"\n({self._left_out} bytes left out)\n".encode() if self._left_out else b""
        return (self._head + gap + self._tail).decode("utf-8", "replace")


def _whole(path: Path) -> bytes:
    """A regular file's bytes; a pipe would hold us for ever, and a device has no end. raises OSError"""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is no file")
        data = file.read(FILE_BYTES + 1)
    if len(data) > FILE_BYTES:
        raise OSError(f"it is larger than {FILE_BYTES} bytes: look at parts of it with a command")
    return data


def _kill(process: asyncio.subprocess.Process) -> None:
    """With all that it started and that did not leave its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
