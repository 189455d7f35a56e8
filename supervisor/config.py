"""Settings: every key of bridge.toml and peers.toml with type, default, unit and range, and what we read of the environment.

In come the two files, out comes one frozen Settings, or a ConfigError whose one line names file, key and value. The
classes below (with Admission, Guests, Agent and PeerOverrides of core/policy.py) are the table: a section is a class,
a key is a field, the Range beside its type is its check, the comment behind it its meaning in docs/. Nothing is repaired silently: what is merely odd is in
Settings.warnings. No other module reads the settings files or the environment.
"""

import difflib
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from protocol.agents import HOSTS, TOOLS, HostFacts
from protocol.errors import BridgeError
from protocol.spec import IsolationMode
from supervisor.core.policy import Admission, Agent, AgentOverrides, Guests, PeerOverrides, Range
from supervisor.home import Home

SECONDS = Range(0.001, 7 * 86400)
MEGABYTES = Range(1, 1024 * 1024 * 1024)
BYTES = Range(1, 1024 * 1024 * 1024)


class ConfigError(BridgeError):
    """The operator has to change a file: one line with file, key and reason. Exit code 2."""


class PeersDamaged(ConfigError):
    """peers.toml is not TOML (any more)."""


@dataclass(frozen=True, slots=True)
class WeChat:
    base_url: str = "https://ilinkai.weixin.qq.com"  # where the iLink API is
    cdn_base_url: str = "https://novac2c.cdn.weixin.qq.com/c2c"  # where pictures and files are
    bot_agent: str = "bridge-supervisor/0.1.0"  # what we call ourselves to WeChat
    channel_version: str = "0.1.0"  # and our version
    proxy: str = "none"  # none, env or a URL; never used for loopback
    trusted_hosts: tuple[str, ...] = ("weixin.qq.com",)  # domains that login and downloads may move us to
    poll_hold_ms: Annotated[float, Range(0, 600_000)] = 0.0  # longest wait of one poll; 0 = the server decides
    typing_indicator: bool = True  # show "typing" while a turn runs
    max_inbound_chars: Annotated[int, Range(1, 1_000_000)] = 8000  # longest message; more is cut, with a marker
    max_reply_chars: Annotated[int, Range(50, 16_000)] = 2000  # one bubble, in UTF-16 units
    max_media_bytes: Annotated[int, BYTES] = 20 * 1024 * 1024  # one inbound file
    max_send_bytes: Annotated[int, BYTES] = 20 * 1024 * 1024  # one outbound file
    send_budget: Annotated[int, Range(1, 1000)] = 10  # bot messages per inbound message
    send_budget_reserve: Annotated[int, Range(0, 999)] = 2  # of these, for the end of the answer and a dialog
    reply_window_hours: Annotated[float, Range(0.001, 24 * 365)] = 24.0  # how long a message may be answered
    send_gap_ms: Annotated[float, Range(0, 600_000)] = 600.0  # between bubbles, after two per inbound message; 0 = off
    max_answer_chars: Annotated[int, Range(1, 100_000_000)] = 200_000  # an answer ends there


@dataclass(frozen=True, slots=True)
class Workers:
    concurrency: Annotated[int, Range(1, 64)] = 2  # turns at once
    max_warm: Annotated[int, Range(0, 10_000)] = 32  # idle workers kept; the longest idle goes first
    warm_mb: Annotated[int, Range(0, MEGABYTES.high)] = 0  # all idle trees together; 0 = a quarter of the memory
    disk_mb: Annotated[int, MEGABYTES] = 4096  # growth of one peer's folders
    min_free_mb: Annotated[int, Range(0, MEGABYTES.high)] = 512  # below it no turn starts
    uid_base: Annotated[int, Range(1000, 2_000_000_000)] = 210_000  # as root: one uid per peer, for life
    idle_minutes: Annotated[float, Range(0.001, 7 * 24 * 60)] = 30.0  # an idle worker is reaped then
    turn_timeout_minutes: Annotated[float, Range(0.001, 7 * 24 * 60)] = 60.0  # a turn is ended then
    stop_grace_s: Annotated[float, Range(0.001, 600)] = 5.0  # a stopped turn may take that long to end
    memory_mb: Annotated[int, Range(64, MEGABYTES.high)] = 2048  # memory of one worker tree
    processes: Annotated[int, Range(8, 100_000)] = 128  # of one worker tree; threads count
    file_mb: Annotated[int, MEGABYTES] = 1024  # largest file a worker may write
    open_files: Annotated[int, Range(64, 1_000_000)] = 1024  # of one process
    isolation: IsolationMode = IsolationMode.REQUIRED  # required: no worker without its layers


@dataclass(frozen=True, slots=True)
class Timers:
    ack_s: Annotated[float, SECONDS] = 4.0  # first waiting line
    ack_again_s: Annotated[float, SECONDS] = 60.0  # second and last waiting line
    stop_hint_s: Annotated[float, SECONDS] = 30.0  # a running turn says once that /stop ends it
    typing_s: Annotated[float, SECONDS] = 5.0  # typing is shown again
    ready_s: Annotated[float, SECONDS] = 20.0  # a worker must be sandboxed by then
    open_s: Annotated[float, SECONDS] = 60.0  # and its agent program open this much later
    hang_s: Annotated[float, SECONDS] = 10.0  # without a pulse
    crash_window_s: Annotated[float, SECONDS] = 60.0  # deaths before ready are counted over it
    late_s: Annotated[float, SECONDS] = 600.0  # older messages are marked late
    drain_s: Annotated[float, SECONDS] = 110.0  # running turns at a shutdown


@dataclass(frozen=True, slots=True)
class JournalKeeping:
    """[journal]"""

    keep_days: Annotated[float, Range(0.001, 36_500)] = 30.0  # texts; ids are kept 7 days at least


@dataclass(frozen=True, slots=True)
class MediaKeeping:
    """[media]"""

    per_peer_mb: Annotated[int, MEGABYTES] = 512  # attachments of one peer; the oldest go first
    total_mb: Annotated[int, MEGABYTES] = 4096  # of all peers


@dataclass(frozen=True, slots=True)
class Hooks:
    """Program and arguments; JSON on stdin. () = no hook."""

    on_expired: tuple[str, ...] = ()  # a login has expired
    on_outage: tuple[str, ...] = ()  # ten minutes without a good poll, and its end
    on_crash_loop: tuple[str, ...] = ()  # workers keep dying
    on_dead_letter: tuple[str, ...] = ()  # something could not be handled or delivered


@dataclass(frozen=True, slots=True)
class Settings:
    """bridge.toml with peers.toml merged into it.

    peers          what counts: peers_by_hand with peers.toml over it, key by key
    peers_by_hand  [peers] of bridge.toml alone
    warnings       lines for the log and `doctor`
    file           the settings file's name, for messages
    """

    wechat: WeChat = WeChat()
    admission: Admission = Admission()
    workers: Workers = Workers()
    agent: Agent = Agent()
    guests: Guests = Guests()
    accounts: Mapping[str, PeerOverrides] = field(default_factory=dict)
    timers: Timers = Timers()
    journal: JournalKeeping = JournalKeeping()
    media: MediaKeeping = MediaKeeping()
    snippets: Mapping[str, str] = field(default_factory=dict)
    hooks: Hooks = Hooks()
    peers: Mapping[str, PeerOverrides] = field(default_factory=dict)
    peers_by_hand: Mapping[str, PeerOverrides] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    file: str = "bridge.toml"

    def with_stored_peers(self, stored: Mapping[str, PeerOverrides]) -> "Settings":
        """The same settings with these entries of peers.toml. raises ConfigError"""
        merged = dict(self.peers_by_hand)
        for key, as_stored in stored.items():
            overrides = _overrides_with_paths(Where("peers.toml", ("peers", key)), as_stored)
            merged[key] = merged[key].overridden(overrides) if key in merged else overrides
        settings = replace(self, peers=merged)
        for key, overrides in merged.items():
            mine = key in stored and (stored[key].tools is not None or stored[key].agent is not None)
            _check_agent(settings, Where("peers.toml" if mine else self.file, ("peers", key)), overrides)
        return settings


# Read once, when the program or an account starts; `reload` says so of those that it finds changed.
AT_START = frozenset(
    {
        *(f"timers.{name}" for name in ("ready_s", "open_s", "hang_s", "crash_window_s")),
        *(f"wechat.{name}" for name in ("base_url", "cdn_base_url", "bot_agent", "channel_version", "proxy")),
        *(f"wechat.{name}" for name in ("trusted_hosts", "poll_hold_ms", "max_reply_chars")),
        "workers.isolation",
    }
)


def waiting_for_a_start(now: Settings, new: Settings) -> tuple[str, ...]:
    """The changed keys that count from the next start on."""

    def value(settings: Settings, key: str) -> object:
        section, _, name = key.partition(".")
        return getattr(getattr(settings, section), name)

    return tuple(sorted(key for key in AT_START if value(now, key) != value(new, key)))


SECTIONS = tuple(f.name for f in fields(Settings) if f.name not in {"peers_by_hand", "warnings", "file"})


class OnDamage(Enum):
    """What to do with a peers.toml that is not TOML."""

    SET_ASIDE = "set_aside"  # at the start: moved away with a warning, the rest keeps working
    REFUSE = "refuse"  # at a reload: PeersDamaged, nothing changes


def load(home: Home, config_file: Path | None = None, *, on_damage: OnDamage = OnDamage.REFUSE) -> Settings:
    """Read both files.

    config_file   --config; must exist then. None: <home>/bridge.toml, which may be missing
    raises        ConfigError
    """
    settings = _read_settings(config_file or home.bridge_toml, must_exist=config_file is not None)
    try:
        stored = read_peers(home.peers_toml)
    except PeersDamaged as damaged:
        if on_damage is OnDamage.REFUSE:
            raise
        aside = _set_aside(home.peers_toml)
        line = f"{damaged}; set aside as {aside.name}, everybody it admitted or refused must be named again"
        settings, stored = replace(settings, warnings=(*settings.warnings, line)), {}
    settings = settings.with_stored_peers(stored)
    _check_home_is_hidden(home, settings, stored)
    return settings


def read_peers(file: Path) -> dict[str, PeerOverrides]:
    """The entries of peers.toml; none when it does not exist. raises PeersDamaged, ConfigError"""
    try:
        document = _parse(file, must_exist=False)
    except _NotToml as error:
        raise PeersDamaged(str(error)) from error
    where = Where(file.name)
    _no_unknown_keys(where, document, ("peers",))
    peers: dict[str, PeerOverrides] = _value(where.at("peers"), document.get("peers", {}), Mapping[str, PeerOverrides])
    for key in peers:
        _check_peer_name(where.at("peers", key), key)
    return peers


# --- the environment ------------------------------------------------------------------------------------------

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Environment:
    """What we read of it; None = not set or empty. variables: for api_key_env and proxies alone."""

    home: str | None
    log: str | None  # a level
    no_color: bool
    runtime_dir: str | None
    notify_socket: str | None
    watchdog_s: float | None
    journal_stream: str | None
    variables: Mapping[str, str] = field(repr=False)

    def api_key(self, agent: Agent) -> str | None:
        """The model's key, from the variable that the settings name."""
        return self.variables.get(agent.key_variable) or None if agent.key_variable else None

    def proxy(self, wechat: WeChat) -> str | None:
        """The proxy for HTTPS, by [wechat] proxy. None = go directly."""
        match wechat.proxy:
            case "none":
                return None
            case "env":
                names = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
                return next((self.variables[name] for name in names if self.variables.get(name)), None)
            case url:
                return url


def read_environment(variables: Mapping[str, str] = os.environ) -> Environment:
    """raises ConfigError: BRIDGE_LOG is no level"""
    level = variables.get("BRIDGE_LOG") or None
    if level is not None and level.lower() not in LOG_LEVELS:
        raise ConfigError(f"BRIDGE_LOG: expected one of {_either(LOG_LEVELS)}, got {_shown(level)}")
    watchdog = variables.get("WATCHDOG_USEC", "")
    return Environment(
        home=variables.get("BRIDGE_HOME") or None,
        log=level.lower() if level else None,
        no_color=bool(variables.get("NO_COLOR")),
        runtime_dir=variables.get("XDG_RUNTIME_DIR") or None,
        notify_socket=variables.get("NOTIFY_SOCKET") or None,
        watchdog_s=int(watchdog) / 1e6 if watchdog.isdecimal() else None,
        journal_stream=variables.get("JOURNAL_STREAM") or None,
        variables=variables,
    )


# --- files → TOML ---------------------------------------------------------------------------------------------


class _NotToml(ConfigError):
    pass


def _parse(file: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"{file}: no such file") from None
        return {}
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        raise _NotToml(
            f"{file.name}: line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8"
        ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _NotToml(f"{file.name}: {_syntax(str(error), text)}") from None
    except RecursionError:
        raise _NotToml(f"{file.name}: nested too deeply") from None


_POSITION = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
_ASSIGNMENT = re.compile(
    r"""^\s*(?P<key>(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_HEADER = re.compile(r"^\s*\[\[?\s*(?P<key>[^\]]+?)\s*\]")
_TWICE = ("Cannot overwrite a value", "Cannot declare", "Duplicate inline table key", "Cannot mutate")


def _syntax(message: str, text: str) -> str:
    """The parser's complaint with its place first; for a key set twice, the key, which the parser does not name."""
    found = _POSITION.search(message)
    lines = text.splitlines()
    if found is None or found["line"] is None:
        return f"line {max(len(lines), 1)}: the file ends too early: {_POSITION.sub('', message)}"
    number = int(found["line"])
    if message.startswith(_TWICE):
        return f"line {number}: {_key_before(lines[:number])} is set twice; keep one of them"
    hint = ""
    if (bare := re.match(r"\s*\[\s*(peers|accounts)\s*\.\s*([^\]\"']+)\]", lines[number - 1])) is not None:
        hint = f'; such a name needs quotes: [{bare[1]}."{bare[2].strip()}"]'
    return f"line {number}, column {found['column']}: {message[: found.start()]}{hint}"


def _key_before(lines: list[str]) -> str:
    """The key that is being set at the end of these lines, with its table's name."""
    key = ""
    for line in reversed(lines):
        if (header := _HEADER.match(line)) is not None:
            return f"{header['key']}.{key}" if key else f"[{header['key']}]"
        if not key and (assignment := _ASSIGNMENT.match(line)) is not None:
            key = assignment["key"]
    return key or "a key"


def _set_aside(file: Path) -> Path:
    aside = file.with_name(f"{file.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
    try:
        file.rename(aside)
    except OSError as error:
        raise ConfigError(f"{file}: damaged, and cannot be set aside: {error.strerror}") from error
    return aside


# --- TOML → our types -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a file, for messages."""

    file: str
    keys: tuple[str, ...] = ()

    def at(self, *keys: str) -> "Where":
        return Where(self.file, (*self.keys, *keys))

    @property
    def dotted(self) -> str:
        return ".".join(_quoted(key) for key in self.keys)

    def wrong(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.file}: {self.dotted}: {reason}" if self.keys else f"{self.file}: {reason}")

    def expected(self, what: str, value: Any) -> ConfigError:
        """What a secret key holds stays out of logs."""
        got = "" if _SECRET.intersection(self.keys) else f", got {_shown(value)}"
        return self.wrong(f"expected {what}{got}")


_SECRET = frozenset(
    {"env", "api_key_env", "proxy", "base_url", "cdn_base_url"}
)  # people paste keys and passwords there


def _read_settings(file: Path, *, must_exist: bool) -> Settings:
    document = _parse(file, must_exist=must_exist)
    where = Where(file.name)
    _no_unknown_keys(where, document, SECTIONS)
    hints = typing.get_type_hints(Settings, include_extras=True)
    sections = {name: _value(where.at(name), document[name], hints[name]) for name in SECTIONS if name in document}
    peers = sections.pop("peers", {})
    settings = Settings(**sections, peers_by_hand=peers, file=file.name)
    return _checked(settings, where)


def _value(where: Where, value: Any, kind: Any) -> Any:
    """One TOML value as the type of its field. raises ConfigError"""
    allowed: Range | None = None
    origin = typing.get_origin(kind)
    if origin is types.UnionType or origin is typing.Union:
        # TOML has no null: X | None is X, or absent.
        (kind,) = (one for one in typing.get_args(kind) if one is not type(None))
        origin = typing.get_origin(kind)
    if origin is Annotated:
        kind, allowed = typing.get_args(kind)
        origin = typing.get_origin(kind)
    if kind is bool:
        if not isinstance(value, bool):
            raise where.expected("true or false", value)
        return value
    if kind is int or kind is float:
        return _number(where, value, kind, allowed)
    if kind is str:
        return _text(where, value)
    if origin is tuple:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise where.expected('a list of texts, such as ["a", "b"]', value)
        return tuple(_text(where, one) for one in value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        choices = tuple(one.value for one in kind)
        if not isinstance(value, str) or value not in choices:
            raise where.expected(f"one of {_either(choices)}", value)
        return kind(value)
    if not isinstance(value, dict):
        raise where.expected("a table", value)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        _no_unknown_keys(where, value, tuple(hints))
        values = {name: _value(where.at(name), one, hints[name]) for name, one in value.items()}
        return typing.cast(Any, kind)(**values)
    _, of = typing.get_args(kind)
    return {name: _value(where.at(name), one, of) for name, one in value.items()}


def _number(where: Where, value: Any, kind: type, allowed: Range | None) -> Any:
    low, high = allowed or Range(float("-inf"), float("inf"))
    fits = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not fits or not low <= value <= high:
        what = "an integer" if kind is int else "a number"
        raise where.expected(f"{what} from {low:.15g} to {high:.15g}", value)
    return kind(value)


def _text(where: Where, value: Any) -> str:
    if not isinstance(value, str):
        raise where.expected("a text in quotes", value)
    if "\0" in value:
        raise where.wrong("holds a zero character")
    return value


def _no_unknown_keys(where: Where, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise where.at(key).wrong(f"unknown key; did you mean {_nearest(where, key, known)}?")


def _nearest(where: Where, key: str, known: tuple[str, ...]) -> str:
    """The valid key that was probably meant: the same word in another section, else the most alike here."""
    elsewhere = [name for name in _all_keys() if name[-1] == key]
    if elsewhere:
        return ".".join(elsewhere[0])
    best = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return where.at(*best).dotted


def _all_keys() -> list[tuple[str, ...]]:
    hints = typing.get_type_hints(Settings)
    return [(section, f.name) for section in SECTIONS if is_dataclass(hints[section]) for f in fields(hints[section])]


# --- checks that need more than one value ---------------------------------------------------------------------


def _checked(settings: Settings, where: Where) -> Settings:
    """Everything that a type and a range cannot say. peers.toml comes later, in with_stored_peers."""
    warnings: list[str] = []
    wechat, at = settings.wechat, where.at("wechat")
    _check_url(at.at("base_url"), wechat.base_url)
    _check_url(at.at("cdn_base_url"), wechat.cdn_base_url)
    if wechat.proxy not in ("none", "env") and not re.fullmatch(r"https?://[^/\s]+/?", wechat.proxy):
        raise at.at("proxy").expected('"none", "env" or a URL such as "http://127.0.0.1:3128"', wechat.proxy)
    if wechat.send_budget_reserve >= wechat.send_budget:
        raise at.at("send_budget_reserve").expected(
            f"an integer below wechat.send_budget, which is {wechat.send_budget}", wechat.send_budget_reserve
        )
    for host in wechat.trusted_hosts:
        if not re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", host):
            raise at.at("trusted_hosts").expected('domains such as "weixin.qq.com"', host)
    for name in ("bot_agent", "channel_version"):
        if not re.fullmatch(r"[!-~]{1,100}", getattr(wechat, name)):
            raise at.at(name).expected("a word of printable ASCII", getattr(wechat, name))
    if wechat.max_reply_chars > WeChat().max_reply_chars:
        warnings.append(
            f"{where.file}: wechat.max_reply_chars: above {WeChat().max_reply_chars}; WeChat may cut bubbles without an error"
        )

    admitted = []
    for name in settings.admission.allowed_peers:
        if not name.strip():
            warnings.append(f"{where.file}: admission.allowed_peers: an empty entry admits nobody")
            continue
        _check_peer_name(where.at("admission", "allowed_peers"), name)
        admitted.append(name)
    for section in ("accounts", "peers_by_hand"):
        for key in getattr(settings, section):
            _check_peer_name(where.at(section.removesuffix("_by_hand"), key), key)

    for name in settings.snippets:
        if not re.fullmatch(r"[\w-]{1,32}", name):
            raise where.at("snippets", name).wrong("expected a name of up to 32 letters, digits, _ and -")

    settings = replace(
        settings,
        admission=replace(settings.admission, allowed_peers=tuple(admitted)),
        agent=_with_paths(where.at("agent"), settings.agent),
        accounts={key: _overrides_with_paths(where.at("accounts", key), one) for key, one in settings.accounts.items()},
        peers_by_hand={
            key: _overrides_with_paths(where.at("peers", key), one) for key, one in settings.peers_by_hand.items()
        },
        warnings=tuple(warnings),
    )
    _check_agent(settings, where, PeerOverrides())
    for key, overrides in settings.accounts.items():
        if overrides.admitted is not None:
            raise where.at("accounts", key, "admitted").wrong("admits one peer at a time: it belongs to [peers.ID]")
        _check_agent(settings, where.at("accounts", key), overrides)
    return settings


def _check_url(where: Where, url: str) -> None:
    parts = _url(url)
    if parts is None or parts.query or parts.fragment:
        raise where.expected('a URL such as "https://ilinkai.weixin.qq.com"', url)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        # The account's token travels in a header of every call.
        raise where.expected("a URL that starts with https:// (http:// on loopback only)", url)


def _check_model_server(where: Where, agent: Agent) -> None:
    """The one place that models are at, whatever an agent program says."""
    parts = _url(agent.base_url)
    if parts is None or parts.query or parts.fragment or parts.username:
        raise where.expected('a URL such as "http://127.0.0.1:11434/v1"', agent.base_url)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK and agent.api_key_env:
        # In a network of one's own a server without a key is nothing unusual, but a key would be read on the way.
        raise where.expected("a URL that starts with https://, since it is sent a key", agent.base_url)


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _url(text: str) -> SplitResult | None:
    """None: not of HTTP, or not to be understood."""
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        return None
    return parts if known else None


def _check_peer_name(where: Where, name: str) -> None:
    if "*" in name:
        raise where.wrong(f"{_shown(name)} is a wildcard; name each peer by id or label")
    if not name.strip():
        raise where.wrong("expected an id or a label, got an empty name")


def _with_paths(where: Where, agent: Any) -> Any:
    """agent is an Agent or AgentOverrides: its paths made absolute, its variables' names checked."""
    for name in agent.env or ():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise where.at("env").wrong(f"{_shown(name)} is no name of a variable")
    if agent.api_key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", agent.api_key_env):
        raise where.at("api_key_env").wrong("expected the name of an environment variable, not the key itself")
    changes: dict[str, Any] = {}
    if agent.workspace:
        changes["workspace"] = _absolute(where.at("workspace"), agent.workspace)
    for name in ("read", "write"):
        if paths := getattr(agent, name):
            changes[name] = tuple(_absolute(where.at(name), path) for path in paths)
    return replace(agent, **changes)


def _overrides_with_paths(where: Where, overrides: PeerOverrides) -> PeerOverrides:
    if overrides.agent is None:
        return overrides
    return replace(overrides, agent=_with_paths(where.at("agent"), overrides.agent))


def _absolute(where: Where, path: str) -> str:
    expanded = os.path.expanduser(path)
    if not os.path.isabs(expanded):
        raise where.expected("an absolute path, or one below ~/", path)
    return os.path.normpath(expanded)


def _check_agent(settings: Settings, where: Where, overrides: PeerOverrides) -> None:
    """The agent that this entry leads to can be started, and its tool list is enforced exactly, on whatever account.

    where: [agent] at the top (no keys), or the entry itself
    """
    for agent in _possible_agents(settings, where, overrides):
        at = where.at("agent")
        facts = HOSTS.get(agent.host)
        if facts is None:
            raise at.at("host").expected(f"one of {_either(tuple(HOSTS))}", agent.host)
        if facts.needs_command and not (agent.command and agent.command[0]):
            raise at.at("command").wrong(
                f'host "{agent.host}" needs a program, such as command = ["PROGRAM", "ARGUMENT"]'
            )
        if agent.base_url:
            _check_model_server(at.at("base_url"), agent)
        if overrides.tools:
            _check_tools(where.at("tools"), overrides.tools, agent.host, facts)


def _possible_agents(settings: Settings, where: Where, overrides: PeerOverrides) -> list[Agent]:
    """Which account a peer will turn up on is not known yet: every account's agent is possible."""
    own = overrides.agent or AgentOverrides()
    agents = [settings.agent.overridden(own)]
    if where.keys[:1] == ("peers",):
        account = where.keys[1].partition("/")[0] if "/" in where.keys[1] else None
        for name, of_account in settings.accounts.items():
            if of_account.agent is not None and account in (None, name):
                agents.append(settings.agent.overridden(of_account.agent).overridden(own))
    return agents


def _check_home_is_hidden(home: Home, settings: Settings, stored: Mapping[str, PeerOverrides]) -> None:
    """No agent is given the bridge's own folder, in which the accounts' tokens lie, nor one around or inside it."""
    hidden = os.path.realpath(home.path)
    where = Where(settings.file)
    given: list[tuple[Where, Agent | AgentOverrides | None]] = [(where.at("agent"), settings.agent)]
    given += [(where.at("accounts", key, "agent"), one.agent) for key, one in settings.accounts.items()]
    given += [(where.at("peers", key, "agent"), one.agent) for key, one in settings.peers_by_hand.items()]
    given += [(Where("peers.toml", ("peers", key, "agent")), one.agent) for key, one in stored.items()]
    for at, agent in given:
        if agent is None:
            continue
        named = [(name, path) for name in ("read", "write") for path in getattr(agent, name) or ()]
        named += [("workspace", agent.workspace)] if agent.workspace else []
        for name, path in named:
            real = os.path.realpath(os.path.expanduser(path))
            if os.path.commonpath([real, hidden]) in (real, hidden):
                raise at.at(name).wrong(f"{_shown(path)} would open {hidden}, where the bridge keeps its secrets")


def _check_tools(where: Where, tools: tuple[str, ...], host: str, facts: HostFacts) -> None:
    if not facts.exact_tools:
        raise where.wrong(
            f'host "{host}" cannot enforce a list of tools; leave it out, or say tools = [] with access = "chat"'
        )
    for tool in tools:
        if facts.tools is not None:
            if tool not in facts.tools:
                raise where.wrong(f'host "{host}" knows no tool {_shown(tool)}; expected {_either(facts.tools)}')
        elif tool not in TOOLS and not re.fullmatch(r"mcp:[\w.-]+", tool):
            raise where.wrong(f'host "{host}" knows no tool {_shown(tool)}; expected {_either(TOOLS)} or "mcp:NAME"')


# --- words for messages ---------------------------------------------------------------------------------------


def _shown(value: Any) -> str:
    """A TOML value as the operator wrote it, cut to a line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quote(value if len(value) <= 60 else value[:60] + "…")
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        inner = ", ".join(_shown(one) for one in value[:3])
        return f"[{inner}{', …' if len(value) > 3 else ''}]"
    if isinstance(value, (int, float)):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else type(value).__name__


def _either(words: tuple[str, ...]) -> str:
    return ", ".join(_quote(word) for word in words)


def _quoted(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quote(key)


def _quote(text: str) -> str:
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped)


# --- for people -----------------------------------------------------------------------------------------------


def changed(settings: Settings) -> tuple[str, ...]:
    """Every key that is not at its default, as it would be written; tables of names by their number, secrets masked."""
    default = Settings()
    lines: list[str] = []
    for section in SECTIONS:
        mine, usual = getattr(settings, section), getattr(default, section)
        if isinstance(mine, Mapping):
            lines += [f"[{section}] {len(mine)}"] if mine else []
            continue
        for one in fields(mine):
            value = getattr(mine, one.name)
            if value != getattr(usual, one.name):
                lines.append(f"{section}.{one.name} = {_masked(one.name, value)}")
    return tuple(lines)


def _masked(name: str, value: object) -> str:
    if name == "proxy" and isinstance(value, str) and "://" in value:
        return without_password(value) or "***"
    if isinstance(value, Mapping):  # of variables: their names
        return "{" + ", ".join(f"{key} = ***" for key in value) + "}"
    if isinstance(value, Enum):
        return json.dumps(value.value)
    return json.dumps(list(value) if isinstance(value, tuple) else value, default=str, ensure_ascii=False)


def without_password(proxy: str | None) -> str:
    """Scheme, host and port; empty where there is no proxy, and for what is no URL (its start will have said so)."""
    if not proxy:
        return ""
    try:
        parts = urlsplit(proxy)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}"
