"""Where a process can be stopped to be killed: every place at which the journal, the wire or a process changes, by name.

The board is one page of memory shared by the harness and all processes of a home: supervisor, zygote, nannies and workers
(which inherit the mapping by fork), and the gateway. The harness arms a point; the process that comes by for the n-th
time stands still there until the harness, having killed whom it wanted, lets go. Nothing of this is in the product: the
entries beside this file wrap its functions. Standard library only, since the zygote loads it.
"""

import functools
import inspect
import mmap
import os
import struct
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

PAGE = mmap.PAGESIZE
HELD_S = 30.0  # a harness that died does not hold anybody for longer
LOOK_S = 0.0005
_HEAD = struct.Struct("<IIII")  # armed point, passages left, state, the nanny or process that stands there
_COUNTS_AT = 64
_IDLE, _ARMED, _REACHED = 0, 1, 2


class Passer(StrEnum):
    """Whose code the point is in."""

    SUPERVISOR = "supervisor"
    STARTING = "starting supervisor"
    ZYGOTE = "zygote"
    NANNY = "nanny"
    WORKER = "worker"
    GATEWAY = "gateway"


POINTS: dict[str, Passer] = {
    # the journal
    "before_commit_batch": Passer.SUPERVISOR,
    "after_commit_batch": Passer.SUPERVISOR,
    "before_commit": Passer.SUPERVISOR,
    "after_commit": Passer.SUPERVISOR,
    # the wire
    "batch_received": Passer.SUPERVISOR,
    "before_send": Passer.SUPERVISOR,
    "after_send_before_record": Passer.SUPERVISOR,
    # a message's way
    "intake_judges": Passer.SUPERVISOR,
    "worker_wanted": Passer.SUPERVISOR,
    "worker_forked": Passer.SUPERVISOR,
    "worker_hello": Passer.SUPERVISOR,
    "grant_sent": Passer.SUPERVISOR,
    "session_opened": Passer.SUPERVISOR,
    "before_give": Passer.SUPERVISOR,
    "turn_given": Passer.SUPERVISOR,
    "piece_heard": Passer.SUPERVISOR,
    "turn_end_heard": Passer.SUPERVISOR,
    "before_close": Passer.SUPERVISOR,
    "after_close": Passer.SUPERVISOR,
    "worker_gone": Passer.SUPERVISOR,
    # a start
    "zygote_started": Passer.STARTING,
    "journal_opened": Passer.STARTING,
    "recovery_began": Passer.STARTING,
    "recovery_done": Passer.STARTING,
    # processes
    "before_fork": Passer.ZYGOTE,
    "forked_untold": Passer.ZYGOTE,
    "reaped_untold": Passer.ZYGOTE,
    "nanny_born": Passer.NANNY,
    "worker_made": Passer.NANNY,
    "nanny_connects": Passer.NANNY,
    "nanny_carries": Passer.NANNY,
    "worker_ended_untold": Passer.NANNY,
    "before_sandbox": Passer.WORKER,
    "before_hello": Passer.WORKER,
    "granted": Passer.WORKER,
    "before_opened": Passer.WORKER,
    "turn_begun": Passer.WORKER,
    "before_piece": Passer.WORKER,
    "before_turn_end": Passer.WORKER,
    # the gateway; only where an agent has a model
    "gateway_started": Passer.SUPERVISOR,
    "token_issued": Passer.SUPERVISOR,
    "spent_heard": Passer.SUPERVISOR,
    "gateway_born": Passer.GATEWAY,
    "call_received": Passer.GATEWAY,
    "before_spent": Passer.GATEWAY,
}
MODEL_POINTS = frozenset(list(POINTS)[list(POINTS).index("gateway_started") :])
HOST_POINTS = frozenset({"turn_begun"})  # in the scripted host; an agent program has no such place
_NUMBER = {name: number for number, name in enumerate(POINTS, start=1)}


class Board:
    """One home's. path: a file of one page"""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(PAGE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE)
        self.standing_in: int | None = None  # the nanny that we are or came from, as the harness sees pids

    # -- the harness

    def arm(self, point: str, passages: int = 1) -> None:
        _HEAD.pack_into(self._page, 0, _NUMBER[point], passages, _ARMED, 0)

    def reached(self) -> int | None:
        """The pid of the process, or of its nanny where it is a worker, once somebody stands there."""
        _, _, state, pid = _HEAD.unpack_from(self._page)
        return pid if state == _REACHED else None

    def disarm(self) -> None:
        """Let go whoever stands there."""
        _HEAD.pack_into(self._page, 0, 0, 0, _IDLE, 0)

    def passages(self) -> dict[str, int]:
        counts = struct.unpack_from(f"<{len(POINTS)}I", self._page, _COUNTS_AT)
        return dict(zip(POINTS, counts, strict=True))

    # -- whoever comes by

    def passing(self, point: str) -> None:
        number = _NUMBER[point]
        at = _COUNTS_AT + 4 * (number - 1)
        (count,) = struct.unpack_from("<I", self._page, at)
        struct.pack_into("<I", self._page, at, count + 1)
        armed, left, state, _ = _HEAD.unpack_from(self._page)
        if armed != number or state != _ARMED:
            return
        if left > 1:
            _HEAD.pack_into(self._page, 0, armed, left - 1, state, 0)
            return
        _HEAD.pack_into(self._page, 0, armed, 0, _REACHED, self.standing_in or os.getpid())
        until = time.monotonic() + HELD_S
        # A process that stands still must not run its event loop meanwhile, so nothing could wake it.
        while _HEAD.unpack_from(self._page)[2] == _REACHED and time.monotonic() < until:
            time.sleep(LOOK_S)


Condition = Callable[..., bool]


def wrap(
    board: Board,
    owner: Any,
    name: str,
    *,
    before: str | None = None,
    after: str | None = None,
    when: Condition = lambda *_: True,
    when_result: Callable[[Any], bool] = lambda _: True,
) -> None:
    """Have calls of owner.name come by these points. when: sees the arguments"""
    raw = inspect.getattr_static(owner, name)
    inner = raw.__func__ if isinstance(raw, classmethod) else raw

    def come(point: str | None, asked: bool) -> None:
        if point is not None and asked:
            board.passing(point)

    if inspect.iscoroutinefunction(inner):

        @functools.wraps(inner)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            asked = when(*args)
            come(before, asked)
            result = await inner(*args, **kwargs)
            come(after, asked and when_result(result))
            return result

    else:

        @functools.wraps(inner)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            asked = when(*args)
            come(before, asked)
            result = inner(*args, **kwargs)
            come(after, asked and when_result(result))
            return result

    setattr(owner, name, classmethod(wrapper) if isinstance(raw, classmethod) else wrapper)
