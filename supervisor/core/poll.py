"""Decides one account's poll: when to fetch, how long to wait after a failure, when to give up.

In: what became of the last effect, as an event, and the time. Out: effects, of which the last one brings the next event.
It keeps the cursor, how often and since when polls have failed, and nothing of any message: batches pass through unread.
supervisor/poll.py performs it.
"""

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Generic, TypeVar, assert_never

from protocol.errors import BridgeError
from protocol.ids import Cursor

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class PollLimits:
    """hold      how long the server keeps a poll without news; it may announce another value
    slack_s      how much longer the channel listens than the server holds
    hung_s       beyond hold and slack: a fetch that has not even timed out by then is cut from outside
    frozen_s     a step that comes so much too late means that this process or machine stood still
    backoff      after the 1st, 2nd, ... failure in a row: first, doubled, ... up to most, each shaken by a fifth
    immediate_s  an empty answer within this time was not held; after each one in a row we wait longer, up to idle_most_s
    """

    hold_s: float = 35.0
    hold_least_s: float = 1.0
    hold_most_s: float = 120.0
    hold_absurd_s: float = 600.0
    slack_s: float = 10.0
    hung_s: float = 60.0
    frozen_s: float = 30.0
    backoff_first_s: float = 1.0
    backoff_most_s: float = 30.0
    immediate_s: float = 0.5
    idle_first_s: float = 0.2
    idle_most_s: float = 2.0
    record_again_s: float = 1.0
    stop_within_s: float = 5.0  # how long a stop waits for a batch that cannot be recorded


class PollState(StrEnum):
    RUNNING = "running"
    STALE = "stale"  # no poll has finished within hold and slack twice in a row
    EXPIRED = "expired"  # WeChat does not accept the token; only a new login, and so a new Poll, ends this
    STOPPED = "stopped"


class Arrival(Enum):
    """When a batch came: what the first answer brings may have waited for us (settled.md 23)."""

    BACKLOG = "backlog"
    LIVE = "live"


# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    pass


@dataclass(frozen=True, slots=True)
class Announced:
    """Whatever came of it."""


@dataclass(frozen=True, slots=True)
class Fetched(Generic[B]):
    """cursor None: the answer had none. hold_s: as the server announced it, unchecked; None = not said."""

    batch: B
    count: int
    cursor: Cursor | None
    hold_s: float | None


@dataclass(frozen=True, slots=True)
class Failed:
    """chance: a random number from 0 to 1. retry_after_s: what the server asked for, else 0."""

    reason: str
    chance: float
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenRefused:
    reason: str


@dataclass(frozen=True, slots=True)
class Recorded:
    pass


@dataclass(frozen=True, slots=True)
class NotRecorded:
    reason: str


@dataclass(frozen=True, slots=True)
class Woke:
    pass


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Takes the place of the outcome of a fetch, an announcement or a wait, which is over then."""


PollEvent = Started | Announced | Fetched[B] | Failed | TokenRefused | Recorded | NotRecorded | Woke | StopAsked

# --- effects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnnounceStart:
    """→ Announced"""


@dataclass(frozen=True, slots=True)
class Fetch:
    """→ Fetched, Failed or TokenRefused. within_s: cut it then, and it has Failed."""

    cursor: Cursor
    hold_s: float
    within_s: float


@dataclass(frozen=True, slots=True)
class Record(Generic[B]):
    """Batch and cursor in one transaction → Recorded or NotRecorded. Never cut."""

    batch: B
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class Wait:
    """→ Woke"""

    until: float


@dataclass(frozen=True, slots=True)
class OutageBegan:
    """One log line. what: "poll" or "journal"."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class OutageEnded:
    what: str
    lasted_s: float


@dataclass(frozen=True, slots=True)
class GiveUp(Generic[B]):
    """The stop could not wait longer for the disk: name what is lost."""

    batch: B


@dataclass(frozen=True, slots=True)
class AnnounceStop:
    """Comes right before Over(STOPPED)."""


@dataclass(frozen=True, slots=True)
class Over:
    """The last effect. state: EXPIRED or STOPPED"""

    state: PollState
    reason: str = ""


PollEffect = AnnounceStart | Fetch | Record[B] | Wait | OutageBegan | OutageEnded | GiveUp[B] | AnnounceStop | Over


@dataclass(frozen=True, slots=True)
class PollView:
    """What `status` shows. last_hold_s: how long the last finished poll took."""

    state: PollState
    last_poll_age_s: float | None
    last_hold_s: float | None
    poll_failures: int
    last_error: str | None


class _At(Enum):
    """What the core waits for."""

    START = "start"
    ANNOUNCED = "announced"
    FETCHED = "fetched"
    RECORDED = "recorded"
    WOKE = "woke"
    WOKE_TO_RECORD = "woke to record"
    OVER = "over"


MAY_COME: dict[_At, tuple[type[object], ...]] = {
    _At.START: (Started, StopAsked),
    _At.ANNOUNCED: (Announced, StopAsked),
    _At.FETCHED: (Fetched, Failed, TokenRefused, StopAsked),
    _At.RECORDED: (Recorded, NotRecorded),
    _At.WOKE: (Woke, StopAsked),
    _At.WOKE_TO_RECORD: (Woke, StopAsked),
    _At.OVER: (),
}


@dataclass(slots=True)
class _Outage:
    """since None: there is none."""

    what: str
    since: float | None = None

    def begin(self, reason: str, now: float) -> tuple[OutageBegan, ...]:
        if self.since is not None:
            return ()
        self.since = now
        return (OutageBegan(self.what, reason),)

    def end(self, now: float) -> tuple[OutageEnded, ...]:
        if self.since is None:
            return ()
        lasted_s = now - self.since
        self.since = None
        return (OutageEnded(self.what, lasted_s),)


class Poll(Generic[B]):
    """Decides the next move of one account's poll. Knows no clock, socket or file."""

    def __init__(self, cursor: Cursor, limits: PollLimits | None = None) -> None:
        self.cursor = cursor
        self.failures = 0  # polls that failed, in a row
        self.last_error: str | None = None
        self._limits = limits or PollLimits()
        self._state = PollState.RUNNING
        self._at = _At.START
        self._hold_s = self._limits.hold_s
        self._arrival = Arrival.BACKLOG
        self._unrecorded: tuple[B, Cursor | None] | None = None
        self._tried_to_revive = False  # one AnnounceStart for each time that the token is refused
        self._immediate = 0  # empty answers in a row that were not held
        self._asked_at = 0.0
        self._due_at: float | None = None  # when the present effect should have brought its event
        self._watched_from = 0.0  # since when a finished poll is missing
        self._finished_at: float | None = None
        self._last_hold_s: float | None = None
        self._stop_by: float | None = None
        self._outage = _Outage("poll")
        self._disk_outage = _Outage("journal")
        self._story: deque[str] = deque(maxlen=20)

    def step(self, event: PollEvent[B], now: float) -> tuple[PollEffect[B], ...]:
        """The effects in their order. Only the last one brings an event; after Over there is none.

        raises BridgeError, with the recent story, on an event that cannot come now
        """
        if not isinstance(event, MAY_COME[self._at]):
            raise BridgeError(
                f"poll: {_name(event)} while waiting for {self._at.value}; before: {', '.join(self._story)}"
            )
        if self._due_at is not None and now > self._due_at + self._limits.frozen_s:
            self._watched_from = now  # we stood still, not the server
        effects = self._decide(event, now)
        if self._state in (PollState.RUNNING, PollState.STALE):
            missing_s = 2 * (self._hold_s + self._limits.slack_s)
            self._state = PollState.STALE if now >= self._watched_from + missing_s else PollState.RUNNING
        self._story.append(f"{_name(event)} → {'+'.join(_name(effect) for effect in effects)}")
        return effects

    def view(self, now: float) -> PollView:
        return PollView(
            state=self._state,
            last_poll_age_s=None if self._finished_at is None else now - self._finished_at,
            last_hold_s=self._last_hold_s,
            poll_failures=self.failures,
            last_error=self.last_error,
        )

    def _decide(self, event: PollEvent[B], now: float) -> tuple[PollEffect[B], ...]:
        match event:
            case Started():
                self._watched_from = now
                return self._announce()
            case Announced():
                return self._fetch(now)
            case Fetched():
                return self._fetched(event, now)
            case Failed(reason, chance, retry_after_s):
                return self._failed(reason, now, max(self._backoff_s(chance), retry_after_s))
            case TokenRefused(reason):
                return self._token_refused(reason)
            case Recorded():
                return self._recorded(now)
            case NotRecorded(reason):
                return self._not_recorded(reason, now)
            case Woke():
                return self._record() if self._unrecorded else self._fetch(now)
            case StopAsked():
                if self._unrecorded:
                    self._stop_by = now + self._limits.stop_within_s
                    return self._record()
                return self._stop()
            case unknown:
                assert_never(unknown)

    # The moves that bring an event

    def _announce(self) -> tuple[PollEffect[B], ...]:
        self._at = _At.ANNOUNCED
        self._due_at = None
        return (AnnounceStart(),)

    def _fetch(self, now: float) -> tuple[PollEffect[B], ...]:
        self._at = _At.FETCHED
        self._asked_at = now
        within_s = self._hold_s + self._limits.slack_s + self._limits.hung_s
        self._due_at = now + within_s
        return (Fetch(self.cursor, self._hold_s, within_s),)

    def _record(self) -> tuple[PollEffect[B], ...]:
        if self._unrecorded is None:
            raise BridgeError(f"poll: nothing to record; before: {', '.join(self._story)}")
        self._at = _At.RECORDED
        self._due_at = None
        return (Record(self._unrecorded[0], self._arrival),)

    def _wait(self, now: float, wait_s: float, then: _At = _At.WOKE) -> tuple[PollEffect[B], ...]:
        self._at = then
        self._due_at = now + wait_s
        return (Wait(now + wait_s),)

    def _stop(self) -> tuple[PollEffect[B], ...]:
        self._at = _At.OVER
        self._state = PollState.STOPPED
        return (AnnounceStop(), Over(PollState.STOPPED))

    # What events mean

    def _fetched(self, event: Fetched[B], now: float) -> tuple[PollEffect[B], ...]:
        took_s = now - self._asked_at
        if not event.count and event.cursor is None and took_s >= self._hold_s + self._limits.slack_s:
            return self._heard_nothing(now)
        self.failures = 0
        self.last_error = None
        self._tried_to_revive = False
        self._finished_at = self._watched_from = now
        self._last_hold_s = took_s
        self._hold_s = self._held(event.hold_s)
        back = self._outage.end(now)
        self._immediate = self._immediate + 1 if not event.count and took_s < self._limits.immediate_s else 0
        if event.count or event.cursor not in (None, self.cursor):
            # WeChat hands a batch out once, whatever cursor we show it later, so no other work may ever come between
            # Fetched and Record.
            self._unrecorded = (event.batch, event.cursor)
            return (*back, *self._record())
        self._arrival = Arrival.LIVE
        return (*back, *self._next(now))

    def _heard_nothing(self, now: float) -> tuple[PollEffect[B], ...]:
        """The channel's own timeout: an empty poll, no failure (B-011). Two in a row are a silence worth a line."""
        silent_s = now - self._watched_from
        began: tuple[PollEffect[B], ...] = ()
        if silent_s >= 2 * (self._hold_s + self._limits.slack_s):
            self.last_error = f"no answer for {silent_s:.0f} s"
            began = self._outage.begin(self.last_error, now)
        return (*began, *self._fetch(now))

    def _failed(self, reason: str, now: float, wait_s: float) -> tuple[PollEffect[B], ...]:
        self.failures += 1
        self.last_error = reason
        return (*self._outage.begin(reason, now), *self._wait(now, wait_s))

    def _token_refused(self, reason: str) -> tuple[PollEffect[B], ...]:
        self.failures += 1
        self.last_error = reason
        if not self._tried_to_revive:
            self._tried_to_revive = True  # announcing oneself has been seen to revive a token; once, then a scan it is
            return self._announce()
        self._at = _At.OVER
        self._state = PollState.EXPIRED
        return (Over(PollState.EXPIRED, reason),)

    def _recorded(self, now: float) -> tuple[PollEffect[B], ...]:
        if self._unrecorded and self._unrecorded[1]:
            self.cursor = self._unrecorded[1]
        self._unrecorded = None
        self._arrival = Arrival.LIVE
        back = self._disk_outage.end(now)
        if back:
            self.last_error = None
            self._watched_from = now
        return (*back, *(self._stop() if self._stop_by is not None else self._next(now)))

    def _not_recorded(self, reason: str, now: float) -> tuple[PollEffect[B], ...]:
        self.last_error = reason
        began = self._disk_outage.begin(reason, now)
        if self._stop_by is not None and now >= self._stop_by and self._unrecorded:
            return (*began, GiveUp(self._unrecorded[0]), *self._stop())
        return (*began, *self._wait(now, self._limits.record_again_s, _At.WOKE_TO_RECORD))

    def _next(self, now: float) -> tuple[PollEffect[B], ...]:
        """At once, unless the server keeps answering with nothing: then it would make us spin."""
        if not self._immediate:
            return self._fetch(now)
        wait_s = self._limits.idle_first_s * 2.0 ** min(self._immediate - 1, 20)
        return self._wait(now, min(wait_s, self._limits.idle_most_s))

    # Numbers

    def _held(self, announced_s: float | None) -> float:
        """Not said: as before, or a server that names its hold once would be cut off for ever after one silence.

        Anything that cannot be meant falls back to the usual hold (B-033).
        """
        if announced_s is None:
            return self._hold_s
        if not math.isfinite(announced_s) or not 0 < announced_s <= self._limits.hold_absurd_s:
            return self._limits.hold_s
        return min(max(announced_s, self._limits.hold_least_s), self._limits.hold_most_s)

    def _backoff_s(self, chance: float) -> float:
        wait_s = min(self._limits.backoff_first_s * 2.0 ** min(self.failures, 20), self._limits.backoff_most_s)
        return wait_s * (0.8 + 0.2 * chance)


def _name(value: object) -> str:
    return type(value).__name__
