"""An agent that does what the message says, and keeps a list of every prompt that reached it.

    TOKEN say          answers in one piece
    TOKEN pieces N     N paragraphs, one every few milliseconds
    TOKEN long N       N paragraphs that fill a bubble each
    TOKEN nothing      ends without text
    TOKEN fail         some text, then a failure
    TOKEN exit         some text, then the worker is gone

The list is a file in the session's folder, one line a prompt, written before anything else is done with it. What the
whole answer has to be is told by `answer_to`, which the checks use too.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from protocol.content import Prompt
from protocol.errors import FailureKind
from protocol.ids import DialogId, SessionId
from protocol.to_supervisor import OpenedHow, TurnOutcome
from protocol.to_worker import DialogAnswer
from tests.chaos.points import Board
from worker.hosts.base import AgentEvent, HostTraits, Opened, SessionSpec, TextDelta, ToolControl, TurnEnded, failed

PROMPTS = "prompts"
PAUSE_S = 0.012
LONG_CHARS = 900
TRAITS = HostTraits(name="scripted", version="1", resume=True, tool_control=ToolControl.EXACT)

board: Board | None = None


def paragraphs(text: str) -> list[str]:
    """What a prompt is answered with, piece by piece."""
    token, _, order = text.partition(" ")
    word, _, number = order.partition(" ")
    count = int(number) if number.isdigit() else 0
    match word:
        case "pieces":
            return [f"{token} piece {index} of {count}." for index in range(count)]
        case "long":
            return [f"{token} part {index}: ".ljust(LONG_CHARS, "x") for index in range(count)]
        case "nothing":
            return []
        case "fail" | "exit":
            return [f"{token} begins."]
        case _:
            return [f"{token} done."]


def answer_to(text: str) -> str:
    return "\n\n".join(paragraphs(text))


class ScriptedSession:
    def __init__(self) -> None:
        self.traits = TRAITS
        self.gone = asyncio.Event()
        self._aborted = asyncio.Event()
        self._folder = Path()

    async def open(self, spec: SessionSpec) -> Opened:
        self._folder = spec.session_dir
        if spec.session_id is not None:
            return Opened(spec.session_id, OpenedHow.RESUMED)
        return Opened(SessionId(f"scripted-{os.urandom(8).hex()}"), OpenedHow.NEW)

    def turn(self, prompt: Prompt) -> AsyncIterator[AgentEvent]:
        self._aborted.clear()
        return self._turn(prompt.text)

    async def _turn(self, text: str) -> AsyncIterator[AgentEvent]:
        token, _, order = text.partition(" ")
        list_ = os.open(self._folder / PROMPTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(list_, f"{token}\n".encode())
        os.close(list_)
        if board is not None:
            board.passing("turn_begun")
        for number, paragraph in enumerate(paragraphs(text)):
            if number:
                await self._pause()
            if self._aborted.is_set():
                yield TurnEnded(TurnOutcome.ABORTED)
                return
            yield TextDelta(paragraph + "\n\n")
        await self._pause()
        if order == "exit":
            await asyncio.sleep(0.01)
            os._exit(9)
        if order == "fail":
            yield failed(FailureKind.AGENT_DIED)
        else:
            yield TurnEnded(TurnOutcome.ABORTED if self._aborted.is_set() else TurnOutcome.COMPLETED)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(PAUSE_S):
                await self._aborted.wait()
        except TimeoutError:
            pass

    async def answer(self, dialog_id: DialogId, answer: DialogAnswer) -> bool:
        return False

    async def abort(self) -> None:
        self._aborted.set()

    async def close(self) -> None:
        self._aborted.set()
