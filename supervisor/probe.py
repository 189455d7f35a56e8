"""Asks this machine what isolation it really offers: a throw-away worker is started and its Ready believed only as far
as the kernel confirms it (pool.py). Called once at start, before any peer is served.
"""

import asyncio
import logging
import os
import shutil
import tempfile
from pathlib import Path

from protocol.content import Access
from protocol.ids import AccountId, Generation, LeaseKey, PeerId
from protocol.spec import NetworkMode
from protocol.to_worker import AgentSpec, Grant
from supervisor.config import Workers
from supervisor.core.lease import Gone, Opened, PoolEvent
from supervisor.home import Home
from supervisor.isolation import Isolation, plan_for
from supervisor.launcher import StartFailed
from supervisor.pool import Pool

log = logging.getLogger(__name__)

KEY = LeaseKey(AccountId(""), PeerId("probe"), Generation(1))  # no account has an empty id
HOST = "echo"


class Probe:
    """hear() gets the pool's events for KEY."""

    def __init__(self, home: Home, workers: Workers, isolation: Isolation) -> None:
        self._home = home
        self._workers = workers
        self._isolation = isolation
        self._opened: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()

    def hear(self, event: PoolEvent) -> None:
        match event:
            case Opened():
                self._settle(came_up=True)
            case Gone(_, why, detail):
                log.log(
                    logging.DEBUG if self._opened.done() else logging.ERROR, "probe_gone why=%s detail=%s", why, detail
                )
                self._settle(came_up=False)
                self._gone.set()
            case _:
                pass

    async def run(self, pool: Pool) -> None:
        """Isolation knows what is offered afterwards; when no worker comes up it stays as it was, at weak."""
        folder = Path(tempfile.mkdtemp(prefix="probe-", dir=self._home.sessions))
        uid = self._workers.uid_base - 1 if os.geteuid() == 0 else None  # no peer's
        if uid is not None:
            os.chown(folder, uid, uid)
        plan = plan_for(
            access=Access.CHAT,
            network=NetworkMode.NONE,
            mode=self._workers.isolation,
            session_dir=folder,
            workspace=folder,
            media_dir=folder,
            read=(),
            write=(),
            command=(),
            home=self._home.path,
            workers=self._workers,
            uid=uid,
            layers=(),
        )
        grant = Grant(
            session_dir=str(folder),
            workspace=str(folder),
            media_dir=str(folder),
            session_id=None,
            access=Access.CHAT,
            agent=AgentSpec(HOST),
            contract="",
            tools=(),
            stop_grace_s=1.0,
        )
        try:
            await pool.start(KEY, plan, grant)
            if await self._opened:
                view = (await pool.views())[KEY.who]
                self._isolation.learn(view.layers, view.missing)
                pool.leave(KEY)
            await self._gone.wait()
        except StartFailed as error:
            log.error("probe_not_started reason=%s", error)
        finally:
            pool.reopen()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        log.info(
            "isolation level=%s layers=%s missing=%s",
            self._isolation.level.value,
            ",".join(layer.value for layer in self._isolation.layers),
            ",".join(layer.value for layer in self._isolation.missing),
        )

    def _settle(self, *, came_up: bool) -> None:
        if not self._opened.done():
            self._opened.set_result(came_up)
