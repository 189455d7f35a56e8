"""The host of a trial: it does not answer its prompt but tries to break out of the worker, and tells how each try ended.

protocol/probe.py has the conversation, sandbox/probe.py the attempts. It belongs to the supervisor's own throw-away
worker (supervisor/probe.py); no setting can name it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator

import msgspec

from protocol.content import Access, Prompt
from protocol.errors import FailureKind
from protocol.ids import DialogId, SessionId
from protocol.probe import PER_REPORT, PROBE_HOST, REPORT, Targets, ended, report
from protocol.to_supervisor import OpenedHow, TurnOutcome
from protocol.to_worker import DialogAnswer
from worker.hosts.base import (
    AgentEvent,
    AgentRemarked,
    HostTraits,
    Opened,
    SessionSpec,
    ToolControl,
    TurnEnded,
    failed,
)
from worker.sandbox import probe

TRAITS = HostTraits(name=PROBE_HOST, version="1", resume=False, tool_control=ToolControl.EXACT)


class ProbeSession:
    def __init__(self) -> None:
        self.traits = TRAITS
        self.gone = asyncio.Event()  # never set
        self._running = False
        self._aborted = False
        self._access = Access.CHAT

    async def open(self, spec: SessionSpec) -> Opened:
        self._access = spec.access
        return Opened(SessionId(f"probe-{secrets.token_hex(8)}"), OpenedHow.NEW)

    def turn(self, prompt: Prompt) -> AsyncIterator[AgentEvent]:
        if self._running:
            raise RuntimeError("a turn is running")
        self._running = True
        self._aborted = False
        return self._turn(prompt.text)

    async def _turn(self, text: str) -> AsyncIterator[AgentEvent]:
        try:
            try:
                targets = msgspec.json.decode(text, type=Targets)
            except msgspec.DecodeError:
                yield failed(FailureKind.PROTOCOL, "no targets")
                return
            tries = list(probe.attacks(self._access, targets).items())
            for start in range(0, len(tries), PER_REPORT):
                if self._aborted:
                    break
                ends = [(attempt, ended(probe.tried(attack))) for attempt, attack in tries[start : start + PER_REPORT]]
                yield AgentRemarked(REPORT, report(ends))
                await asyncio.sleep(0)  # lets an abort in between
        finally:
            self._running = False
        yield TurnEnded(TurnOutcome.ABORTED if self._aborted else TurnOutcome.COMPLETED)

    async def answer(self, dialog_id: DialogId, answer: DialogAnswer) -> bool:
        return False

    async def abort(self) -> None:
        self._aborted = True

    async def close(self) -> None:
        self._aborted = True
