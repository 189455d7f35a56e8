"""All that a worker, and its nanny, may say to their supervisor.

FromWorker is what a nanny accepts from the hostile side; FromNanny are its own words, which a worker cannot forge
because the nanny decodes every frame as FromWorker first. The supervisor decodes ToSupervisor, both together.
What a worker may say in which state of its lease: supervisor/core/lease.py, MAY_SAY.
"""

from enum import StrEnum

import msgspec

from protocol.errors import FailureKind
from protocol.ids import DialogId, SessionId, TurnId

VERSION = 1  # of both directions; a Ready with another one ends the worker

PIECE_BYTES = 16 * 1024  # most UTF-8 bytes of one piece's text
RULE_CHARS = 200  # of an "always" answer


class Boundary(StrEnum):
    """What stands behind a piece: how good a place it is to end a bubble."""

    NONE = "none"  # in the middle of a line
    SENTENCE = "sentence"
    LINE = "line"
    PARAGRAPH = "paragraph"
    TOOL = "tool"  # the agent starts a tool: whatever is held may leave now
    END = "end"


class OpenedHow(StrEnum):
    NEW = "new"
    RESUMED = "resumed"
    FRESH_AFTER_FAILED_RESUME = "fresh_after_failed_resume"


class TurnOutcome(StrEnum):
    COMPLETED = "completed"
    ABORTED = "aborted"
    DECLINED = "declined"  # by the model
    LIMIT = "limit"  # cut off at the model's limit
    FAILED = "failed"


class DialogKind(StrEnum):
    SELECT = "select"
    CONFIRM = "confirm"
    INPUT = "input"
    EDITOR = "editor"


class DialogPurpose(StrEnum):
    PERMISSION = "permission"
    QUESTION = "question"
    PLAN_REVIEW = "plan_review"


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Sandboxed, before the grant and before the agent program starts. layers, missing: names of protocol.spec.Layer.

    network   what it reaches in fact, a NetworkMode; "" from who does not say
    """

    version: int
    layers: tuple[str, ...]
    missing: tuple[str, ...]
    network: str = ""


class SessionOpened(msgspec.Struct, frozen=True, tag=True):
    """The agent is up and its conversation open; turns may come."""

    session_id: SessionId
    how: OpenedHow
    agent_name: str
    agent_version: str


class OpenFailed(msgspec.Struct, frozen=True, tag=True):
    """The agent program could not be opened. detail is for the operator's log alone, at most 2 KiB."""

    kind: FailureKind
    detail: str


class Pulse(msgspec.Struct, frozen=True, tag=True):
    """Still working: sent every second by the worker's own loop while it is busy or opening."""


class PieceMade(msgspec.Struct, frozen=True, tag=True):
    """A numbered stretch of plain text, at most PIECE_BYTES, with the boundary behind it.

    number   0, 1, 2, ... within the turn
    keep     spans (start, end) in code points of text that must not be cut where a better place exists: code lines, URLs
    """

    turn_id: TurnId
    number: int
    text: str
    boundary: Boundary
    keep: tuple[tuple[int, int], ...] = ()


class ToolUsed(msgspec.Struct, frozen=True, tag=True):
    """Tool activity: never a bubble. status: started, running, done or failed."""

    turn_id: TurnId
    call_id: str
    name: str
    status: str


# What a plan review asks for, as the ids of its three options. Their words are the supervisor's.
PLAN_GO = "go"  # carry it out, and ask as before
PLAN_KEEP = "keep"  # go on planning
PLAN_LEAVE = "leave"  # leave plan mode, carry nothing out


# What a permission's plain answers are called where the supervisor is to word them: the ids of options without a label.
ALLOW_ONCE = "allow_once"
REFUSE = "refuse"


class DialogOption(msgspec.Struct, frozen=True):
    """One thing that may be chosen.

    dangerous   deletes or executes: picked by its number alone, never by a bare yes
    rule        an "always" answer, as the host's own word for what it would no longer ask about: one line of at most
                RULE_CHARS, compared whole. Offered only where the supervisor may keep it (the embedded agent, the
                operator's peer; left out elsewhere), kept when it is picked, and part of later grants (Grant.rules).
    """

    option_id: str
    label: str
    hint: str = ""
    dangerous: bool = False
    rule: str = ""


class Asked(msgspec.Struct, frozen=True, tag=True):
    """A question to the peer; AnswerDialog follows, unless the turn ends first.

    SELECT    options, each with an id of the host's own; answered by Picked, or Typed where other_allowed. Of a permission,
              ALLOW_ONCE and REFUSE without a label are worded by the supervisor
    CONFIRM   answered by Confirmed. options: none, or two, the yes before the no, where the labels say more than yes and
              no or where the yes is dangerous
    INPUT, EDITOR   answered by Typed
    PLAN_REVIEW     whatever the kind, with the plan as the body and no options: answered by Picked(PLAN_GO, PLAN_KEEP or
                    PLAN_LEAVE), or Typed: what the peer wants changed
    any of them     Dismissed: the peer would not, time ran out, or nobody could be asked

    expires_s   how long the agent itself waits, where it does not wait for as long as it takes
    """

    turn_id: TurnId
    dialog_id: DialogId
    kind: DialogKind
    purpose: DialogPurpose
    title: str
    body: str
    options: tuple[DialogOption, ...] = ()
    prefill: str = ""
    other_allowed: bool = False
    expires_s: float | None = None


class DialogGone(msgspec.Struct, frozen=True, tag=True):
    """The agent no longer waits for this answer."""

    turn_id: TurnId
    dialog_id: DialogId


class FileOffered(msgspec.Struct, frozen=True, tag=True):
    """An entry of the peer's outbox folder is ready to be sent; no other path, no recipient."""

    turn_id: TurnId
    file_id: str
    caption: str


class SendAsked(msgspec.Struct, frozen=True, tag=True):
    """The `send` tool, which the operator's own session alone has: a text, or the picture in an entry of the outbox folder.

    file_id  the entry, also where there is no picture: under it the answer is laid down
    call_id  the agent's own name for this call: the same again is not sent again
    """

    turn_id: TurnId
    file_id: str
    call_id: str
    text: str


class UsageSeen(msgspec.Struct, frozen=True, tag=True):
    turn_id: TurnId
    input_tokens: int = 0
    output_tokens: int = 0
    context_used: int = 0
    context_size: int = 0


class Remarked(msgspec.Struct, frozen=True, tag=True):
    """A warning of the agent program itself: for the event stream, never for the peer."""

    level: str
    text: str


class TurnEnded(msgspec.Struct, frozen=True, tag=True):
    """Last word of a turn, exactly once. kind and detail only with FAILED; detail is for the log, at most 2 KiB."""

    turn_id: TurnId
    outcome: TurnOutcome
    kind: FailureKind | None = None
    detail: str = ""


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """The worker ends by itself, in order. reason is for the log."""

    reason: str


class WorkerExited(msgspec.Struct, frozen=True, tag=True):
    """Nanny: the worker is gone and so is its whole tree. code as waitpid tells it, negative for a signal."""

    code: int


class FormBroken(msgspec.Struct, frozen=True, tag=True):
    """Nanny: the worker broke size, rate or form; it has been killed. reason names the rule, never the bytes."""

    reason: str


class Limit(StrEnum):
    """What a worker's tree may take only so much of."""

    MEMORY = "memory"
    PROCESSES = "processes"
    CPU = "cpu"
    DISK = "disk"


class LimitPassed(msgspec.Struct, frozen=True, tag=True):
    """Nanny: the tree took more than its limit; it has been killed. detail: how much of how much."""

    limit: Limit
    detail: str


FromWorker = (
    Ready
    | SessionOpened
    | OpenFailed
    | Pulse
    | PieceMade
    | ToolUsed
    | Asked
    | DialogGone
    | FileOffered
    | SendAsked
    | UsageSeen
    | Remarked
    | TurnEnded
    | Leaving
)
FromNanny = WorkerExited | FormBroken | LimitPassed
ToSupervisor = FromWorker | FromNanny
