"""Opening a host for a test, and reading what a turn told."""

import asyncio
import atexit
import functools
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from protocol.content import Access, Prompt
from tests.fakes.model import FakeModel
from worker import hosts
from worker.hosts.base import AgentEvent, AgentSession, SessionSpec, TextDelta, TurnEnded

AGENT = Path(__file__).with_name("acp_agent.py")
PI = Path(__file__).with_name("pi_agent.py")
DEADLINE_S = 40.0

T = TypeVar("T")


def agent(*flags: str) -> tuple[str, ...]:
    """The command of the scripted ACP agent."""
    return (sys.executable, "-I", str(AGENT), *flags)


def spec_in(folder: Path, *flags: str) -> SessionSpec:
    session_dir, workspace = folder / "session", folder / "workspace"
    session_dir.mkdir(exist_ok=True)
    workspace.mkdir(exist_ok=True)
    return SessionSpec(session_dir, workspace, None, Access.WORKSPACE, command=agent(*flags))


def pi_in(folder: Path, *flags: str) -> SessionSpec:
    """For the scripted Pi."""
    command = (sys.executable, "-I", str(PI), *flags)
    return replace(
        spec_in(folder), command=command, model="openai-compatible:m", gateway_url="http://127.0.0.1:9", token="t"
    )


@functools.cache
def model() -> FakeModel:
    """One for all tests of a process, ended with it."""
    made = FakeModel().__enter__()
    atexit.register(made.__exit__, None, None, None)
    return made


def builtin_in(folder: Path) -> SessionSpec:
    """With a scripted model behind it."""
    return replace(spec_in(folder), command=(), model="openai-compatible:fake-1", gateway_url=model().url, token="t")


def spec_for(host: str, folder: Path) -> SessionSpec:
    """With the host's scripted agent or model, where it needs one."""
    if host == "builtin":
        return builtin_in(folder)
    return pi_in(folder) if host == "pi" else spec_in(folder)


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


@asynccontextmanager
async def opened(host: str, spec: SessionSpec) -> AsyncIterator[AgentSession]:
    session = hosts.make(host)
    try:
        await session.open(spec)
        yield session
    finally:
        await session.close()


async def events_of(session: AgentSession, text: str, **more: Any) -> list[AgentEvent]:
    return [event async for event in session.turn(Prompt(text=text, **more))]


def words(events: list[AgentEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def end_of(events: list[AgentEvent]) -> TurnEnded:
    """The one TurnEnded, which must be the last event."""
    ends = [event for event in events if isinstance(event, TurnEnded)]
    assert len(ends) == 1 and events[-1] is ends[0]
    return ends[0]
