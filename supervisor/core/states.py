"""The states of messages and parts in the journal, and the kinds of parts: one vocabulary for store and cores."""

from enum import StrEnum


class MessageState(StrEnum):
    """settled.md 27 gives the transitions; those after RUNNING and ASKING are final but for INTERRUPTED's notice."""

    RECEIVED = "received"
    IGNORED = "ignored"
    REFUSED = "refused"
    TURNED_AWAY = "turned_away"
    COMMAND = "command"
    ANSWER = "answer"
    QUEUED = "queued"
    RUNNING = "running"
    ASKING = "asking"
    ANSWERED = "answered"
    STOPPED = "stopped"
    EMPTY = "empty"
    FAILED = "failed"
    LIMITED = "limited"
    DECLINED = "declined"
    INTERRUPTED = "interrupted"
    DROPPED = "dropped"
    DEAD = "dead"


class PartState(StrEnum):
    PENDING = "pending"
    SENDING = "sending"  # an attempt may be on its way
    ACCEPTED = "accepted"
    UNCONFIRMED = "unconfirmed"
    REJECTED = "rejected"
    PARKED = "parked"  # waits for the peer's next message
    DROPPED = "dropped"  # a courtesy line given way, the rest of a stopped turn, a dead letter


class PartKind(StrEnum):
    REPLY = "reply"
    COURTESY = "courtesy"  # waiting lines: first to give way
    OUTCOME = "outcome"  # never dropped: parks behind the answer it belongs to
    COMMAND = "command"  # a slash command's or a dialog's own lines: before parked parts
