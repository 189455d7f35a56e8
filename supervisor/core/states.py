"""The states in which the journal holds a message and a part: plain values that cores and shells both read.

store.py keeps them, recovery.py decides by them.
"""

from enum import StrEnum


class MessageState(StrEnum):
    """received → ignored | refused | turned_away | command | answer | queued
    queued → running ⇄ asking → answered | stopped | empty | failed | limited | declined | interrupted
    queued → stopped | dropped; and any open state → dead.
    """

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


# Whoever finds one of these at start has something left to do.
OPEN_MESSAGES = (MessageState.RECEIVED, MessageState.QUEUED, MessageState.RUNNING, MessageState.ASKING)
OPEN_PARTS = (PartState.PENDING, PartState.SENDING, PartState.PARKED)
