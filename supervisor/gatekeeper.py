"""The supervisor's side of the gateway: starts it, issues and revokes tokens, lends allowances, books what was spent.

The listening socket is made and kept here, so that a gateway that dies is followed by another on the same port, with
the same tokens: workers have the port built into their sandbox. Keys are read here, from the variables that the settings
name, and handed over the control channel alone.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from protocol.gateway import (
    AskedForMore,
    CallFailed,
    FromGateway,
    Issue,
    Lend,
    Revoke,
    Serving,
    Spent,
    Upstream,
    from_gateway,
)
from protocol.ids import LeaseKey, PeerKey
from protocol.spec import NetworkMode
from supervisor.clock import Clock
from supervisor.config import Environment
from supervisor.core.admission import PeerPolicy
from supervisor.core.gateway import Ledger, digest, upstream_for
from supervisor.pairend import PairEnd
from supervisor.usage import Usage

log = logging.getLogger(__name__)

ENTRY = "from supervisor.gateway import main; main()"
PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent)
HOST = "127.0.0.1"
AGAIN_S, AGAIN_MOST_S = 1.0, 5.0  # before the third gateway in a row that lived shorter than LIVED_S; grows
LIVED_S = 10.0
CLOSE_S = 2.0
DENY_AFTER_S = 1.0  # a call that waits for tokens when there are none; long enough for a turn to be aborted


@dataclass(frozen=True, slots=True)
class Admission:
    """What a worker needs to reach the gateway. token: never to be logged"""

    port: int
    token: str = field(repr=False)
    proxy: bool

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def proxy_url(self) -> str:
        return f"http://worker:{self.token}@{HOST}:{self.port}" if self.proxy else ""


@dataclass(slots=True)
class _Held:
    """A worker with a token."""

    issue: Issue
    limit: Callable[[], int]
    ledger: Ledger = field(default_factory=Ledger)


class Gatekeeper:
    """All calls from one loop; close() leaves no process behind.

    over_budget   told at once when a worker's peer has used up its day
    entry         the gateway's code, as text
    """

    def __init__(
        self,
        *,
        environment: Environment,
        usage: Usage,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        over_budget: Callable[[LeaseKey], None],
        entry: str = ENTRY,
    ) -> None:
        self._environment = environment
        self._usage = usage
        self._clock = clock
        self._tasks = tasks
        self._over_budget = over_budget
        self._entry = entry
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: PairEnd[FromGateway] | None = None
        self._held: dict[PeerKey, _Held] = {}
        self._serving = asyncio.Event()
        self._started_at = 0.0
        self._short_lives = 0
        self._closed = False
        self._said: dict[str, str] = {}  # what is wrong, by what it is about

    def admit(self, key: LeaseKey, policy: PeerPolicy, network: NetworkMode, *, limit: Callable[[], int]) -> Admission:
        """A token for this worker, with which its peer's earlier ones end. Starts the gateway when there is none.

        network  PROXY: the public web too
        limit    tokens a day of this peer, 0 = no limit, as the settings stand when it is asked
        raises   OSError: no port, or no process
        """
        proxy = network is NetworkMode.PROXY
        found = upstream_for(policy.agent, self._environment.api_key(policy.agent))
        if isinstance(found, Upstream):
            self._said.pop("model", None)
        elif policy.agent.model or policy.agent.key_variable or policy.agent.base_url:
            # An agent without any of these may need no model: it is not for us to complain.
            self._say("model", f"peer {key.peer}: {found}")
        token = secrets.token_urlsafe(32)
        issue = Issue(
            digest=digest(token),
            key=key,
            upstream=found if isinstance(found, Upstream) else None,
            limited=limit() > 0,
            proxy=proxy,
        )
        self._held[key.who] = _Held(issue, limit)
        if self._control is None:
            self._open()
        else:
            self._control.send(issue)
        assert self._listener is not None
        return Admission(self._listener.getsockname()[1], token, proxy)

    def revoke(self, key: LeaseKey) -> None:
        """This worker is gone. May be repeated."""
        held = self._held.get(key.who)
        if held is not None and held.issue.key == key:
            del self._held[key.who]
            if self._control is not None:
                self._control.send(Revoke(key))

    @property
    def pid(self) -> int | None:
        """The gateway's; None while there is none."""
        return None if self._process is None else self._process.pid

    def problems(self) -> list[str]:
        """One line for each thing that is wrong now."""
        return list(self._said.values())

    def state(self) -> str:
        """How its process is, in a few words; empty where no agent has needed it yet."""
        if self._listener is None:
            return ""
        if self._process is None:
            return "starts again in a moment"
        return f"process {self._process.pid}, {'reachable' if self._serving.is_set() else 'not answering yet'}"

    async def serving(self) -> None:
        """Wait until a gateway accepts connections."""
        await self._serving.wait()

    async def close(self) -> None:
        """The end of its control channel is its order to go. The caller has ended the workers. May be repeated."""
        self._closed = True
        process, self._process = self._process, None
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if process is not None:
            await asyncio.to_thread(_reaped, process)

    # -- the process

    def _open(self) -> None:
        """raises OSError"""
        if self._listener is None:
            # The protocol by its number: asyncio sets TCP_NODELAY only on sockets that say it, and a stream of small
            # pieces would come 40 ms late each.
            self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            self._listener.bind((HOST, 0))
            self._listener.listen(128)
        ours, theirs = socket.socketpair()
        code = f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r}); {self._entry}"
        words = [str(self._listener.fileno()), str(theirs.fileno()), str(os.getpid())]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", code, *words],
                    pass_fds=[self._listener.fileno(), theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                )
        except OSError:
            ours.close()
            raise
        self._started_at = self._clock.now()
        log.info("gateway_started pid=%d port=%d", self._process.pid, self._listener.getsockname()[1])
        self._control = control = PairEnd(ours, from_gateway, self._hear, self._lost)
        for held in list(self._held.values()):
            held.ledger = Ledger()  # what was lent to a dead one is lent to nobody
            control.send(held.issue)

    def _lost(self) -> None:
        """It has ended, or talks nonsense. Another takes its place; requests wait in the listener's queue meanwhile."""
        self._serving.clear()
        process, self._process, self._control = self._process, None, None
        lived_s = self._clock.now() - self._started_at
        self._short_lives = self._short_lives + 1 if lived_s < LIVED_S else 0
        if not self._closed:
            self._say("gateway", "the model gateway has ended; it is being started again")
            self._tasks.create_task(self._again(process), name="gateway again")

    async def _again(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is not None:
            code = await asyncio.to_thread(_reaped, process)
            log.error("gateway_ended pid=%d code=%s", process.pid, code)
        if self._short_lives > 1:
            pause_s = min(AGAIN_S * (self._short_lives - 1), AGAIN_MOST_S)
            await self._clock.sleep_until(self._clock.now() + pause_s)
        while not self._closed and self._control is None:
            try:
                self._open()
            except OSError as error:
                self._say("gateway", f"the model gateway cannot be started: {error.strerror}")
                await self._clock.sleep_until(self._clock.now() + AGAIN_S)

    # -- what it says

    def _hear(self, message: FromGateway) -> None:
        match message:
            case Serving():
                self._serving.set()
                self._said.pop("gateway", None)
            case Spent(key=key, input_tokens=tokens_in, output_tokens=tokens_out):
                self._usage.add(key.who, tokens_in, tokens_out)
                self._said.pop("server", None)
                log.info(
                    "model_call peer=%s input=%d output=%d account=%s", key.peer, tokens_in, tokens_out, key.account
                )
                held = self._held.get(key.who)
                if held is not None and held.issue.key == key:
                    held.ledger.spent(tokens_in + tokens_out)
            case AskedForMore(key=key):
                self._tasks.create_task(self._lend(key), name=f"lend {key.peer}")
            case CallFailed(key=key, status=status):
                log.warning("model_call_failed peer=%s status=%d account=%s", key.peer, status, key.account)
                if status == 401:
                    self._say("server", "the model server refuses the key (401): see [agent] api_key_env")
                elif status == 0:
                    self._say("server", "the model server cannot be reached: see [agent] base_url and the network")
            case _:
                assert_never(message)

    async def _lend(self, key: LeaseKey) -> None:
        held = self._held.get(key.who)
        tokens = 0
        if held is not None and held.issue.key == key:
            used = await self._usage.used(key.who)
            tokens = held.ledger.lend(limit=held.limit(), used=used)
            if tokens == 0:
                log.info("token_budget_spent peer=%s used=%d account=%s", key.peer, used, key.account)
                self._over_budget(key)
                # First the turn ends, then the call: an agent that hears of it would tell its peer in its own words.
                await self._clock.sleep_until(self._clock.now() + DENY_AFTER_S)
        if self._control is not None:
            self._control.send(Lend(key, tokens))

    def _say(self, about: str, line: str) -> None:
        if self._said.get(about) != line:
            log.warning("gateway_problem %s", line)
            self._said[about] = line


def _reaped(process: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(CLOSE_S)
    process.kill()
    return process.wait()
