"""The audit log: who did what, each line chained to the one before it by its hash. No content, ever.

What counts is taken from the event stream: orders of the operator, who was admitted, what ran, what was asked and
answered, what broke its rules. A changed, missing or inserted line breaks the chain from there on; lines cut from the
end do not, so `audit verify` names the last hash for whoever wants to keep it elsewhere.
"""

import asyncio
import hashlib
import json
import logging
import os
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervisor.clock import Clock
from supervisor.core.states import EventRecord

log = logging.getLogger(__name__)

FIRST = "0" * 64
GATHER_S = 0.1
RETRY_S = 1.0
WAITING = 10_000
TAIL_BYTES = 64 * 1024  # a line is far shorter

RECORDED = frozenset(
    {
        *(
            "bridge_ready",
            "bridge_stopping",
            "verb_obeyed",
            "account_signed_in",
            "account_expired",
            "account_locked_out",
        ),
        *("sender_refused", "worker_opened", "worker_lost", "worker_not_started", "turn_started", "message_closed"),
        *("message_turned_away", "message_dead", "parts_dead", "crash_loop_began", "token_budget_spent", "model_call"),
        *(
            "dialog_opened",
            "dialog_closed",
            "rule_made",
            "rule_revoked",
            "file_sent",
            "sent_by_operator",
            "audit_mended",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """lines: how many are whole and in order. broken_at: the first line that is not, from 1; None: all are."""

    lines: int
    last: str
    broken_at: int | None
    reason: str = ""


class AuditLog:
    """hear() each event; run() writes until cancelled, then what is left."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """raises OSError"""
        self._path = path
        self._clock = clock
        self._waiting: deque[EventRecord] = deque(maxlen=WAITING)
        self._came = asyncio.Event()
        self._said = False
        self._number, self._last, mended = _tail(path)
        if mended:
            self.hear(EventRecord(0, clock.wall(), "audit_mended", None, None, None, json.dumps({"bytes": mended})))

    def hear(self, event: EventRecord) -> None:
        if event.event in RECORDED:
            self._waiting.append(event)
            self._came.set()

    async def run(self) -> None:
        try:
            while True:
                await self._came.wait()
                await self._clock.sleep_until(self._clock.now() + GATHER_S)
                self._came.clear()
                while self._waiting and not await self._write():
                    await self._clock.sleep_until(self._clock.now() + RETRY_S)
        finally:
            await asyncio.shield(self._write())

    async def _write(self) -> bool:
        """One batch, on disk when this returns True. A batch is written whole or, the disk refusing, taken back whole."""
        batch = list(self._waiting)
        lines, number, last = [], self._number, self._last
        for event in batch:
            number += 1
            line, last = _line(number, event, last)
            lines.append(line)
        try:
            await asyncio.to_thread(_append, self._path, b"".join(lines))
        except OSError as error:
            if not self._said:
                log.error("audit_unwritable reason=%s", error.strerror)
            self._said = True
            return False
        self._said = False
        self._number, self._last = number, last
        for _ in batch:
            self._waiting.popleft()
        return True


def verify(path: Path) -> Verdict:
    """Read the whole chain. raises OSError"""
    last, number = FIRST, 0
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return Verdict(0, FIRST, None)
    with file:
        for raw in file:
            try:
                found = json.loads(raw)
                claimed = found.pop("hash")
                if not raw.endswith(b"\n"):
                    return Verdict(number, last, number + 1, "ends in the middle")
                if found["n"] != number + 1 or found["prev"] != last:
                    return Verdict(number, last, number + 1, "does not follow the line before it")
                if _hash(found) != claimed:
                    return Verdict(number, last, number + 1, "was changed")
            except (ValueError, KeyError, TypeError, AttributeError):
                return Verdict(number, last, number + 1, "is no line of this log")
            number, last = number + 1, claimed
    return Verdict(number, last, None)


def _line(number: int, event: EventRecord, prev: str) -> tuple[bytes, str]:
    at = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    said: dict[str, Any] = {
        "n": number,
        "at": at,
        "event": event.event,
        "account": event.account,
        "peer": event.peer,
        "message_id": event.message_id,
        "data": json.loads(event.data),
        "prev": prev,
    }
    digest = _hash(said)
    return json.dumps({**said, "hash": digest}, ensure_ascii=True).encode() + b"\n", digest


def _hash(said: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _append(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, data)
            if written != len(data):
                raise OSError(28, os.strerror(28))
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _tail(path: Path) -> tuple[int, str, int]:
    """Number and hash of the last whole line, and how many bytes of a torn one behind it were cut off."""
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return 0, FIRST, 0
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        tail = file.read()
        whole = tail[: tail.rfind(b"\n") + 1]
        torn = len(tail) - len(whole)
        if torn:
            file.truncate(size - torn)
        lines = whole.splitlines()
    try:
        if not lines:
            return 0, FIRST, torn
        found = json.loads(lines[-1])
        return int(found["n"]), str(found["hash"]), torn
    except (ValueError, KeyError, TypeError):
        return 0, FIRST, torn  # verify says where; the chain begins anew behind it
