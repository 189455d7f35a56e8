"""What the operator allows, as plain values: the parts of the settings that decisions read.

config.py fills them from bridge.toml and peers.toml (the Range beside a type is its check there); admission.py resolves
them for one peer, most specific first. In every …Overrides, None means "not set here".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from protocol.agents import HOSTS, Approvals, Thinking
from protocol.content import Access


class Range(NamedTuple):
    """The values a number may have, both ends included."""

    low: float
    high: float


class Auth(StrEnum):
    GATEWAY = "gateway"
    OWN = "own"  # a login of the agent's own, in that peer's reach; operator's peer only


class InterimText(StrEnum):
    """Short text before a tool call."""

    JOIN = "join"
    DROP = "drop"


PER_HOUR = Range(0, 100_000)
TOKENS = Range(0, 1_000_000_000_000)
DIALOG_MINUTES = Range(0.001, 24 * 60)


@dataclass(frozen=True, slots=True)
class AgentOverrides:
    """[peers.ID] agent and [accounts.NAME] agent: every key of [agent]."""

    host: str | None = None
    command: tuple[str, ...] | None = None
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    workspace: str | None = None
    read: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    env: Mapping[str, str] | None = None
    dialog_minutes: Annotated[float, DIALOG_MINUTES] | None = None
    plan_review_minutes: Annotated[float, DIALOG_MINUTES] | None = None
    remote_dialogs: bool | None = None
    auth: Auth | None = None
    thinking: Thinking | None = None
    footer: bool | None = None
    approvals: Approvals | None = None
    discovery: bool | None = None
    interim_text: InterimText | None = None

    def overridden(self, by: "AgentOverrides") -> "AgentOverrides":
        """Key by key, what is set in `by` wins. A command is that of one host: another host does not inherit it."""
        kept = self if by.host in (None, self.host) else replace(self, command=None)
        return replace(kept, **_set_in(by))


@dataclass(frozen=True, slots=True)
class Agent:
    """[agent], or what is left of it for one peer."""

    host: str = "echo"  # which agent: a name known to protocol/agents.py
    command: tuple[str, ...] = ()  # program and arguments, for hosts that need one
    model: str = ""  # provider:NAME, for hosts that talk to a model through the gateway
    base_url: str = ""  # the model server of an openai-compatible model
    api_key_env: str = ""  # name of a variable of the supervisor's; the key never reaches a worker
    workspace: str = ""  # absolute; the operator's peer's working directory; empty = workspaces/<peer>
    read: tuple[str, ...] = ()  # absolute paths a worker may read besides its own
    write: tuple[str, ...] = ()  # absolute paths it may write besides its own
    env: Mapping[str, str] = field(default_factory=dict)  # extra variables for the agent program
    dialog_minutes: Annotated[float, DIALOG_MINUTES] = 3.0  # a question waits that long
    plan_review_minutes: Annotated[float, DIALOG_MINUTES] = 10.0  # a plan waits that long
    remote_dialogs: bool = True  # false: nobody is asked, every question is dismissed
    auth: Auth = Auth.GATEWAY  # own: the agent's own login; nothing acts on it yet
    thinking: Thinking = Thinking.AGENTS_OWN  # how much, where the agent has it; empty = its own
    footer: bool = False  # a line of time and tokens under each answer; nothing acts on it yet
    approvals: Approvals = Approvals.ASK  # before files change and commands run
    discovery: bool = False  # the agent's own extensions, skills, MCP servers; nothing acts on it yet
    interim_text: InterimText = InterimText.JOIN  # short text before a tool call

    def overridden(self, by: AgentOverrides) -> "Agent":
        """Key by key, what is set in `by` wins. A command is that of one host: another host does not inherit it."""
        kept = self if by.host in (None, self.host) else replace(self, command=())
        return replace(kept, **_set_in(by))

    @property
    def program(self) -> tuple[str, ...]:
        """Program and arguments: those that are set, or the usual ones of a known agent."""
        return self.command or (HOSTS[self.host].command if self.host in HOSTS else ())

    @property
    def key_variable(self) -> str:
        """The variable that holds the model's key: the one that is set, or the usual one of a known agent.

        A server of one's own (base_url) may need none, and is not to be handed the key of another.
        """
        if self.api_key_env or self.base_url or self.host not in HOSTS:
            return self.api_key_env
        return HOSTS[self.host].api_key_env


@dataclass(frozen=True, slots=True)
class PeerOverrides:
    """[peers.ID] of either file, and [accounts.NAME].

    admitted  True by `allow`, False by `deny`, which beats allowed_peers; never in [accounts.NAME]
    tools     an allowlist that can only take away; () leaves none
    """

    admitted: bool | None = None  # written by allow and deny
    tools: tuple[str, ...] | None = None  # allowlist; [] leaves none
    access: Access | None = None  # what the peer may reach
    max_turns_per_hour: Annotated[int, PER_HOUR] | None = None  # rolling hour
    max_tokens_per_day: Annotated[int, TOKENS] | None = None  # counted by the gateway
    network: bool | None = None  # public web through the gateway
    agent: AgentOverrides | None = None  # any key of [agent]

    def overridden(self, by: "PeerOverrides") -> "PeerOverrides":
        """Key by key, what is set in `by` wins; `agent` is taken key by key too."""
        changes = _set_in(by)
        if self.agent is not None and by.agent is not None:
            changes["agent"] = self.agent.overridden(by.agent)
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Admission:
    """[admission]. allowed_peers: whole ids or whole labels, case kept, ACCOUNT/ before them narrows."""

    allowed_peers: tuple[str, ...] = ()  # ids or labels; an account's owner is always admitted
    max_turns_per_hour: Annotated[int, PER_HOUR] = 0  # rolling hour, the operator's peer; 0 = no limit
    max_queue: Annotated[int, Range(1, 1000)] = 8  # waiting messages per peer


@dataclass(frozen=True, slots=True)
class Guests:
    """[guests]: everybody but the operator's peer. 0 = no limit."""

    access: Access = Access.READONLY  # what they may reach
    max_turns_per_hour: Annotated[int, PER_HOUR] = 30  # of each of them, rolling hour
    max_tokens_per_day: Annotated[int, TOKENS] = 300_000  # of each of them


def _set_in(
    overrides: AgentOverrides | PeerOverrides,
) -> dict[str, Any]:  # the fields of one dataclass differ in type; replace() takes them back
    values = {f.name: getattr(overrides, f.name) for f in fields(overrides)}
    return {name: value for name, value in values.items() if value is not None}
