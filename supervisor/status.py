"""What `bridge-ctl status` shows, gathered from those who know it. Times become ages here; nothing is decided.

Tokens, cursors and what people wrote are not in it.
"""

import os
from dataclasses import dataclass

from protocol.agents import HOSTS
from protocol.ctl import (
    AccountRow,
    DialogRow,
    IsolationRow,
    PeerRow,
    RefusedRow,
    StatusReply,
    TurnRow,
    WorkerRow,
)
from protocol.ids import PeerKey, label
from protocol.spec import NetworkMode
from supervisor.accounts import Accounts
from supervisor.attachments import Attachments
from supervisor.clock import Clock
from supervisor.core.dialog import View
from supervisor.core.scheduler import Scheduler
from supervisor.delivery import Delivery
from supervisor.dialogs import DialogLoop
from supervisor.gatekeeper import Gatekeeper
from supervisor.home import Home
from supervisor.isolation import NO_WAY, Isolation
from supervisor.lockfile import LockWatch
from supervisor.notices import one_line
from supervisor.peers import PeerBook
from supervisor.pool import Pool, WorkerView
from supervisor.store import Journal, Store


@dataclass(frozen=True, slots=True)
class StatusBoard:
    """Reads all parts; owns none. warnings: what was set aside or found odd at the start."""

    version: str
    home: Home
    started: float  # monotonic
    journal: Journal
    accounts: Accounts
    attachments: Attachments
    book: PeerBook
    scheduler: Scheduler
    delivery: Delivery
    dialogs: DialogLoop
    pool: Pool
    isolation: Isolation
    gatekeeper: Gatekeeper
    lock_watch: LockWatch
    clock: Clock
    warnings: tuple[str, ...]

    async def status(self) -> StatusReply:
        counters = await self.journal.do(Store.counters)
        refused = await self.refused()
        views = await self.pool.views()
        accounts = self.accounts.rows()
        return StatusReply(
            version=self.version,
            pid=os.getpid(),
            uptime_s=_tenth(self.clock.now() - self.started),
            home=str(self.home.path),
            isolation=IsolationRow(
                mode=self.isolation.mode.value,
                level=self.isolation.level.value,
                missing=[layer.value for layer in self.isolation.missing],
            ),
            accounts=accounts,
            peers=[await self._peer(who, views.get(who)) for who in self.book.known()],
            refused=refused,
            dialogs=[self._dialog(who, view) for who, view in self.dialogs.open()],
            counters=counters,
            problems=[*self._problems(accounts), *self.warnings],
        )

    async def refused(self) -> list[RefusedRow]:
        wall = self.clock.wall()
        return [
            RefusedRow(
                peer=row.who.peer,
                account=self.accounts.bot_id(row.who.account),
                count=row.count,
                last_age_s=_tenth(max(0.0, wall - row.last_at)),
            )
            for row in await self.journal.do(Store.refused)
        ]

    async def _peer(self, who: PeerKey, view: WorkerView | None) -> PeerRow:
        record = self.book.record(who)
        policy = self.book.policy(who)
        wall = self.clock.wall()
        started = record.session_started_at if record is not None else None
        return PeerRow(
            peer=who.peer,
            label=label(who.peer),
            account=self.accounts.bot_id(who.account),
            role=self.book.role(who).value,
            agent=policy.agent.host,
            access=policy.access.value,
            state=self.scheduler.state_of(who).value,
            turn=await self._turn(who),
            queued=self.scheduler.waiting_of(who),
            turns=record.turns if record is not None else 0,
            budget_left=self.delivery.budget_left(who),
            parked_parts=self.delivery.parked(who),
            session_age_s=None if started is None else _tenth(max(0.0, wall - started)),
            media_bytes=self.attachments.size_of(who),
            worker=None if view is None else _worker(view),
        )

    def _dialog(self, who: PeerKey, view: View) -> DialogRow:
        now = self.clock.now()
        return DialogRow(
            peer=who.peer,
            account=self.accounts.bot_id(who.account),
            kind=view.question.kind.value,
            title=view.question.title or one_line(view.question.body),
            age_s=_tenth(max(0.0, now - view.asked)),
            expires_in_s=_tenth(max(0.0, view.expires - now)),
        )

    async def _turn(self, who: PeerKey) -> TurnRow | None:
        turn = self.scheduler.turn_of(who)
        if turn is None:
            return None
        row, began = turn
        message = await self.journal.do(Store.message, row)
        return TurnRow(
            message_id=message.message_id if message is not None else str(row), age_s=_tenth(self.clock.now() - began)
        )

    def _problems(self, accounts: list[AccountRow]) -> list[str]:
        lines = []
        if not accounts:
            lines.append("no account is signed in: bridge-ctl login")
        for row in accounts:
            called = row.name or row.account
            match row.state:
                case "expired":
                    lines.append(f"{called}: the login has expired: bridge-ctl login")
                case "paused":
                    lines.append(f"{called}: paused: bridge-ctl resume {called}")
                case "locked_out":
                    lines.append(
                        f"{called}: polled by process {row.lock.pid}: stop that one, this one goes on by itself"
                    )
                case "stale" | "stopped":
                    lines.append(f"{called}: {row.state}: {row.last_error or 'no poll finishes'}")
                case _:
                    pass
        lines += self.lock_watch.problems
        if self.scheduler.disk_full:
            lines.append("disk: less than workers.min_free_mb is free: no turn begins until there is room")
        lines += self.gatekeeper.problems()
        if self.isolation.shuts_out(NetworkMode.GATEWAY) and self._talks_to_models():
            lines.append(f"agents cannot start: {NO_WAY}")
        if self.isolation.missing:
            missing = ", ".join(layer.value for layer in self.isolation.missing)
            lines.append(f"isolation {self.isolation.level.value}: missing {missing}")
        return lines

    def _talks_to_models(self) -> bool:
        agents = [self.book.settings.agent, *(self.book.policy(who).agent for who in self.book.known())]
        return any(HOSTS[agent.host].talks_to_model for agent in agents)


def _worker(view: WorkerView) -> WorkerRow:
    return WorkerRow(
        pid=view.pid,
        generation=view.key.generation,
        idle_s=_tenth(view.idle_s),
        rss_bytes=view.rss_bytes,
        isolation=[layer.value for layer in view.layers],
        isolation_missing=[layer.value for layer in view.missing],
        limits=dict(view.limits),
    )


def _tenth(seconds: float) -> float:
    return round(seconds, 1)
