"""All that a supervisor may say to a worker, first of all its Grant.

Each message is one msgspec tagged Struct; the union ToWorker is what a worker decodes.
"""

import msgspec

from protocol.agents import Approvals, Thinking
from protocol.content import Access, Prompt
from protocol.ids import DialogId, SessionId, TurnId


class Picked(msgspec.Struct, frozen=True, tag=True):
    option_id: str


class Typed(msgspec.Struct, frozen=True, tag=True):
    text: str


class Confirmed(msgspec.Struct, frozen=True, tag=True):
    yes: bool


class Dismissed(msgspec.Struct, frozen=True, tag=True):
    """Nobody answered, or the peer would not: the agent is told "cancelled"."""


DialogAnswer = Picked | Typed | Confirmed | Dismissed


class AgentSpec(msgspec.Struct, frozen=True):
    """Which agent a worker hosts and how its program is started."""

    host: str  # a key of worker.hosts.HOSTS
    command: tuple[str, ...] = ()
    model: str = ""
    env: dict[str, str] = {}
    thinking: Thinking = Thinking.AGENTS_OWN
    approvals: Approvals = Approvals.ASK


class Grant(msgspec.Struct, frozen=True, tag=True):
    """First words after Ready: what this worker may do.

    session_dir, workspace, media_dir   absolute paths as the worker sees them
    session_id      what the last SessionOpened named; None starts a fresh conversation
    contract        static text for the session's system prompt
    tools           None = all of the access level, empty = none
    gateway_url     empty for a host that talks to no model
    token           this worker's, for the gateway
    proxy_url       the way to the public web, token included; empty without `network`
    sends           this is the operator's own session: it has the `send` tool
    rules           the peer's "always" answers (DialogOption.rule) that were not taken back; the embedded agent's alone
    """

    session_dir: str
    workspace: str
    media_dir: str
    session_id: SessionId | None
    access: Access
    agent: AgentSpec
    contract: str
    tools: tuple[str, ...] | None
    stop_grace_s: float
    gateway_url: str = ""
    token: str = ""
    proxy_url: str = ""
    sends: bool = False
    rules: tuple[str, ...] = ()


class RunTurn(msgspec.Struct, frozen=True, tag=True):
    turn_id: TurnId
    prompt: Prompt


class AbortTurn(msgspec.Struct, frozen=True, tag=True):
    """End this turn. One that is not running is ignored."""

    turn_id: TurnId


class AnswerDialog(msgspec.Struct, frozen=True, tag=True):
    turn_id: TurnId
    dialog_id: DialogId
    answer: DialogAnswer


class FileSettled(msgspec.Struct, frozen=True, tag=True):
    """What became of an offered file, or of a call of `send`. detail: for the agent, one line. state: of a send alone"""

    turn_id: TurnId
    file_id: str
    ok: bool
    detail: str
    state: str = ""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Close the session in order and exit. Sent to an idle worker; the nanny insists if it stays."""


ToWorker = Grant | RunTurn | AbortTurn | AnswerDialog | FileSettled | Leave
