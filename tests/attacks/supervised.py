"""A supervisor for the attacks: the real router, pool and zygote in a process of their own, told what to do by JSON lines.

A process of its own, because the tests fork for the same attack outside, and a process with ZeroMQ's threads should not.
Like the real one it cannot be looked into (PR_SET_DUMPABLE 0), so that a worker meets what it would meet in life.

argv: a folder for the bus, the modules whose functions attack.
"""

import asyncio
import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

from protocol.content import Prompt
from protocol.ids import AccountId, Generation, LeaseKey, PeerId, TurnId
from protocol.spec import worker_plan
from protocol.to_supervisor import PieceMade, TurnEnded
from protocol.to_worker import AgentSpec, Grant, RunTurn
from supervisor import platform
from supervisor.clock import SystemClock
from supervisor.core.lease import Gone, GoneWhy, Limits, Opened, PoolEvent, Said
from supervisor.launcher import Zygote
from supervisor.pool import Pool, StartFailed
from supervisor.router import Router

ROOT = str(Path(__file__).resolve().parent.parent.parent)
# An attack holds its worker's loop, and other attacks the machine: silence is no offence here.
LIMITS = Limits(hang_s=120.0)


def entry(modules: list[str]) -> str:
    return (
        f"sys.path.insert(0, {ROOT!r}); import importlib; [importlib.import_module(name) for name in {modules!r}]; "
        f"from tests.attacks import attacked; from worker.zygote import main; main(attacked.serve)"
    )


class Supervised:
    def __init__(self, router: Router, zygote: Zygote) -> None:
        self._zygote = zygote
        self._heard: dict[LeaseKey, asyncio.Queue[PoolEvent]] = {}
        self._turns = 0
        self.pool = Pool(LIMITS, zygote, router, SystemClock(), self._on_event)

    def _on_event(self, event: PoolEvent) -> None:
        self._heard[event.key].put_nowait(event)

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        key = LeaseKey(AccountId("attacks"), PeerId(order["worker"]), Generation(1))
        match order["do"]:
            case "start":
                return await self._start(key, order)
            case "attack":
                return await self._attack(key, order["attack"])
            case "end":
                self.pool.kill(key, GoneWhy.STOPPED)
                return await self._last(key)
            case unknown:
                raise ValueError(unknown)

    async def _start(self, key: LeaseKey, order: dict[str, Any]) -> dict[str, Any]:
        plan = worker_plan.decode(base64.b64decode(order["plan"]))
        grant = Grant(
            session_dir=plan.session_dir,
            workspace=plan.workspace,
            media_dir=plan.media_dir,
            session_id=None,
            access=plan.access,
            agent=AgentSpec("echo"),
            contract="",
            tools=None,
            stop_grace_s=1.0,
        )
        self._heard[key] = asyncio.Queue()
        self.pool.reopen()  # a test may start what cannot start, and the next one is not to wait for that
        try:
            await self.pool.start(key, plan, grant)
        except StartFailed as failed:
            return {"gone": str(failed)}
        while True:
            match await self._heard[key].get():
                case Opened():
                    break
                case Gone(why=why, detail=detail):
                    return {"gone": f"{why}: {detail}"}
        view = (await self.pool.views())[key.who]
        return {
            "worker": view.pid,
            "nanny": view.nanny_pid,
            "zygote": self._zygote.pid,
            "supervisor": os.getpid(),
            "missing": list(view.missing),
        }

    async def _attack(self, key: LeaseKey, attack: str) -> dict[str, Any]:
        self._turns += 1
        turn = TurnId(str(self._turns))
        self.pool.give(key, RunTurn(turn, Prompt(attack)))
        told = ""
        while True:
            match await self._heard[key].get():
                case Said(message=PieceMade(text=text)):
                    told += text
                case Said(message=TurnEnded()):
                    loaded: dict[str, Any] = json.loads(told)
                    return loaded
                case Gone(why=why, detail=detail) as gone:
                    self._heard[key].put_nowait(gone)
                    return {"broke": f"the worker is gone: {why}: {detail}"}

    async def _last(self, key: LeaseKey) -> dict[str, Any]:
        """Until no process of it is left."""
        while True:
            match await self._heard[key].get():
                case Gone(why=why):
                    return {"gone": why}


async def main(folder: str, zygote: Zygote) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with Router.open(Path(folder)) as router, asyncio.TaskGroup() as tasks:
        supervised = Supervised(router, zygote)
        tasks.create_task(supervised.pool.run(), name="pool")
        try:
            while line := await orders.readline():
                print(json.dumps(await supervised.obey(json.loads(line))), flush=True)
        finally:
            await supervised.pool.close()


if __name__ == "__main__":
    bus, *names = sys.argv[1:]
    started = Zygote.start(entry(names))
    platform.not_dumpable()
    asyncio.run(main(bus, started))
