"""JSON-RPC lines between the SDK and an agent program, ours because the SDK's own takes one malformed line as a reason to end
the connection, has no upper bound for a line and never slows a flooding agent down.

The requests that need a person go past the SDK, whose models refuse what real agents send (a title that is null) and which
does not tell when one is withdrawn.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from worker.hosts.lines import LINE_BYTES, mended
from worker.hosts.program import READ_BYTES, AgentProgram

_UPDATES = frozenset(
    ("user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan")
    + ("plan_update", "plan_removed", "available_commands_update", "current_mode_update", "config_option_update")
    + ("session_info_update", "usage_update")
)
RequestId = int | str


class Asks(Protocol):
    """Who answers what the agent asks. Must not wait."""

    def asked(self, request: RequestId, method: str, params: dict[str, Any]) -> None: ...

    def withdrawn(self, request: object) -> None: ...


class Transport:
    """JSON objects, one a line. Lines that are none, and lines without end, cost themselves and a remark."""

    def __init__(
        self,
        program: AgentProgram,
        has_room: Callable[[], Coroutine[Any, Any, None]],
        remark: Callable[[str, str], None],
        asks: Asks,
    ) -> None:
        """asks: hears of the requests that go past the SDK, and of those that the agent withdraws"""
        self.ended = asyncio.Event()  # set after the last line has been handed on
        self._reader = program.stdout
        self._writer = program.stdin
        self._has_room = has_room
        self._remark = remark
        self._asks = asks
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._partial = bytearray()
        self._skipping = False  # inside a line that is too long
        self._eof = False
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            # write() first and without an await before it: a cancel must never overtake its prompt.
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            if "method" in message:
                raise ConnectionError("Connection closed") from error
            # An answer that nobody reads any more is no news: the end of the stream says it.

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end of the stream."""
        while True:
            await self._has_room()
            if self._lines:
                line = self._lines.popleft()
                self._waiting_bytes -= len(line)
                self._taken.set()
                message = self._read_line(line)
                if message is not None:
                    return message
            elif self._eof:
                self.ended.set()
                return None
            else:
                self._arrived.clear()
                await self._arrived.wait()

    async def close(self) -> None:
        self.end()

    def end(self) -> None:
        """Nothing more will be read, whoever holds the stream open."""
        self._eof = True
        self._arrived.set()

    async def pump(self) -> None:
        """Read bytes and cut them into lines, at most READ_BYTES ahead of who takes them."""
        while not self._eof:
            while self._waiting_bytes > READ_BYTES:
                self._taken.clear()
                await self._taken.wait()
            data = await self._reader.read(READ_BYTES)
            if not data:
                self._line_over()
                self.end()
                return
            *whole, rest = data.split(b"\n")
            for part in whole:
                self._add(part)
                self._line_over()
            self._add(rest)

    def _add(self, part: bytes) -> None:
        if self._skipping:
            return
        if len(self._partial) + len(part) <= LINE_BYTES:
            self._partial += part
            return
        self._remark("warning", "the agent sent a line over the limit; it was dropped")
        if b'"method"' not in self._partial[:4096] + part[:4096]:
            self.end()  # it may be an answer that we wait for: a failed turn is better than one without an end
        self._partial.clear()
        self._skipping = True

    def _line_over(self) -> None:
        if self._partial:
            self._lines.append(bytes(self._partial))
            self._waiting_bytes += len(self._partial)
            self._partial.clear()
            self._arrived.set()
        self._skipping = False

    def _read_line(self, line: bytes) -> dict[str, Any] | None:
        """None: a line of no use."""
        if not line.strip():
            return None
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError):
            self._remark("warning", "the agent wrote a line that is not JSON")
            return None
        if not isinstance(message, dict) or not _is_sound(message):
            self._remark("warning", "the agent wrote a line that is no message")
            return None
        if b"\\ud" in line or b"\\uD" in line:
            message = cast(dict[str, Any], mended(message))
        match message.get("method"):
            case "session/update":
                return self._prepared(message)
            case "session/request_permission" | "elicitation/create" as method if "id" in message:
                self._asks.asked(message["id"], method, _object(message.get("params")))
                return None
            case "$/cancel_request":
                params = _object(message.get("params"))
                self._asks.withdrawn(params.get("requestId", params.get("id")))
                return None
        return message

    def _prepared(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """An update as the SDK's strict models take it."""
        params = message.get("params")
        update = params.get("update") if isinstance(params, dict) else None
        if not isinstance(params, dict) or not isinstance(update, dict) or update.get("sessionUpdate") not in _UPDATES:
            self._remark("warning", "the agent sent an update of an unknown kind")
            return None
        params.pop("_meta", None)  # the SDK lets its keys shadow real ones
        if update["sessionUpdate"] == "tool_call" and not isinstance(update.get("title"), str):
            update["title"] = ""
        return message


def _is_sound(message: dict[str, Any]) -> bool:
    """Whether the SDK can route it: what fails in its reading loop ends the connection."""
    identity = message.get("id")
    if "method" in message:
        return isinstance(message["method"], str) and isinstance(identity, int | str | None)
    return isinstance(identity, int | str) and isinstance(message.get("error") or {}, dict)


class RootLog(logging.Handler):
    """The SDK logs on the root logger, with tracebacks that quote what was said. Only the fact is passed on."""

    def __init__(self, remark: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = remark

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "root":
            self._tell(record.levelname.lower(), str(record.msg))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
