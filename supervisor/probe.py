"""Asks this machine what isolation it really offers: a throw-away worker of the real pool tries to break out.

run() is one trial at one access level: its worker's Ready is believed only as far as the kernel confirms it (pool.py) and
as the attempts of protocol/probe.py fail. Once at start, before any peer is served, and for `bridge-ctl doctor --probe`.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec

from protocol.content import Access, Prompt
from protocol.ids import Generation, LeaseKey, TurnId
from protocol.probe import PROBE_HOST, REPORT, Attempt, Targets, attempts_at, reported
from protocol.spec import IsolationMode, NetworkMode, WorkerPlan
from protocol.to_supervisor import Remarked, TurnEnded
from protocol.to_worker import AgentSpec, Grant, RunTurn
from supervisor.config import Workers
from supervisor.core.lease import Gone, Opened, PoolEvent, Said
from supervisor.core.starts import TRIAL
from supervisor.core.trial import Trial
from supervisor.home import Home
from supervisor.isolation import Isolation, plan_for
from supervisor.launcher import StartFailed
from supervisor.pool import Pool

log = logging.getLogger(__name__)

PREFIX = ".trial-"  # no peer's folder begins with a dot
TURN = TurnId("trial")


@dataclass(slots=True)
class _Running:
    key: LeaseKey
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    ends: list[tuple[Attempt, str]] = field(default_factory=list)
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Folders:
    session: Path
    workspace: Path
    media: Path
    other: Path


class Probe:
    """hear() gets the pool's events for TRIAL. workers: the settings in force now."""

    def __init__(
        self, home: Home, workers: Callable[[], Workers], isolation: Isolation, tasks: asyncio.TaskGroup
    ) -> None:
        self._home = home
        self._workers = workers
        self._isolation = isolation
        self._tasks = tasks
        self._one_at_a_time = asyncio.Lock()
        self._generations = count(1)
        self._running: _Running | None = None
        self.first = Trial(Access.CHAT, failed="not made yet")

    def hear(self, event: PoolEvent) -> None:
        running = self._running
        if running is None or event.key != running.key:
            return
        match event:
            case Opened():
                running.opened.set()
            case Said(_, Remarked(level=level, text=text)) if level == REPORT:
                with contextlib.suppress(ValueError):  # what is missing in the end is noticed
                    running.ends += reported(text)
            case Said(_, TurnEnded()):
                running.ended.set()
            case Gone(_, why, detail):
                running.why = f"{why.value}: {detail}" if detail else why.value
                for moment in (running.opened, running.ended, running.gone):
                    moment.set()
            case _:
                pass

    async def at_start(self, pool: Pool) -> None:
        """Isolation knows what is offered afterwards; when no worker comes up it stays as it was, at weak."""
        for folder in (self._home.sessions, self._home.workspaces, self._home.media):
            for left in folder.glob(f"{PREFIX}*"):  # of a bridge that was killed
                shutil.rmtree(left, ignore_errors=True)
        self.first = trial = await self.run(pool, Access.CHAT)
        if trial.failed:
            log.error("trial_failed reason=%s", trial.failed)
        else:
            self._isolation.learn(trial.holding, trial.lacking, trial.reaches)
        if trial.broken:
            log.error("layers_broken layers=%s", ",".join(sorted(trial.broken)))
        log.info(
            "isolation level=%s layers=%s missing=%s",
            self._isolation.level.value,
            ",".join(layer.value for layer in self._isolation.layers),
            ",".join(layer.value for layer in self._isolation.missing),
        )

    async def run(self, pool: Pool, access: Access) -> Trial:
        """One trial. It runs to its end even when nobody waits for it any more."""
        return await asyncio.shield(self._tasks.create_task(self._in_turn(pool, access), name=f"trial {access.value}"))

    async def _in_turn(self, pool: Pool, access: Access) -> Trial:
        async with self._one_at_a_time:
            return await self._try(pool, access)

    async def _try(self, pool: Pool, access: Access) -> Trial:
        key = LeaseKey(*TRIAL, Generation(next(self._generations)))
        running = self._running = _Running(key)
        with self._folders() as folders, socket.create_server(("127.0.0.1", 0)) as listening:
            try:
                await pool.start(key, self._plan(access, folders), _grant(access, folders))
            except StartFailed as error:
                return Trial(access, failed=str(error))
            await running.opened.wait()
            view = (await pool.views()).get(TRIAL)
            if view is None or running.gone.is_set():
                return Trial(access, failed=running.why)
            pool.give(key, RunTurn(TURN, Prompt(_text(self._targets(folders, listening.getsockname()[1])))))
            await running.ended.wait()
            pool.leave(key)
            await running.gone.wait()
        if tuple(attempt for attempt, _ in running.ends) != attempts_at(access):
            return Trial(access, failed=f"not every attempt was made: {running.why}")
        pool.reopen()
        return Trial(access, view.layers, view.missing, tuple(running.ends), reaches=view.reaches)

    def _plan(self, access: Access, folders: _Folders) -> WorkerPlan:
        workers = self._workers()
        # What is missing is to be told, not to keep the worker from starting.
        mode = IsolationMode.BEST_EFFORT if workers.isolation is IsolationMode.REQUIRED else workers.isolation
        return plan_for(
            access=access,
            # As most agents have it, but with nobody behind it: whatever then is reached is an escape.
            network=NetworkMode.OPEN if access is Access.FULL else NetworkMode.GATEWAY,
            mode=mode,
            session_dir=folders.session,
            workspace=folders.workspace,
            media_dir=folders.media,
            read=(),
            write=(),
            command=(),
            home=self._home.path,
            workers=workers,
            uid=self._uid(),
            layers=(),
            cgroup=self._isolation.cgroup,
        )

    def _uid(self) -> int | None:
        return self._workers().uid_base - 1 if os.geteuid() == 0 else None  # no peer's

    @contextlib.contextmanager
    def _folders(self) -> Iterator[_Folders]:
        """Where those of peers lie, with a file in the workspace and one of "another peer"."""
        parents = (self._home.sessions, self._home.workspaces, self._home.media, self._home.workspaces)
        made: list[Path] = []
        try:
            for parent in parents:
                made.append(Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)))
            folders = _Folders(*made)
            for folder in (folders.workspace, folders.other):
                (folder / "file").touch(mode=0o600)
            uid = self._uid()
            if uid is not None:
                for path in (folders.session, folders.workspace, folders.workspace / "file", folders.media):
                    os.chown(path, uid, uid)
            yield folders
        finally:
            for folder in made:
                shutil.rmtree(folder, ignore_errors=True)

    def _targets(self, folders: _Folders, tcp_port: int) -> Targets:
        home = self._home.path.stat()
        return Targets(
            journal=str(self._home.journal),
            other_file=str(folders.other / "file"),
            workspace_file=str(folders.workspace / "file"),
            home=str(self._home.path),
            ctl_socket=str(self._home.ctl_socket),
            pid=os.getpid(),
            tcp_port=tcp_port,
            home_id=(home.st_dev, home.st_ino),
        )


def _grant(access: Access, folders: _Folders) -> Grant:
    return Grant(
        session_dir=str(folders.session),
        workspace=str(folders.workspace),
        media_dir=str(folders.media),
        session_id=None,
        access=access,
        agent=AgentSpec(PROBE_HOST),
        contract="",
        tools=(),
        stop_grace_s=1.0,
    )


def _text(targets: Targets) -> str:
    return msgspec.json.encode(targets).decode()
