"""Runs the operator's hooks: a program with one JSON object on stdin, ten seconds at most, one after the other.

Performs core/hooks for the events of the stream. What a hook prints goes nowhere; one that fails or takes too long costs
a log line and nothing else.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from supervisor.clock import Clock
from supervisor.core import hooks as core
from supervisor.core.states import EventRecord

log = logging.getLogger(__name__)

HOOK_S = 10.0
WAITING = 100  # runs that wait; the newest go first to be given up, since the oldest tell how it began


class HookRunner:
    """hear() each event; run() until cancelled.

    commands    of [hooks] as it stands now: program and arguments, empty for none
    bot_id      how an account is called outside
    """

    def __init__(
        self,
        commands: Callable[[core.Hook], Sequence[str]],
        bot_id: Callable[[str | None], str | None],
        variables: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._commands = commands
        self._bot_id = bot_id
        # The service manager is told by us alone.
        self._variables = {
            k: v for k, v in variables.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
        }
        self._clock = clock
        self._core = core.Hooks()
        self._waiting: deque[core.Run] = deque()
        self._wake = asyncio.Event()

    def hear(self, event: EventRecord) -> None:
        told = core.Told(event.event, event.at, event.account, event.peer, event.message_id, json.loads(event.data))
        self._queue(self._core.step(told, self._clock.now()))
        self._wake.set()

    def _queue(self, runs: Sequence[core.Run]) -> None:
        for run in runs:
            if self._commands(run.hook) and len(self._waiting) < WAITING:
                self._waiting.append(run)

    async def run(self) -> None:
        while True:
            while self._waiting:
                await self._perform(self._waiting.popleft())
            self._wake.clear()
            at = self._core.wake_at()
            if at is None:
                await self._wake.wait()
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, at - self._clock.now())):
                        await self._wake.wait()
            self._queue(self._core.step(None, self._clock.now()))

    async def _perform(self, run: core.Run) -> None:
        command = self._commands(run.hook)
        if not command:
            return
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=self._variables,
                start_new_session=True,
            )
        except OSError as error:
            log.warning("hook_failed hook=%s reason=%s", run.hook, error.strerror)
            return
        try:
            async with asyncio.timeout(HOOK_S):
                await process.communicate(self._said(run))
        except TimeoutError:
            log.warning("hook_failed hook=%s reason=%s", run.hook, f"not done after {HOOK_S:.0f} s")
        finally:
            # All of it: what it left running would outlive us otherwise.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode and process.returncode > 0:
            log.warning("hook_failed hook=%s reason=%s", run.hook, f"exit code {process.returncode}")

    def _said(self, run: core.Run) -> bytes:
        told = run.told
        at = datetime.fromtimestamp(told.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said = {
            "hook": run.hook.value,
            "event": told.event,
            "at": at,
            "account": self._bot_id(told.account),
            "peer": told.peer,
            "message_id": told.message_id,
            "data": told.data,
        }
        return json.dumps(said).encode() + b"\n"
