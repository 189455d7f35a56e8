"""The phone-chat contract: what every agent is told once, in its session's system prompt. Pure.

Static: the same facts give the same bytes, in turn 1, in turn 20 and after a worker was reaped, so that models can
cache it and a resumed session is not told something new. Nothing here names single tools, or asks for short answers.
"""

from dataclasses import dataclass
from typing import assert_never

from protocol.content import Access
from protocol.spec import NetworkMode

_CHAT = """\
You are talking with one person over a phone chat.
- They hold a phone. They see only the messages you write: no terminal, no tool output, no files of this machine.
- Nobody else acts for you here: a command that you do not run yourself will not be run by anyone.
- When you make a plan or a file, put the gist of it into your message. A path alone tells them nothing.
- The instructions of the project you work in hold here as anywhere.
- Take the same care with the work as you would at a desk; only the place where it is read differs."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What stays true for the whole session. media_dir as the worker sees it; empty where it has no files."""

    access: Access
    network: NetworkMode
    media_dir: str


def contract(facts: SessionFacts) -> str:
    lines = [_CHAT, "This session:", f"- {_reach(facts.access)}", f"- {_network(facts.network)}"]
    if facts.media_dir:
        lines.append(f"- Attachments they send lie below {facts.media_dir}; messages name them by path.")
    return "\n".join(lines) + "\n"


def _reach(access: Access) -> str:
    match access:
        case Access.CHAT:
            return "Access: conversation only; there is no workspace to read or to write."
        case Access.READONLY:
            return "Access: you can read the workspace but not change it."
        case Access.WORKSPACE:
            return "Access: you can read and change the workspace; the rest of this machine is out of reach."
        case Access.FULL:
            return "Access: you can read and change this machine's files as its operator can."
    assert_never(access)


def _network(network: NetworkMode) -> str:
    match network:
        case NetworkMode.NONE | NetworkMode.GATEWAY:
            return "Network: none; downloads and web requests fail."
        case NetworkMode.PROXY:
            return "Network: public web addresses, through the proxy that the environment names."
        case NetworkMode.OPEN:
            return "Network: open."
    assert_never(network)
