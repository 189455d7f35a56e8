"""Who may speak, and how much: one peer's policy, the verdict on a message, and what is left of its words.

In come the settings as values, what the channel says of a message, and what the journal says of its sender; out goes a
verdict. A stranger is refused without a sound. The slash commands (commands.py) and dialogs are judged after may_speak
and never by the Door, which counts prompts alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from protocol.content import Access, Role
from protocol.ids import PeerKey, label
from supervisor.core.graphemes import cut
from supervisor.core.policy import Admission, Agent, Guests, PeerOverrides

T = TypeVar("T")

BACKLOG = 50  # late messages of one peer that are queued; the rest is closed
HOUR_S = 3600.0


# --- one peer's policy ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerPolicy:
    """What the settings come to for one peer.

    role      the operator's is the owner of an operator account; everybody else is a guest
    tools     None = all of the access level, () = none
    max_…     0 = no limit
    """

    admitted: bool
    owner: bool  # the person who scanned this account's code
    role: Role
    access: Access
    tools: tuple[str, ...] | None
    max_turns_per_hour: int
    max_tokens_per_day: int
    network: bool
    agent: Agent


def policy_for(
    who: PeerKey,
    *,
    role: Role,
    account_names: Sequence[str],
    admission: Admission,
    guests: Guests,
    agent: Agent,
    accounts: Mapping[str, PeerOverrides],
    peers: Mapping[str, PeerOverrides],
) -> PeerPolicy:
    """Resolve key by key, the most specific wins: [guests] or [admission] by role, then [accounts.NAME], then
    [peers.LABEL], [peers.ID], [peers."ACCOUNT/LABEL"], [peers."ACCOUNT/ID"].

    role            the peer's own, not its account's
    account_names   all that the account is called besides its owner's id: name, bot id
    accounts        by account name; peers by what stands behind `peers.` in either file, peers.toml already merged in
    """
    called = {str(who.account), label(who.account), *account_names, *map(label, account_names)} - {""}
    overrides = PeerOverrides()
    for name in account_names:
        overrides = overrides.overridden(accounts.get(name, PeerOverrides()))
    for key in sorted((k for k in peers if _names(k, who, called)), key=lambda k: ("/" in k, _peer_of(k) == who.peer)):
        overrides = overrides.overridden(peers[key])
    owner = str(who.peer) == str(who.account)  # an account is keyed by the person who scanned
    listed = any(_names(entry, who, called) for entry in admission.allowed_peers)
    operator = role is Role.OPERATOR
    return PeerPolicy(
        # The owner can never be locked out; a denial beats the list.
        admitted=owner or (overrides.admitted if overrides.admitted is not None else listed),
        owner=owner,
        role=role,
        access=_first(overrides.access, Access.WORKSPACE if operator else guests.access),
        tools=overrides.tools,
        max_turns_per_hour=_first(
            overrides.max_turns_per_hour, admission.max_turns_per_hour if operator else guests.max_turns_per_hour
        ),
        max_tokens_per_day=_first(overrides.max_tokens_per_day, 0 if operator else guests.max_tokens_per_day),
        network=_first(overrides.network, False),
        agent=agent if overrides.agent is None else agent.overridden(overrides.agent),
    )


def _names(entry: str, who: PeerKey, called: set[str]) -> bool:
    """Does `ID`, `LABEL`, `ACCOUNT/ID` or `ACCOUNT/LABEL` mean this peer? Whole and with its case.

    Before a slash always stands an account: a sender who calls himself `work/alice` is not account work's alice. A blank
    entry means nobody, and no entry is a pattern.
    """
    account, slash, _ = entry.partition("/")
    peer = _peer_of(entry)
    if not peer.strip() or (slash and account not in called):
        return False
    return peer in (who.peer, label(who.peer))


def _peer_of(entry: str) -> str:
    account, slash, rest = entry.partition("/")
    return rest if slash else account


def _first(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


# --- verdicts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admit:
    pass


class Ignored(StrEnum):
    ECHO = "echo"  # our own words coming back
    GROUP = "group"  # never enters a private conversation, whoever wrote it


@dataclass(frozen=True, slots=True)
class Ignore:
    why: Ignored


@dataclass(frozen=True, slots=True)
class Refuse:
    """Not admitted: counted, and answered by nothing at all."""


class Full(StrEnum):
    """Why an admitted peer's prompt is closed unread."""

    QUEUE = "queue"
    BACKLOG = "backlog"
    HOURLY_LIMIT = "hourly_limit"
    TOKEN_BUDGET = "token_budget"


class Said(StrEnum):
    """Does the peer hear of it? Once per burst and per window."""

    NOW = "now"
    BEFORE = "before"
    AT_THE_END = "at_the_end"  # of the backlog: one line that names how many


@dataclass(frozen=True, slots=True)
class TurnAway:
    """wait_s: until the next one is taken, which a limit knows."""

    why: Full
    said: Said
    wait_s: float | None = None


Verdict = Admit | Ignore | Refuse | TurnAway


def may_speak(*, echo: bool, group_id: str, policy: PeerPolicy) -> Admit | Ignore | Refuse:
    """The verdict on any message, before commands and dialogs."""
    if echo:
        return Ignore(Ignored.ECHO)
    if group_id:
        return Ignore(Ignored.GROUP)
    return Admit() if policy.admitted else Refuse()


@dataclass(frozen=True, slots=True)
class Load:
    """What a peer has under way. All times are Unix seconds, since they outlive a restart.

    waiting          prompts queued and not begun
    turns_at         starts of turns, at least those of the last hour
    tokens_today     used of max_tokens_per_day, which begins anew at tokens_anew_at
    told_until       of a limit that the peer has been told of: when the window ends that the line was about
    """

    waiting: int
    turns_at: Sequence[float] = ()
    tokens_today: int = 0
    tokens_anew_at: float = 0.0
    told_until: Mapping[str, float] = field(default_factory=dict)


class Door:
    """Lets prompts of admitted peers in while there is room. Remembers who was told of a full queue, until they get in."""

    def __init__(self) -> None:
        self._told: set[PeerKey] = set()  # that their queue is full
        self._closed: dict[PeerKey, int] = {}

    def may_run(
        self, who: PeerKey, policy: PeerPolicy, load: Load, *, late: bool, max_queue: int, at: float
    ) -> Admit | TurnAway:
        """The verdict on one more prompt at this time (Unix seconds).

        late   it comes from a backlog, of which BACKLOG are taken, whatever max_queue says of live ones
        """
        if load.waiting >= (max(BACKLOG, max_queue) if late else max_queue):
            if late:
                self._closed[who] = self._closed.get(who, 0) + 1
                return TurnAway(Full.BACKLOG, Said.AT_THE_END)
            said = Said.BEFORE if who in self._told else Said.NOW
            self._told.add(who)
            return TurnAway(Full.QUEUE, said)
        if policy.max_turns_per_hour and (wait_s := self._next_turn_in(policy.max_turns_per_hour, load, at)) > 0:
            return _limited(Full.HOURLY_LIMIT, load, at, wait_s)
        if policy.max_tokens_per_day and load.tokens_today >= policy.max_tokens_per_day:
            return _limited(Full.TOKEN_BUDGET, load, at, max(0.0, load.tokens_anew_at - at))
        self._told.discard(who)
        return Admit()

    def backlog_closed(self) -> Mapping[PeerKey, int]:
        """At a batch's end: how many of whom were closed since the last call."""
        closed, self._closed = self._closed, {}
        return closed

    def forget(self, who: PeerKey) -> None:
        """Denied or logged out."""
        self._told.discard(who)
        self._closed.pop(who, None)

    @staticmethod
    def _next_turn_in(limit: int, load: Load, at: float) -> float:
        """Seconds until a turn is taken again, 0 = now. What waits counts as begun now, so that a queue of eight
        cannot run past the limit; a start in the future is a clock that was set back, and counts for nothing."""
        starts = sorted(start for start in load.turns_at if at - HOUR_S < start <= at) + [at] * load.waiting
        return starts[len(starts) - limit] + HOUR_S - at if len(starts) >= limit else 0.0


def _limited(why: Full, load: Load, at: float, wait_s: float) -> TurnAway:
    """One line a window, also when it outlives a restart. A window that ends later than this one is of a clock that was
    set back."""
    told = at < load.told_until.get(why, 0.0) <= at + wait_s + 1.0
    return TurnAway(why, Said.BEFORE if told else Said.NOW, wait_s)


# --- when it was written --------------------------------------------------------------------------------------


def written_at(created_at_ms: int | None, *, offset_ms: int | None, received_at: float) -> float:
    """The channel's time of a message on our clock, in Unix seconds; its arrival where the channel says nothing.

    offset_ms   the account's smallest (arrival - created) of late: the clocks' difference, and the fastest journey
    """
    if created_at_ms is None:
        return received_at
    return min(received_at, (created_at_ms + (offset_ms or 0)) / 1000)


def is_late(written: float, *, received_at: float, first_answer: bool, late_s: float) -> bool:
    """Written while nobody listened: older than late_s, or part of the first answer after polling began."""
    return first_answer or received_at - written > late_s


# --- the words ------------------------------------------------------------------------------------------------

_CONTROLS = {code: None for code in [*range(0x20), *range(0x7F, 0xA0)] if code not in (0x0A, 0x09)}
_SURROGATE = re.compile("[\ud800-\udfff]")


def sanitise(text: str) -> str:
    """Without control characters but for line breaks and tabs; every line break is \\n; surrogate halves that belong
    together are joined, lone ones become U+FFFD. What is left can be encoded as UTF-8. Bidi characters stay: they are
    part of how people write."""
    if _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)


def cap(text: str, limit: int) -> tuple[str, int]:
    """At most `limit` characters of a text, cut between visible characters, and how many are missing."""
    end = cut(text, limit)
    return text[:end], len(text) - end


def cap_all(texts: Sequence[str], limit: int) -> tuple[tuple[str, ...], int]:
    """As cap, for the sum of several texts: what comes first is served first."""
    kept: list[str] = []
    missing = 0
    for text in texts:
        left, gone = cap(text, limit)
        kept.append(left)
        # Nothing follows a cut: a later text that happens to be short would look as if it were whole by design.
        limit = 0 if gone else limit - len(left)
        missing += gone
    return tuple(kept), missing


# --- the language of notices ----------------------------------------------------------------------------------

_CHINESE = re.compile("[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# A word stands between blanks and consists of Latin letters, but for the marks around and the ' or - inside it.
_WORD = re.compile(r"(?<!\S)[^\w\s]*[A-Za-z\u00c0-\u024f]+(?:['’-][A-Za-z\u00c0-\u024f]+)*[^\w\s]*(?!\S)")


class WrittenAs(StrEnum):
    """What kind of message a text was: a command never switches the language."""

    COMMAND = "command"
    WORDS = "words"


def language_after(text: str, written_as: WrittenAs, *, before: str) -> str:
    """ "zh" once a message contains Chinese; "en" comes back with two words of Latin letters and no Chinese."""
    if written_as is WrittenAs.COMMAND:
        return before
    if _CHINESE.search(text):
        return "zh"
    words = _WORD.finditer(text)
    return "en" if next(words, None) and next(words, None) else before
