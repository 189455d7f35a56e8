"""The host without an agent: it answers every prompt with the peer's own words.

It is the default until an agent is configured, and what benchmarks measure the bridge itself with. What the bridge
adds to a prompt (notes, attachment paths) is never echoed. It remembers nothing, so resuming always works.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator

from protocol.content import Prompt
from protocol.ids import DialogId, SessionId
from protocol.to_supervisor import OpenedHow, TurnOutcome
from protocol.to_worker import DialogAnswer
from worker.hosts.base import AgentEvent, HostTraits, Opened, SessionSpec, TextDelta, ToolControl, TurnEnded

TRAITS = HostTraits(name="echo", version="1", resume=True, tool_control=ToolControl.EXACT)  # no tools: any list holds
_STRETCHES = re.compile(r".{1,4096}", re.DOTALL)


class EchoSession:
    def __init__(self) -> None:
        self.traits = TRAITS
        self.gone = asyncio.Event()  # never set: there is no program that could end
        self._running = False
        self._aborted = False

    async def open(self, spec: SessionSpec) -> Opened:
        if spec.session_id is not None:
            return Opened(spec.session_id, OpenedHow.RESUMED)
        return Opened(SessionId(f"echo-{secrets.token_hex(8)}"), OpenedHow.NEW)

    def turn(self, prompt: Prompt) -> AsyncIterator[AgentEvent]:
        if self._running:
            raise RuntimeError("a turn is running")
        self._running = True
        self._aborted = False
        return self._turn(prompt.text)

    async def _turn(self, text: str) -> AsyncIterator[AgentEvent]:
        try:
            for stretch in _STRETCHES.finditer(text):
                if self._aborted:
                    break
                yield TextDelta(stretch.group())
                await asyncio.sleep(0)  # lets an abort in between two stretches
        finally:
            self._running = False
        yield TurnEnded(TurnOutcome.ABORTED if self._aborted else TurnOutcome.COMPLETED)

    async def answer(self, dialog_id: DialogId, answer: DialogAnswer) -> bool:
        return False

    async def abort(self) -> None:
        self._aborted = True

    async def close(self) -> None:
        self._aborted = True
