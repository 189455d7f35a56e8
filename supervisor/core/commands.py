"""The peers' slash commands, one table: what a message orders, if anything.

In comes a message's text, out goes what it means; intake.py acts on it, notices.py has the words. A command is exact on
its first token, in any case; whatever else begins with a slash (a path, an agent's own command) goes to the agent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

HISTORY_LINES = 8
HISTORY_MOST = 20


@dataclass(frozen=True, slots=True)
class New:
    """A fresh conversation: on the owner's word, and only while no turn runs."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The running turn, else the oldest waiting message, else the parked parts."""


@dataclass(frozen=True, slots=True)
class Status:
    pass


@dataclass(frozen=True, slots=True)
class History:
    count: int = HISTORY_LINES


@dataclass(frozen=True, slots=True)
class Help:
    pass


@dataclass(frozen=True, slots=True)
class Snippet:
    """Not a command of ours: the operator's shorthand, run as a prompt like any other."""

    prompt: str


Command = New | Stop | Status | History | Help


def _history(argument: str) -> History:
    """A number of any script's digits, from 1 to HISTORY_MOST; anything else is as good as nothing."""
    if not argument.isdecimal():
        return History()
    # Past any sensible length int() refuses, and it is more than the most in any case.
    return History(max(1, min(int(argument), HISTORY_MOST)) if len(argument) < 10 else HISTORY_MOST)


# Each takes the token after the command, empty when there is none.
COMMANDS: Mapping[str, Callable[[str], Command]] = {
    "/new": lambda _: New(),
    "/stop": lambda _: Stop(),
    "/status": lambda _: Status(),
    "/history": _history,
    "/help": lambda _: Help(),
}


class Media(Enum):
    """A message with an attachment is never a command."""

    NONE = "none"
    SOME = "some"


# Input methods for Chinese write Latin letters and marks in full width.
_FULL_WIDTH = {code + 0xFEE0: code for code in range(0x21, 0x7F)}


def may_answer(command: Command | Snippet | None, media: Media) -> bool:
    """May such a message be the answer to a dialog? Words alone: a command works while one waits, and a picture or the
    operator's shorthand is the next prompt."""
    return command is None and media is Media.NONE


def parse(text: str, media: Media, snippets: Mapping[str, str]) -> Command | Snippet | None:
    """What a message orders; None = it goes to the agent.

    snippets   the operator's words, without the slash, and what each stands for; ours win over equal ones
    """
    head, rest = [*text.split(maxsplit=1), "", ""][:2]
    if media is Media.SOME or head[:1] not in ("/", "／"):
        return None
    word = head.translate(_FULL_WIDTH).lower()
    if (command := COMMANDS.get(word)) is not None:
        argument = [*rest.split(maxsplit=1), ""][0]
        return command(argument)
    for name, prompt in snippets.items():
        if word == f"/{name.lower()}":
            return Snippet(f"{prompt}\n\n{rest.rstrip()}" if rest else prompt)
    return None
