"""Agent hosts and tool names, as data that both sides read.

`supervisor/config.py` checks settings against it, `worker/hosts` maps names to code.
"""

from dataclasses import dataclass
from enum import StrEnum

from protocol.content import Access

TOOLS = ("read", "write", "edit", "bash", "todo", "ask", "send_file", "exit_plan_mode", "cancel_plan_mode", "send")

TOOLS_BY_ACCESS: dict[Access, frozenset[str]] = {
    Access.CHAT: frozenset({"ask"}),
    Access.READONLY: frozenset({"read", "todo", "ask", "send_file"}),
    Access.WORKSPACE: frozenset(TOOLS) - {"send"},
    Access.FULL: frozenset(TOOLS) - {"send"},
}


def tools_of(access: Access, sends: bool, narrowed: frozenset[str] | None) -> frozenset[str]:
    """The tools of one session. sends: it is the operator's own; narrowed: what a list of settings leaves, None = all"""
    all_of_them = TOOLS_BY_ACCESS[access] | ({"send"} if sends and access is not Access.CHAT else set())
    return all_of_them if narrowed is None else all_of_them & narrowed


# Hosts whose "always" answers the bridge keeps, since it can take them back (settled.md 16).
RULE_HOSTS = frozenset({"builtin"})


class Approvals(StrEnum):
    """Which tools run only after the peer has agreed, for hosts that ask on the bridge's behalf."""

    ASK = "ask"
    NEVER_ASK_READS = "never-ask-reads"
    ALLOW = "allow"


class Thinking(StrEnum):
    """How hard a model thinks, for agents that can be told."""

    AGENTS_OWN = ""
    OFF = "off"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """needs_command   the operator names the program
    talks_to_model  needs the gateway; False: the worker gets no socket at all
    exact_tools     a tool list is enforced exactly; False: only the empty list, by access `chat`, or none
    carries_contract  it tells its agent the phone-chat contract; echo has no agent that would need it
    tools           all names that a tool list may hold; None = every one of ours, and any MCP server's
    driver          the worker's code for it, a key of worker.hosts.HOSTS; empty: that of its own name
    command         the usual program and arguments of a known agent, where the operator names none
    api_key_env     the variable that usually holds the key for its models, likewise
    own_port        of loopback, on which the program talks with itself: open only in a network of the worker's own
    """

    needs_command: bool
    talks_to_model: bool
    exact_tools: bool
    carries_contract: bool
    tools: tuple[str, ...] | None = None
    driver: str = ""
    command: tuple[str, ...] = ()
    api_key_env: str = ""
    own_port: int = 0


# How agent programs are told where models and the web are. URL, TOKEN and PROXY stand for a worker's own.
URL, TOKEN, PROXY = "{url}", "{token}", "{proxy}"
GATEWAY_VARIABLES: dict[str, str] = {
    "OPENAI_BASE_URL": f"{URL}/v1",
    "OPENAI_API_KEY": TOKEN,
    "ANTHROPIC_BASE_URL": URL,
    "ANTHROPIC_API_KEY": TOKEN,
    "GOOGLE_GEMINI_BASE_URL": URL,
    "GEMINI_API_KEY": TOKEN,
}
PROXY_VARIABLES: dict[str, str] = {
    "HTTP_PROXY": PROXY,
    "HTTPS_PROXY": PROXY,
    "http_proxy": PROXY,
    "https_proxy": PROXY,
    "NODE_USE_ENV_PROXY": "1",
}
# A library that takes a proxy from the environment is not to take it for the gateway.
NO_PROXY_VARIABLES: dict[str, str] = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}

# Our tool names as Pi's: its own tools, and those of the extension that the bridge starts it with.
PI_TOOLS: dict[str, tuple[str, ...]] = {
    "read": ("read", "ls"),
    "write": ("write",),
    "edit": ("edit",),
    "bash": ("bash",),
    "todo": ("todo",),
    "ask": ("ask_user_question",),
    "send_file": ("send_file",),
    "send": ("send",),
    "exit_plan_mode": ("exit_plan_mode",),
    "cancel_plan_mode": ("cancel_plan_mode",),
}

# Our tool names as opencode's. Its writing tools share one permission, so that neither can be had without the other.
OPENCODE_TOOLS: dict[str, tuple[str, ...]] = {
    "read": ("read", "list", "glob", "grep"),
    "bash": ("bash",),
    "todo": ("todowrite", "todoread"),
    "send_file": ("bridge_send_file",),
    "send": ("bridge_send",),
}


def _acp(
    *command: str,
    key: str = "OPENAI_API_KEY",
    contract: bool = False,
    tools: tuple[str, ...] = (),
    own_port: int = 0,
) -> HostFacts:
    return HostFacts(
        needs_command=False,
        talks_to_model=True,
        exact_tools=bool(tools),
        carries_contract=contract,
        tools=tools or None,
        driver="acp",
        command=command,
        api_key_env=key,
        own_port=own_port,
    )


HOSTS: dict[str, HostFacts] = {
    "echo": HostFacts(needs_command=False, talks_to_model=False, exact_tools=True, carries_contract=True),
    "builtin": HostFacts(
        needs_command=False, talks_to_model=True, exact_tools=True, carries_contract=True, tools=TOOLS
    ),
    "acp": HostFacts(needs_command=True, talks_to_model=True, exact_tools=False, carries_contract=False),
    "pi": HostFacts(
        needs_command=False,
        talks_to_model=True,
        exact_tools=True,
        carries_contract=True,
        tools=tuple(PI_TOOLS),
        command=("pi",),
    ),
    # Known agents that speak ACP. What each is told in files, variables and its session: worker/hosts/acp/presets.py.
    "claude": _acp("claude-agent-acp", key="ANTHROPIC_API_KEY", contract=True),
    "codex": _acp("codex-acp", contract=True),
    "gemini": _acp("gemini", "--acp", key="GEMINI_API_KEY", contract=True),
    "opencode": _acp("opencode", "acp", contract=True, own_port=4096),
    "goose": _acp("goose", "acp", contract=True),
    "qwen": _acp("qwen", "--acp", contract=True),
    "kimi": _acp("kimi", "acp"),
    "hermes": _acp("hermes-acp", contract=True),
    "vibe": _acp("vibe-acp"),
}


def driver_of(host: str) -> str:
    """The worker's code behind a host that settings name. raises KeyError: no such host"""
    return HOSTS[host].driver or host
