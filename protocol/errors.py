"""Errors that say who can act, and the failure codes that travel between processes.

Classes that belong to one interface derive from BridgeError and sit beside that interface.
"""

from enum import StrEnum


class BridgeError(Exception):
    """Something a person or a neighbouring process has to know about, in one line."""


class ProtocolViolation(BridgeError):
    """The other side broke the contract: its lease is revoked, its message never repaired."""


class FailureKind(StrEnum):
    """Why a turn or an agent failed. The peer never sees more than the notice chosen by it."""

    NOT_CONFIGURED = "not_configured"
    AUTH = "auth"
    QUOTA = "quota"
    OVERLOADED = "overloaded"
    CONTEXT_FULL = "context_full"
    TOOL_REFUSED = "tool_refused"
    AGENT_DIED = "agent_died"
    PROTOCOL = "protocol"
    TIMEOUT = "timeout"
    OTHER = "other"
