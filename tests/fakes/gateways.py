"""A real gateway process behind the supervisor's own gatekeeper, and what a test needs to call it."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx

from protocol.content import Access, Role
from protocol.ids import AccountId, Generation, LeaseKey, PeerId
from protocol.spec import NetworkMode
from supervisor.clock import SystemClock
from supervisor.config import read_environment
from supervisor.core.admission import PeerPolicy
from supervisor.core.policy import Agent
from supervisor.core.proxy import is_public
from supervisor.gatekeeper import Admission, Gatekeeper
from supervisor.proxy import Proxy
from supervisor.store import Journal
from supervisor.usage import Usage

ROOT = str(Path(__file__).resolve().parent.parent.parent)
KEY = "sk-canary-of-the-operator"
DEADLINE_S = 30.0
ENTRY = f"sys.path.insert(0, {ROOT!r}); from tests.fakes import gateways; gateways.recording({{log!r}})"


def recording(log: str) -> None:
    """The gateway as it is, which writes down every address that it connects to; 203.0.113.x leads to loopback."""
    from supervisor.gateway import main

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "socket.connect":
            with open(log, "a", encoding="utf-8") as file:
                file.write(json.dumps(arguments[1]) + "\n")

    sys.addaudithook(hook)
    main(Proxy(judge=_judge, resolve=_resolve))


def _judge(address: str) -> bool:
    """As in the product, but that these tests' servers stand for public ones at 127.0.0.2."""
    return address == "127.0.0.2" or is_public(address)


async def _resolve(host: str, port: int) -> list[str]:
    """Names as a hostile zone may have them."""
    return {
        "public.test": ["127.0.0.2"],
        "private.test": ["127.0.0.1", "10.0.0.1", "169.254.169.254"],
        "both.test": ["127.0.0.1", "127.0.0.2"],
    }.get(host, [host])


def lease(peer: str = "alice", generation: int = 1) -> LeaseKey:
    return LeaseKey(AccountId("account"), PeerId(peer), Generation(generation))


def policy(agent: Agent, *, network: bool = False, tokens: int = 0) -> PeerPolicy:
    return PeerPolicy(True, False, Role.GUEST, Access.WORKSPACE, None, 0, tokens, network, agent)


class Gate:
    """over: the leases whose budget was found spent."""

    def __init__(self, keeper: Gatekeeper, usage: Usage, log: Path, over: list[LeaseKey]) -> None:
        self.keeper = keeper
        self.usage = usage
        self.over = over
        self._log = log

    def admit(self, agent: Agent, key: LeaseKey | None = None, *, network: bool = False, tokens: int = 0) -> Admission:
        reaches = NetworkMode.PROXY if network else NetworkMode.GATEWAY
        rules = policy(agent, network=network, tokens=tokens)
        return self.keeper.admit(key or lease(), rules, reaches, limit=lambda: tokens)

    @property
    def connects(self) -> list[tuple[str, int]]:
        """Every address the gateway has connected to, in order."""
        if not self._log.exists():
            return []
        return [tuple(json.loads(line)) for line in self._log.read_text(encoding="utf-8").splitlines()]

    async def used(self, expected: int, key: LeaseKey | None = None) -> None:
        """Wait until so many tokens are booked."""
        async with asyncio.timeout(DEADLINE_S):
            while await self.usage.used((key or lease()).who) != expected:  # noqa: ASYNC110 - booked by another task
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def gate(folder: Path, variables: Mapping[str, str] | None = None) -> AsyncIterator[Gate]:
    """variables: the supervisor's environment."""
    journal, _ = await Journal.open(folder / "state.db")
    over: list[LeaseKey] = []
    log = folder / "connects"
    try:
        async with asyncio.TaskGroup() as tasks:
            usage = Usage(journal, SystemClock())
            writing = tasks.create_task(usage.run(), name="usage")
            keeper = Gatekeeper(
                environment=read_environment(variables if variables is not None else {"MODEL_KEY": KEY}),
                usage=usage,
                clock=SystemClock(),
                tasks=tasks,
                over_budget=over.append,
                entry=ENTRY.format(log=str(log)),
            )
            try:
                yield Gate(keeper, usage, log, over)
            finally:
                await keeper.close()
                writing.cancel()
    finally:
        await journal.close()


def client(admission: Admission) -> httpx.AsyncClient:
    """As a worker's library would call: token as Bearer, nothing of the environment."""
    return httpx.AsyncClient(
        base_url=admission.url,
        headers={"authorization": f"Bearer {admission.token}"},
        trust_env=False,
        timeout=DEADLINE_S,
    )


def chat(text: str, *, stream: bool = True) -> dict[str, object]:
    return {"model": "fake-1", "stream": stream, "messages": [{"role": "user", "content": text}]}


class Echo:
    """A TCP server on 127.0.0.2 that stands for the public web: answers one line with itself in capitals."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.2", 0))
        self.port = self._socket.getsockname()[1]
        self.heard: list[bytes] = []

    async def __aenter__(self) -> "Echo":
        self._server = await asyncio.start_server(self._serve, sock=self._socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(65536)
        self.heard.append(data)
        writer.write(data.upper())
        writer.close()
