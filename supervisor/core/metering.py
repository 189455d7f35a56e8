"""Counts what a model call costs, and keeps a key out of its answer, while the answer passes by.

In come the request as JSON and the answer's bytes in whatever pieces they arrive; out goes Usage, as the model server
told it, in any of the three dialects. A worker that leaves before it was told pays an estimate: nobody gets an answer
for nothing by hanging up early.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

LINE_BYTES = 8 * 1024 * 1024  # of one event that is read for its usage; longer ones pass by unread
ANSWER_BYTES = 8 * 1024 * 1024  # of an answer that is no stream
BYTES_PER_TOKEN = 4  # English; Chinese has about three bytes a character and one token
IMAGE_TOKENS = 1500  # what the servers count for a picture of usual size
TEXT_WITHOUT_BREAK = 4096  # a longer word is encoded data


@dataclass(frozen=True, slots=True)
class Usage:
    """input_tokens holds those that the server read from a cache, too."""

    input_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Meter:
    """feed() every byte of one answer's body, then settle()."""

    def __init__(self, *, streamed: bool) -> None:
        self._streamed = streamed
        self._buffer = bytearray()
        self._skipping = False
        self._input: int | None = None
        self._output: int | None = None
        self._events = 0
        self._bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        if not self._streamed:
            if len(self._buffer) <= ANSWER_BYTES:
                self._buffer += chunk
            return
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            self._add(part)
            if not self._skipping:
                self._line(bytes(self._buffer))
            self._buffer.clear()
            self._skipping = False
        self._add(rest)

    def settle(self, *, estimated_input: int, whole: bool) -> Usage:
        """The cost. whole: the answer came to its end"""
        if not self._streamed and len(self._buffer) <= ANSWER_BYTES:
            self._read(bytes(self._buffer))
        elif self._buffer and not self._skipping:
            self._line(bytes(self._buffer))
        self._buffer.clear()
        came = self._events if self._streamed else self._bytes // BYTES_PER_TOKEN
        given = estimated_input if self._input is None else self._input
        if self._output is None:
            return Usage(given, came)
        # A running count stands still between two reports: what came since counts as well.
        return Usage(given, self._output if whole else max(self._output, came))

    def _add(self, part: bytes) -> None:
        if self._skipping or len(self._buffer) + len(part) > LINE_BYTES:
            self._buffer.clear()
            self._skipping = True
        else:
            self._buffer += part

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        self._events += 1  # about one token each, in every dialect but Google's
        if b'"usage' in line:
            self._read(line[5:])

    def _read(self, data: bytes) -> None:
        try:
            decoded: Any = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return
        for found in _usages(decoded):
            # Of a running count the last report is the largest; a later one without a number says nothing.
            self._input = _larger(self._input, _input_of(found))
            self._output = _larger(self._output, _output_of(found))


def _usages(decoded: Any) -> Iterator[dict[str, Any]]:
    """Where the dialects put it: at the top, in `response` (OpenAI) or `message` (Anthropic), or in a list (Google)."""
    for one in decoded if isinstance(decoded, list) else [decoded]:
        if not isinstance(one, dict):
            continue
        for place in (one, one.get("response"), one.get("message")):
            if isinstance(place, dict):
                for name in ("usage", "usageMetadata"):
                    if isinstance(place.get(name), dict):
                        yield place[name]


def _input_of(usage: dict[str, Any]) -> int | None:
    if "input_tokens" in usage:  # Anthropic counts cached ones apart, OpenAI within
        return _sum(usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    if "promptTokenCount" in usage:
        return _sum(usage, "promptTokenCount", "toolUsePromptTokenCount")
    return _sum(usage, "prompt_tokens")


def _output_of(usage: dict[str, Any]) -> int | None:
    if "candidatesTokenCount" in usage or "thoughtsTokenCount" in usage:
        return _sum(usage, "candidatesTokenCount", "thoughtsTokenCount")
    return _sum(usage, "output_tokens") if "output_tokens" in usage else _sum(usage, "completion_tokens")


def _sum(usage: dict[str, Any], *names: str) -> int | None:
    numbers = [usage[name] for name in names if isinstance(usage.get(name), int) and not isinstance(usage[name], bool)]
    return sum(max(0, number) for number in numbers) if numbers else None


def _larger(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


def estimate(request: Any) -> int:
    """About how many tokens a request's JSON is: every text in it, and a fixed number for each picture."""
    tokens, left = 0, [request]
    while left:
        match left.pop():
            case str() as text:
                encoded = len(text) > TEXT_WITHOUT_BREAK and not any(c.isspace() for c in text[:TEXT_WITHOUT_BREAK])
                tokens += IMAGE_TOKENS if encoded else (len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN) + 1
            case dict() as table:
                left.extend(table.values())
            case list() as values:
                left.extend(values)
            case _:
                pass
    return tokens


def with_usage(request: Any) -> bytes | None:
    """A chat completion's body that asks for the usage of its stream; None when it is right as it is."""
    if request.get("stream") is not True:
        return None
    options = request.get("stream_options")
    options = options if isinstance(options, dict) else {}
    if options.get("include_usage") is True:
        return None
    return msgspec.json.encode({**request, "stream_options": {**options, "include_usage": True}})


class Scrubber:
    """Takes a secret out of bytes that pass by in pieces. Holds back only what may be the beginning of one."""

    STANDS_IN = b"[key]"

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        if not self._secret:
            return chunk
        data = (self._held + chunk).replace(self._secret, self.STANDS_IN)
        most = min(len(data), len(self._secret) - 1)
        kept = next((n for n in range(most, 0, -1) if self._secret.startswith(data[-n:])), 0)
        self._held = data[len(data) - kept :]
        return data[: len(data) - kept]

    def rest(self) -> bytes:
        """At the end: what was held back after all."""
        held, self._held = self._held, b""
        return held
