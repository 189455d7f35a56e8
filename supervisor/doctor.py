"""Gathers what core/doctor.py judges: from status, journal, delivery, pool, settings and the machine. Changes nothing.

With probe it has throw-away workers try to break out (probe.py), one for each access level that is isolated.
"""

import asyncio
import json
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from protocol import home as names
from protocol.agents import HOSTS
from protocol.ctl import DoctorReply
from protocol.ids import AccountId, label
from protocol.spec import NetworkMode
from supervisor import platform
from supervisor.accounts import Accounts
from supervisor.clock import Clock
from supervisor.config import Environment, changed, without_password
from supervisor.core.doctor import (
    DAY_S,
    MB,
    TRIED,
    AgentFact,
    Facts,
    FailureFact,
    LastFailure,
    ParkedFact,
    SecretFile,
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

# Events that tell of something gone wrong; the newest of each kind is a finding.
TROUBLES = (
    *("poll_outage_began", "record_outage_began", "account_expired", "messages_lost", "message_unreadable"),
    *("send_rejected", "send_unconfirmed", "send_unanswered", "parts_dead", "message_dead"),
    *("turn_failed", "turn_interrupted", "worker_lost", "worker_not_started", "crash_loop_began"),
    *("model_call_failed", "gateway_ended", "hook_failed", "journal_unavailable", "disk_full", "audit_unwritable"),
)


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
            clocks=await self._clocks(known),
            secrets=await asyncio.to_thread(self._secrets),
            last=tuple(
                LastFailure(one.event, wall - one.at, one.peer, _in_one_line(one.data))
                for one in await self.journal.do(Store.last_of_each, TROUBLES)
            ),
            gateway=self.board.gatekeeper.state(),
            changed=changed(settings),
        )

    async def _clocks(self, accounts: Iterable[AccountId]) -> dict[str, float]:
        offsets = {one: await self.journal.do(Store.clock_offset_ms, one) for one in accounts}
        return {self.accounts.bot_id(one): ms / 1000 for one, ms in offsets.items() if ms is not None}

    def _secrets(self) -> tuple[SecretFile, ...]:
        home = self.home
        paths = (home.credentials, home.journal, home.audit, home.run / names.CTL_CLIENT_KEY, home.path / "env")
        found = [(path, path.lstat()) for path in paths if path.exists()]
        return tuple(SecretFile(str(path), stat.S_IMODE(at.st_mode), at.st_uid == os.geteuid()) for path, at in found)

    def _agents(self) -> tuple[AgentFact, ...]:
        return agents_in_use(
            self.book.settings.agent, [(label(who.peer), self.book.policy(who).agent) for who in self.book.known()]
        )


def agents_in_use(default: Agent, peers: Iterable[tuple[str, Agent]]) -> tuple[AgentFact, ...]:
    """Every agent that somebody gets, with its users; the default first, and it alone for those who share it."""
    users: dict[tuple[str, str | None, bool], list[str]] = {_program(default): ["by default"]}
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
            lacks_model=lacks_model,
        )
        for (host, program, lacks_model), names in users.items()
    )


def _program(agent: Agent) -> tuple[str, str | None, bool]:
    facts = HOSTS[agent.host]
    program = agent.program[0] if facts.talks_to_model and agent.program else None
    return agent.host, program, facts.talks_to_model and program is None and not agent.model


def _in_one_line(data: str) -> str:
    """An event's data as log lines have it."""
    return " ".join(f"{name}={value}" for name, value in json.loads(data).items())
