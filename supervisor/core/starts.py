"""The crash-loop rule: whether a worker may be started now.

In come deaths before Ready and the clock; out comes a refusal or nothing. Such a death is a broken set-up, not a bad
turn: starting again at once would only burn the machine. Three of one peer pause that peer; three different peers mean
that the set-up of all is broken, and all starts stop until the operator, or a trial that succeeds, says otherwise. So a
trial's worker may always start, and its death counts against nobody.
"""

from collections import deque
from dataclasses import dataclass

from protocol.ids import AccountId, PeerId, PeerKey

WINDOW_S = 60.0
PAUSE_S = 60.0
DEATHS = 3
PEERS = 3
TRIAL = PeerKey(AccountId(""), PeerId("probe"))  # no account has an empty id


@dataclass(frozen=True, slots=True)
class Refusal:
    """reason: one line for the operator. retry_in_s None: until reopened."""

    reason: str
    retry_in_s: float | None


class Starts:
    """Knows no clock. `now` is monotonic seconds. Times are kept only while they matter."""

    def __init__(self, *, window_s: float = WINDOW_S, pause_s: float = PAUSE_S) -> None:
        self._window_s = window_s
        self._pause_s = pause_s
        self._deaths: deque[tuple[float, PeerKey]] = deque()
        self._paused: dict[PeerKey, float] = {}  # until when
        self.stopped = False

    def refusal(self, who: PeerKey, *, now: float) -> Refusal | None:
        """Why this peer's worker may not be started now; None: it may."""
        if who == TRIAL:
            return None
        if self.stopped:
            return Refusal(f"workers of {PEERS} peers died before they were ready", None)
        until = self._paused.get(who)
        if until is None:
            return None
        if now >= until:
            del self._paused[who]
            return None
        return Refusal(f"its worker died {DEATHS} times before it was ready", until - now)

    def died(self, who: PeerKey, *, now: float) -> bool:
        """A worker of this peer ended, or was ended, before Ready. True: with it a pause, or the stop, has begun."""
        if who == TRIAL:
            return False
        before = self.stopped, who in self._paused
        self._deaths.append((now, who))
        while self._deaths[0][0] <= now - self._window_s:
            self._deaths.popleft()
        if len({peer for _, peer in self._deaths}) >= PEERS:
            self.stopped = True
        if sum(peer == who for _, peer in self._deaths) >= DEATHS:
            self._paused[who] = now + self._pause_s
        for peer in [peer for peer, until in self._paused.items() if now >= until]:
            del self._paused[peer]
        return (self.stopped, who in self._paused) != before

    def paused(self, *, now: float) -> dict[PeerKey, float]:
        """Peers whose workers may not be started now, and for how many seconds more."""
        return {peer: until - now for peer, until in self._paused.items() if now < until}

    def reopen(self) -> None:
        """The operator has reloaded, or a trial worker came up: all that was held against anyone is forgotten."""
        self.stopped = False
        self._deaths.clear()
        self._paused.clear()
