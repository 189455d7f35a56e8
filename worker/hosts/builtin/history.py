"""A conversation on disk: one JSON file, replaced whole after each turn, and shortened once it grows too long.

The peer's prompt is written before the turn, so that a conversation whose worker was killed shows what was in doubt.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

VERSION = 1
MOST_BYTES = 64 * 1024 * 1024
KEPT_CHARS = 120_000  # of a conversation that was shortened; about 30,000 tokens
LONG_CHARS = 400_000  # beyond it a conversation is shortened before its next turn


@dataclass(slots=True)
class History:
    """conversation: what the model is shown. pending: a prompt whose turn was never seen to end"""

    path: Path
    conversation: Conversation = field(default_factory=Conversation)
    pending: str = ""

    def begin(self, prompt: str) -> None:
        """raises OSError"""
        self.pending = prompt
        self._write()

    def end(self, conversation: Conversation) -> None:
        """raises OSError"""
        self.conversation, self.pending = conversation, ""
        self._write()

    def _write(self) -> None:
        said = json.loads(ConversationTypeAdapter.dump_json(self.conversation))
        unfinished = self.path.with_name(f".{self.path.name}.new")
        with open(unfinished, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(json.dumps({"version": VERSION, "conversation": said, "pending": self.pending}).encode())
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path)


def load(path: Path) -> History | None:
    """None: there is none, or it was damaged and has been set aside. raises OSError"""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("too long")
        found = json.loads(path.read_bytes())
        conversation = ConversationTypeAdapter.validate_python(found["conversation"])
        pending = str(found.get("pending", ""))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, ValidationError):
        path.replace(path.with_name(f"{path.name}.damaged"))
        return None
    if pending:
        conversation = replace(conversation, messages=[*conversation.messages, *_cut_off(pending)])
    return History(path, conversation)


def _cut_off(prompt: str) -> list[ModelMessage]:
    return [
        ModelRequest(parts=[UserPromptPart(content=prompt)]),
        ModelResponse(parts=[TextPart(content="(This turn was cut off; what it was doing may have happened or not.)")]),
    ]


def is_long(messages: Sequence[ModelMessage]) -> bool:
    return size_of(messages) > LONG_CHARS


def size_of(messages: Sequence[ModelMessage]) -> int:
    """Characters, roughly: what grows is text, and what tools returned."""
    return sum(len(str(getattr(part, "content", "") or "")) for message in messages for part in message.parts)


def split(messages: Sequence[ModelMessage]) -> tuple[list[ModelMessage], list[ModelMessage]]:
    """What is to be summed up, and what stays as it is: whole turns, the newest of them, at least one."""
    starts = [at for at, message in enumerate(messages) if _is_prompt(message)]
    for start in starts[1:]:
        if size_of(messages[start:]) <= KEPT_CHARS:
            return list(messages[:start]), list(messages[start:])
    at = starts[-1] if len(starts) > 1 else len(messages)
    return list(messages[:at]), list(messages[at:])


def summed_up(summary: str, kept: Sequence[ModelMessage]) -> list[ModelMessage]:
    """The conversation with its beginning replaced by a summary."""
    return [
        ModelRequest(parts=[UserPromptPart(content=f"[What was said before, in short]\n{summary}")]),
        ModelResponse(parts=[TextPart(content="I have that in mind.")]),
        *kept,
    ]


def _is_prompt(message: ModelMessage) -> bool:
    return isinstance(message, ModelRequest) and any(isinstance(part, UserPromptPart) for part in message.parts)
