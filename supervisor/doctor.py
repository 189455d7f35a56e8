"""Gathers what core/doctor.py judges: from status, journal, delivery, pool, settings and the machine. Changes nothing.

With probe it has throw-away workers try to break out (probe.py), one for each access level that is isolated.
"""

import asyncio
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from protocol.agents import HOSTS
from protocol.ctl import DoctorReply
from protocol.ids import label
from protocol.spec import NetworkMode
from supervisor import platform
from supervisor.accounts import Accounts
from supervisor.clock import Clock
from supervisor.config import Environment
from supervisor.core.doctor import (
    DAY_S,
    MB,
    TRIED,
    AgentFact,
    Facts,
    FailureFact,
    ParkedFact,
    diagnose,
    is_well,
)
from supervisor.core.policy import Agent
from supervisor.core.trial import Trial
from supervisor.delivery import Delivery
from supervisor.home import Home
from supervisor.isolation import limit_kinds
from supervisor.peers import PeerBook
from supervisor.pool import Pool
from supervisor.probe import Probe
from supervisor.status import StatusBoard
from supervisor.store import Journal, Store


@dataclass(frozen=True, slots=True)
class Doctor:
    """Reads all parts; owns none."""

    home: Home
    environment: Environment
    journal: Journal
    accounts: Accounts
    book: PeerBook
    delivery: Delivery
    pool: Pool
    board: StatusBoard
    probe: Probe
    clock: Clock

    async def examine(self) -> DoctorReply:
        return self._reply(await self._facts(()))

    async def examine_with_trials(self) -> DoctorReply:
        trials = [await self.probe.run(self.pool, access) for access in TRIED]
        return self._reply(await self._facts(tuple(trials)))

    def _reply(self, facts: Facts) -> DoctorReply:
        findings = diagnose(facts)
        return DoctorReply(ok=is_well(findings), level=facts.status.isolation.level, findings=list(findings))

    async def _facts(self, trials: tuple[Trial, ...]) -> Facts:
        settings, isolation = self.book.settings, self.board.isolation
        wall = self.clock.wall()
        known = [names.account for names in self.accounts.names()]
        parked = await self.journal.do(Store.parked)
        failures = await self.journal.do(Store.failures, wall - DAY_S)
        return Facts(
            status=await self.board.status(),
            max_queue=settings.admission.max_queue,
            warnings=tuple(dict.fromkeys((*self.board.warnings, *settings.warnings))),
            locks=tuple(self.board.lock_watch.problems),
            throttled=frozenset(self.accounts.bot_id(one) for one in known if self.delivery.throttled(one)),
            suspicious=frozenset(self.accounts.bot_id(one) for one in known if self.delivery.suspicious(one)),
            parked=tuple(
                ParkedFact(self.accounts.bot_id(p.who.account), p.who.peer, p.count, wall - p.since) for p in parked
            ),
            failures=tuple(
                FailureFact(self.accounts.bot_id(f.who.account), f.who.peer, f.state.value, f.count, wall - f.last_at)
                for f in failures
            ),
            starts_stopped=self.pool.stopped,
            paused_starts={label(who.peer): left_s for who, left_s in self.pool.paused().items()},
            limits=limit_kinds(isolation.layers, NetworkMode.NONE),
            agents=await asyncio.to_thread(self._agents),
            sockets="" if self.home.sockets == self.home.run else str(self.home.sockets),
            proxy=without_password(self.environment.proxy(settings.wechat)),
            free_bytes=platform.free_bytes(str(self.home.path)),
            min_free_bytes=settings.workers.min_free_mb * MB,
            first=self.probe.first,
            trials=trials,
            models=tuple(self.board.gatekeeper.problems()),
        )

    def _agents(self) -> tuple[AgentFact, ...]:
        return agents_in_use(
            self.book.settings.agent, [(label(who.peer), self.book.policy(who).agent) for who in self.book.known()]
        )


def agents_in_use(default: Agent, peers: Iterable[tuple[str, Agent]]) -> tuple[AgentFact, ...]:
    """Every agent that somebody gets, with its users; the default first, and it alone for those who share it."""
    users: dict[tuple[str, str | None], list[str]] = {_program(default): ["by default"]}
    for name, agent in peers:
        if _program(agent) != _program(default):
            users.setdefault(_program(agent), []).append(name)
    return tuple(
        AgentFact(
            host=host,
            program=program,
            found=program is not None and shutil.which(program) is not None,
            carries_contract=HOSTS[host].carries_contract,
            users=tuple(names),
        )
        for (host, program), names in users.items()
    )


def _program(agent: Agent) -> tuple[str, str | None]:
    return agent.host, agent.command[0] if HOSTS[agent.host].needs_command and agent.command else None


def without_password(proxy: str | None) -> str:
    """Scheme, host and port; empty where there is no proxy, and for what is no URL (its start will have said so)."""
    if not proxy:
        return ""
    try:
        parts = urlsplit(proxy)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}"
