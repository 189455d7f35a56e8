"""When an operator's hook runs: which event calls which, and the ten minutes that make a failing poll an outage. Pure.

In come events as they are told and the clock; out go the runs. hooks.py performs them. `now` is monotonic seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

OUTAGE_S = 600.0  # without a good poll


class Hook(StrEnum):
    """By the name of its key in [hooks]."""

    EXPIRED = "on_expired"
    OUTAGE = "on_outage"
    CRASH_LOOP = "on_crash_loop"
    DEAD_LETTER = "on_dead_letter"


CALLS = {
    "account_expired": Hook.EXPIRED,
    "crash_loop_began": Hook.CRASH_LOOP,
    "message_dead": Hook.DEAD_LETTER,
    "parts_dead": Hook.DEAD_LETTER,
}
OUTAGE_BEGAN, OUTAGE_ENDED = "poll_outage_began", "poll_outage_ended"


@dataclass(frozen=True, slots=True)
class Told:
    """An event as the stream has it. at: Unix seconds."""

    event: str
    at: float
    account: str | None
    peer: str | None = None
    message_id: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    hook: Hook
    told: Told


@dataclass(slots=True)
class _Outage:
    told: Told
    began: float
    named: bool = False


class Hooks:
    """Remembers which accounts cannot be polled, and since when."""

    def __init__(self) -> None:
        self._outages: dict[str | None, _Outage] = {}

    def step(self, told: Told | None, now: float) -> tuple[Run, ...]:
        """told None: the moment named by wake_at has come."""
        runs: list[Run] = []
        if told is not None:
            if (hook := CALLS.get(told.event)) is not None:
                runs.append(Run(hook, told))
            elif told.event == OUTAGE_BEGAN:
                self._outages.setdefault(told.account, _Outage(told, now))
            elif told.event == OUTAGE_ENDED:
                over = self._outages.pop(told.account, None)
                if over is not None and over.named:
                    runs.append(Run(Hook.OUTAGE, told))
        for outage in self._outages.values():
            if not outage.named and now >= outage.began + OUTAGE_S:
                outage.named = True
                runs.append(Run(Hook.OUTAGE, outage.told))
        return tuple(runs)

    def wake_at(self) -> float | None:
        return min((one.began + OUTAGE_S for one in self._outages.values() if not one.named), default=None)
