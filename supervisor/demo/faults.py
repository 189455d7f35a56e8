"""The fault switches of the simulated service: one Struct each, and the panel that counts what they struck.

A switch is set by its name (the class name in snake case) and parameters, for one bot or for all; any number may be
set together. Wire switches spoil the transport of one path, the others change what the service says or does. The
panel decides whether a switch strikes; state.py and ilink.py ask it and do the striking.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Switch(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag=_snake, forbid_unknown_fields=True):
    """What every switch takes: it lets `after` chances go by, then strikes `times` times (None: until cleared)."""

    bot: str = ""  # one bot's id; empty: every bot
    after: int = 0
    times: int | None = None


class WireSwitch(Switch, frozen=True, kw_only=True):
    """Spoils the transport of one endpoint.

    path  an endpoint's last words ("getupdates", "sendmessage", "msg/notifystart", "cdn/upload" ...) or "*"
    when  before: nothing happened at the service · after: the request was carried out and only its answer is spoiled
    """

    path: str = "*"
    when: Literal["before", "after"] = "before"


class HttpStatus(WireSwitch, frozen=True, kw_only=True):
    status: int = 500
    body: str = ""
    headers: dict[str, str] = {}


class HtmlPage(WireSwitch, frozen=True, kw_only=True):
    """A captive portal: 200 with a page instead of JSON."""


class FixedAnswer(WireSwitch, frozen=True, kw_only=True):
    """200 with exactly this JSON: an unknown code, a bare {}, anything."""

    body: Any = {}


class EmptyBody(WireSwitch, frozen=True, kw_only=True):
    pass


class NeverAnswer(WireSwitch, frozen=True, kw_only=True):
    """Silence until the client hangs up."""


class CloseUnanswered(WireSwitch, frozen=True, kw_only=True):
    """The connection breaks before the first byte of an answer."""


class TruncatedJson(WireSwitch, frozen=True, kw_only=True):
    """A well-formed answer of HTTP whose JSON ends in the middle."""

    when: Literal["before", "after"] = "after"


class CutBody(WireSwitch, frozen=True, kw_only=True):
    """The connection breaks in the middle of an announced body."""

    when: Literal["before", "after"] = "after"


class DribbledBody(WireSwitch, frozen=True, kw_only=True):
    """The headers at once, the body a few bytes at a time."""

    when: Literal["before", "after"] = "after"
    gap_ms: int = 50
    step_bytes: int = 1


class Late(WireSwitch, frozen=True, kw_only=True):
    """The answer comes after so long."""

    when: Literal["before", "after"] = "after"
    delay_ms: int = 1000


class Hang(Switch, frozen=True, kw_only=True):
    """A poll that nothing ends for so long, messages neither: beyond the announced hold."""

    hang_ms: int = 60_000


class NoHold(Switch, frozen=True, kw_only=True):
    """Polls are answered at once, empty or not."""


class HonourHold(Switch, frozen=True, kw_only=True):
    """A client's own longpolling_timeout_ms is obeyed; without this switch it is only mirrored."""


class StaleSession(Switch, frozen=True, kw_only=True):
    """-14 to authenticated calls, in either envelope or both.

    path   an endpoint, or "*"
    until  cleared: by the panel only · notifystart: that call revives the bot
    """

    path: str = "*"
    envelope: Literal["errcode", "ret", "both"] = "errcode"
    until: Literal["cleared", "notifystart"] = "cleared"


class RejectSend(Switch, frozen=True, kw_only=True):
    """sendmessage is refused. `after=2, times=1` refuses the third one only."""

    code: int = -2
    errmsg: str = "prepare failed"
    envelope: Literal["errcode", "ret"] = "ret"


class Throttle(Switch, frozen=True, kw_only=True):
    """`count` sends inside `window_ms` start a pause of `pause_ms`; a try during the pause starts it anew."""

    count: int = 3
    window_ms: int = 1000
    pause_ms: int = 3_600_000


class NoMessageId(Switch, frozen=True, kw_only=True):
    """A send is accepted without an id: as {"ret":0}, as {}, or as nothing at all; delivered or (usually) not."""

    answer: Literal["ret", "object", "empty"] = "ret"
    delivery: Literal["dropped", "delivered"] = "dropped"


class StringIds(Switch, frozen=True, kw_only=True):
    """Message ids as JSON strings."""


class HugeIds(Switch, frozen=True, kw_only=True):
    """Inbound message ids from 2^64-1 downwards."""


class Duplicate(Switch, frozen=True, kw_only=True):
    """Messages are handed out twice.

    mode  same_batch · next_poll: the same id again · new_id: next poll, another id, same sender, content and time
    """

    mode: Literal["same_batch", "next_poll", "new_id"] = "same_batch"


class Replay(Switch, frozen=True, kw_only=True):
    """What was handed out comes again, same id, so long after."""

    after_ms: int = 1000


class Rewind(Switch, frozen=True, kw_only=True):
    """A service that keeps messages until it sees a newer cursor: an older one is handed the rest again."""


class OddCursor(Switch, frozen=True, kw_only=True):
    value: Literal["empty", "absent"] = "empty"


class OddHint(Switch, frozen=True, kw_only=True):
    """longpolling_timeout_ms as given: null, 0, -1, "35000", 1e12; `mode="absent"` leaves it out."""

    value: Any = None
    mode: Literal["value", "absent"] = "value"


class RetZero(Switch, frozen=True, kw_only=True):
    """getupdates answers carry ret 0."""


class IdOnlyQuotes(Switch, frozen=True, kw_only=True):
    """Quotes carry svr_id and nothing else, as newer phones send them."""


class StrictHeaders(Switch, frozen=True, kw_only=True):
    """One of the six headers missing or malformed: -14, token good or not."""


class TruncateText(Switch, frozen=True, kw_only=True):
    """Phones show only the beginning of a long text; the answer says nothing about it."""

    limit: int = 2000
    unit: Literal["characters", "bytes"] = "characters"


class RefuseTyping(Switch, frozen=True, kw_only=True):
    path: Literal["getconfig", "sendtyping"] = "getconfig"
    code: int = -4
    errmsg: str = "GetTypingTicket rpc failed"


class RefuseUpload(Switch, frozen=True, kw_only=True):
    """getuploadurl fails for this account."""

    code: int = -2
    errmsg: str = ""


class UploadParamOnly(Switch, frozen=True, kw_only=True):
    """getuploadurl names no full URL."""


class NoUploadUrl(Switch, frozen=True, kw_only=True):
    """getuploadurl succeeds and names neither URL nor parameter."""


class ParamUploadFails(Switch, frozen=True, kw_only=True):
    """Uploads through upload_param above a size get HTTP 500; the full URL works."""

    over_bytes: int = 50_000


class NoEncryptedParam(Switch, frozen=True, kw_only=True):
    """A CDN upload is answered 200 without x-encrypted-param."""


class ShortDownload(Switch, frozen=True, kw_only=True):
    """A CDN download lacks its last bytes, with a matching content-length."""

    missing_bytes: int = 7


class BadPadding(Switch, frozen=True, kw_only=True):
    """A CDN download ends in a block no PKCS#7 reader accepts."""


class WrongKey(Switch, frozen=True, kw_only=True):
    """Messages name a key that does not fit their object."""


Known = (
    HttpStatus
    | HtmlPage
    | FixedAnswer
    | EmptyBody
    | NeverAnswer
    | CloseUnanswered
    | TruncatedJson
    | CutBody
    | DribbledBody
    | Late
    | Hang
    | NoHold
    | HonourHold
    | StaleSession
    | RejectSend
    | Throttle
    | NoMessageId
    | StringIds
    | HugeIds
    | Duplicate
    | Replay
    | Rewind
    | OddCursor
    | OddHint
    | RetZero
    | IdOnlyQuotes
    | StrictHeaders
    | TruncateText
    | RefuseTyping
    | RefuseUpload
    | UploadParamOnly
    | NoUploadUrl
    | ParamUploadFails
    | NoEncryptedParam
    | ShortDownload
    | BadPadding
    | WrongKey
)

S = TypeVar("S", bound=Switch)


@dataclass(slots=True)
class Armed:
    """One switch that is set, and what it saw. struck: bots it struck; spared: bots it no longer applies to."""

    switch: Switch
    chances: int = 0
    strikes: int = 0
    struck: set[str] = field(default_factory=set)
    spared: set[str] = field(default_factory=set)

    def concerns(self, bot_id: str) -> bool:
        return self.switch.bot in ("", bot_id) and bot_id not in self.spared

    def strike(self, bot_id: str) -> bool:
        """Counts one chance; True when it strikes."""
        self.chances += 1
        times = self.switch.times
        if self.chances <= self.switch.after or (times is not None and self.strikes >= times):
            return False
        self.strikes += 1
        self.struck.add(bot_id)
        return True


@dataclass(slots=True)
class Panel:
    """Every switch that is set, by its number."""

    armed: dict[int, Armed] = field(default_factory=dict)
    _last_number: int = 0

    def set(self, switch: Switch) -> int:
        self._last_number += 1
        self.armed[self._last_number] = Armed(switch)
        return self._last_number

    def clear(self, *, number: int | None = None, name: str | None = None) -> int:
        """Clears one by number, all of a name, or all; returns how many."""
        gone = [
            n
            for n, armed in self.armed.items()
            if number in (None, n) and name in (None, type(armed.switch).__struct_config__.tag)
        ]
        for n in gone:
            del self.armed[n]
        return len(gone)

    def strike(self, kind: type[S], bot_id: str, *, path: str = "") -> S | None:
        """The first switch of this kind that strikes now; every one that was asked counts a chance."""
        struck: S | None = None
        for armed in self.armed.values():
            switch = armed.switch
            if not isinstance(switch, kind) or not armed.concerns(bot_id):
                continue
            if path and getattr(switch, "path", "*") not in ("*", path):
                continue
            if armed.strike(bot_id) and struck is None:
                struck = switch
        return struck

    def on(self, kind: type[S], bot_id: str) -> S | None:
        """A standing mode: the switch when it is set, without counting."""
        for armed in self.armed.values():
            if isinstance(armed.switch, kind) and armed.concerns(bot_id):
                return armed.switch
        return None

    def revive(self, bot_id: str) -> None:
        """notifystart ends a StaleSession that waits for it."""
        for armed in self.armed.values():
            switch = armed.switch
            if isinstance(switch, StaleSession) and switch.until == "notifystart" and bot_id in armed.struck:
                armed.spared.add(bot_id)

    def listing(self) -> list[dict[str, Any]]:
        return [
            {"number": n, "chances": a.chances, "strikes": a.strikes, "switch": msgspec.to_builtins(a.switch)}
            for n, a in self.armed.items()
        ]
