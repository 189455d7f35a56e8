"""Tells systemd how the bridge is: ready, stopping, alive, and its one line of state (sd_notify(3)).

Without NOTIFY_SOCKET nothing is sent. The sign of life comes from the loop that does the work: where that hangs, the
watchdog restarts the service.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable

from protocol.errors import BridgeError
from supervisor.clock import Clock

log = logging.getLogger(__name__)

LINE_S = 2.0  # for the line of state
STATUS_S = 10.0  # the line's age at most, where no watchdog asks for more


class Notifier:
    """One service manager's ear."""

    def __init__(self, address: str | None, watchdog_s: float | None, clock: Clock) -> None:
        """address: a path, or @name for an abstract socket. watchdog_s: silence for so long means dead"""
        # An abstract name may hold any byte; a path is left as it is.
        self._address = f"\0{address[1:]}" if address and address.startswith("@") else address
        self._every_s = min(STATUS_S, watchdog_s / 3) if watchdog_s else STATUS_S
        self._watched = watchdog_s is not None
        self._clock = clock

    def ready(self) -> None:
        self._say("READY=1")

    def stopping(self) -> None:
        self._say("STOPPING=1", "STATUS=finishing running turns")

    async def run(self, line: Callable[[], Awaitable[str]]) -> None:
        """Until cancelled. line: the state in one line, asked for each time."""
        if self._address is None:
            return
        while True:
            if self._watched:
                self._say("WATCHDOG=1")
            # A journal that cannot be read is no sign of death: the line then stays as it was.
            with contextlib.suppress(TimeoutError, BridgeError):
                async with asyncio.timeout(LINE_S):
                    self._say(f"STATUS={await line()}")
            await self._clock.sleep_until(self._clock.now() + self._every_s)

    def _say(self, *lines: str) -> None:
        if self._address is None:
            return
        message = "\n".join(line.replace("\n", " ") for line in lines).encode("utf-8", "backslashreplace")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
                sending.setblocking(False)
                sending.sendto(message, self._address)
        except OSError as error:  # nobody listens any more: the bridge goes on
            log.warning("notify_failed reason=%s", error.strerror)
