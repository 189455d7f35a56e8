"""What the gateway lets through: whose token, which call, how many at once, and how much of the day's tokens.

In come tokens, paths and headers; out go a Holder, a Call or a Refusal in the words of the dialect that was spoken.
gateway.py performs it; gatekeeper.py, on the supervisor's side, uses upstream_for and Ledger.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from protocol.gateway import Dialect, Issue, Upstream
from protocol.ids import LeaseKey, PeerKey
from supervisor.core.policy import Agent

BLOCK_TOKENS = 20_000  # an allowance is lent in pieces of it, so that a crash of either side overspends one at most
CALLS_PER_WORKER = 8  # an agent with helpers of its own asks several things at once
CALLS = 64
BODY_BYTES = 32 * 1024 * 1024  # one request: what the largest model server takes
BODIES_BYTES = 128 * 1024 * 1024  # of all requests together


# --- which model server ---------------------------------------------------------------------------------------

BASE_URLS = {
    Dialect.OPENAI: "https://api.openai.com/v1",
    Dialect.ANTHROPIC: "https://api.anthropic.com",
    Dialect.GOOGLE: "https://generativelanguage.googleapis.com",
}
PROVIDERS = {
    "openai": Dialect.OPENAI,
    "openai-compatible": Dialect.OPENAI,
    "anthropic": Dialect.ANTHROPIC,
    "google": Dialect.GOOGLE,
}
# An agent program may choose its model itself. Then the key's usual name says whose it is.
USUAL_NAMES = {
    "OPENAI_API_KEY": Dialect.OPENAI,
    "ANTHROPIC_API_KEY": Dialect.ANTHROPIC,
    "GEMINI_API_KEY": Dialect.GOOGLE,
    "GOOGLE_API_KEY": Dialect.GOOGLE,
}


def upstream_for(agent: Agent, key: str | None) -> Upstream | str:
    """The one model server that this agent may reach, or what is missing in the settings.

    key   from the variable that api_key_env names; None = not set
    """
    provider, colon, _ = agent.model.partition(":")
    if colon and provider in PROVIDERS:
        dialect = PROVIDERS[provider]
    elif agent.key_variable in USUAL_NAMES:
        dialect = USUAL_NAMES[agent.key_variable]
    elif agent.base_url:
        dialect = Dialect.OPENAI
    else:
        return 'no model is configured: name one by [agent] model, such as "openai:NAME", and its key by api_key_env'
    if provider == "openai-compatible" and not agent.base_url:
        return '[agent] base_url is missing: model = "openai-compatible:NAME" needs it'
    if agent.key_variable and key is None:
        why = "which [agent] api_key_env names" if agent.api_key_env else f"where {agent.host} has its key"
        return f"the variable {agent.key_variable}, {why}, is not set"
    if not agent.key_variable and not agent.base_url:
        return "[agent] api_key_env is missing: it names the variable that holds the model's key"
    return Upstream(dialect, agent.base_url.rstrip("/") or BASE_URLS[dialect], key or "")


# --- which call -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """path   below the upstream's base_url
    metered   costs tokens
    counts    a streamed answer tells its usage only when asked to (OpenAI's chat completions)
    """

    dialect: Dialect
    path: str
    metered: bool = True
    counts: bool = True


_CALLS = {
    ("POST", "/v1/chat/completions"): Call(Dialect.OPENAI, "/chat/completions", counts=False),
    ("POST", "/v1/responses"): Call(Dialect.OPENAI, "/responses"),
    ("POST", "/v1/messages"): Call(Dialect.ANTHROPIC, "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"): Call(Dialect.ANTHROPIC, "/v1/messages/count_tokens", metered=False),
}
# Nothing that could leave the folder of models: a path is joined to the upstream's.
_GOOGLE = re.compile(r"/v1beta/models/[A-Za-z0-9][A-Za-z0-9._-]*:(?:streamGenerateContent|generateContent)")


def call_for(method: str, path: str, served: Dialect) -> Call | None:
    """None: the gateway has no such call. served: the dialect of this worker's model server"""
    if method == "POST" and _GOOGLE.fullmatch(path):
        return Call(Dialect.GOOGLE, path)
    if (method, path) == ("GET", "/v1/models") and served is not Dialect.GOOGLE:
        return Call(served, "/models" if served is Dialect.OPENAI else path, metered=False)
    return _CALLS.get((method, path))


def spoken(path: str) -> Dialect:
    """In whose words a refusal of this path is put."""
    if path.startswith("/v1beta/"):
        return Dialect.GOOGLE
    return Dialect.ANTHROPIC if path.startswith("/v1/messages") else Dialect.OPENAI


def token_in(headers: Mapping[str, str]) -> str:
    """The worker's token, from whichever header its library uses; "" without one. Names in lower case."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and bearer:
        return bearer.strip()
    return headers.get("x-api-key") or headers.get("x-goog-api-key") or ""


PASSED_ON = ("accept", "content-type", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta")
PASSED_BACK = ("content-type", "retry-after", "retry-after-ms", "x-should-retry", "request-id", "x-request-id")
_LIMITS = re.compile(r"(?:x|anthropic)-ratelimit-[a-z-]+")


def headers_on(headers: Mapping[str, str], upstream: Upstream) -> dict[str, str]:
    """What goes to the model server: named headers alone, and the key in the worker's token's stead."""
    passed = {name: headers[name] for name in PASSED_ON if name in headers and headers[name].isascii()}
    passed["accept-encoding"] = "identity"  # the answer is read for its usage
    if upstream.key:
        match upstream.dialect:
            case Dialect.OPENAI:
                passed["authorization"] = f"Bearer {upstream.key}"
            case Dialect.ANTHROPIC:
                passed["x-api-key"] = upstream.key
            case Dialect.GOOGLE:
                passed["x-goog-api-key"] = upstream.key
    return passed


def headers_back(headers: Mapping[str, str], upstream: Upstream) -> dict[str, str]:
    """What comes back of the model server's: named headers alone, and none that holds the key."""
    return {
        name: value
        for name, value in headers.items()
        if (name in PASSED_BACK or _LIMITS.fullmatch(name)) and not (upstream.key and upstream.key in value)
    }


# --- refusals -------------------------------------------------------------------------------------------------


class Why(StrEnum):
    TOKEN = "token"
    NO_SUCH_CALL = "no_such_call"
    NOT_CONFIGURED = "not_configured"
    WRONG_DIALECT = "wrong_dialect"
    TOO_MANY = "too_many"
    BUSY = "busy"
    BODY = "body"
    TOO_LONG = "too_long"
    BUDGET = "budget"
    KEY_REFUSED = "key_refused"
    UNREACHABLE = "unreachable"
    UPSTREAM = "upstream"


# status, kind in OpenAI's and Anthropic's words, Google's status
_SHAPES: dict[Why, tuple[int, str, str]] = {
    Why.TOKEN: (401, "authentication_error", "UNAUTHENTICATED"),
    Why.NO_SUCH_CALL: (404, "not_found_error", "NOT_FOUND"),
    Why.NOT_CONFIGURED: (403, "permission_error", "PERMISSION_DENIED"),
    Why.WRONG_DIALECT: (404, "not_found_error", "NOT_FOUND"),
    Why.TOO_MANY: (429, "rate_limit_error", "RESOURCE_EXHAUSTED"),
    Why.BUSY: (503, "overloaded_error", "UNAVAILABLE"),
    Why.BODY: (400, "invalid_request_error", "INVALID_ARGUMENT"),
    Why.TOO_LONG: (413, "request_too_large", "INVALID_ARGUMENT"),
    # Not 429, which agents retry for minutes.
    Why.BUDGET: (403, "permission_error", "PERMISSION_DENIED"),
    Why.KEY_REFUSED: (403, "permission_error", "PERMISSION_DENIED"),
    Why.UNREACHABLE: (502, "api_error", "UNAVAILABLE"),
    Why.UPSTREAM: (502, "api_error", "UNAVAILABLE"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    why: Why
    message: str

    @property
    def status(self) -> int:
        return _SHAPES[self.why][0]

    def body(self, dialect: Dialect) -> bytes:
        """As the agent's library expects an error to look."""
        status, kind, google = _SHAPES[self.why]
        error: dict[str, object]
        match dialect:
            case Dialect.OPENAI:
                error = {"error": {"message": self.message, "type": kind, "param": None, "code": self.why.value}}
            case Dialect.ANTHROPIC:
                error = {"type": "error", "error": {"type": kind, "message": self.message}}
            case Dialect.GOOGLE:
                error = {"error": {"code": status, "message": self.message, "status": google}}
        return json.dumps(error).encode()


# --- whose token, how many, how much --------------------------------------------------------------------------


def digest(token: str) -> bytes:
    """The gateway keeps no token, and looks one up in no time that depends on how much of it is right."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


@dataclass(slots=True)
class Holder:
    """A worker with a token. left: tokens of its loan, below zero when an answer was longer than that."""

    issue: Issue
    left: int = 0
    running: int = 0
    revoked: bool = False

    @property
    def key(self) -> LeaseKey:
        return self.issue.key

    def lent(self, tokens: int) -> None:
        """What was spent beyond the last loan is in the supervisor's books already, and off what it lends."""
        self.left = max(0, self.left) + tokens

    @property
    def must_ask(self) -> bool:
        """No further call before the supervisor has lent some more."""
        return self.issue.limited and self.left <= 0


class Desk:
    """Knows who holds a token. One peer has one: a new generation's ends the older ones'."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, Holder] = {}
        self._by_peer: dict[PeerKey, Holder] = {}
        self.running = 0
        self.body_bytes = 0

    def issue(self, issue: Issue) -> None:
        self._end(issue.key.who)
        holder = Holder(issue)
        self._by_digest[issue.digest] = self._by_peer[issue.key.who] = holder

    def revoke(self, key: LeaseKey) -> None:
        holder = self._by_peer.get(key.who)
        if holder is not None and holder.key == key:
            self._end(key.who)

    def whose(self, token: str) -> Holder | None:
        return self._by_digest.get(digest(token)) if token else None

    def holder(self, key: LeaseKey) -> Holder | None:
        found = self._by_peer.get(key.who)
        return found if found is not None and found.key == key else None

    def enter(self, holder: Holder) -> Refusal | None:
        """One more call of this worker; leave() afterwards unless it was refused."""
        if holder.running >= CALLS_PER_WORKER:
            return Refusal(Why.TOO_MANY, f"{CALLS_PER_WORKER} requests of this agent are running already")
        if self.running >= CALLS:
            return Refusal(Why.BUSY, "the bridge's model gateway is at its limit of requests; try again in a moment")
        holder.running += 1
        self.running += 1
        return None

    def leave(self, holder: Holder) -> None:
        holder.running -= 1
        self.running -= 1

    def take_bytes(self, count: int, so_far: int) -> Refusal | None:
        """Count bytes of a request's body as held; give_bytes() afterwards, refused or not."""
        self.body_bytes += count
        if so_far + count > BODY_BYTES:
            return Refusal(Why.TOO_LONG, f"a request may have {BODY_BYTES} bytes at most")
        if self.body_bytes > BODIES_BYTES:
            return Refusal(Why.BUSY, "the bridge's model gateway holds too many long requests; try again in a moment")
        return None

    def give_bytes(self, count: int) -> None:
        self.body_bytes -= count

    def _end(self, who: PeerKey) -> None:
        old = self._by_peer.pop(who, None)
        if old is not None:
            old.revoked = True
            del self._by_digest[old.issue.digest]


class Ledger:
    """The supervisor's side of one worker's loans: what is lent and not yet reported as spent."""

    def __init__(self) -> None:
        self.lent = 0

    def lend(self, *, limit: int, used: int) -> int:
        """How much to lend now. limit: of the day, 0 = none. used: of it, this peer, all workers"""
        if limit == 0:
            return BLOCK_TOKENS
        block = max(0, min(BLOCK_TOKENS, limit - used - self.lent))
        self.lent += block
        return block

    def spent(self, tokens: int) -> None:
        self.lent = max(0, self.lent - tokens)
