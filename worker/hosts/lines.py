"""Lines of JSON from an agent program: cut, bounded, and mended where our own encoders would refuse them.

Programs that speak over pipes end a record with LF alone; U+2028 and CR occur inside strings. A line over the limit
costs itself and a word to whoever listens, never the stream.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from worker.hosts.program import READ_BYTES

LINE_BYTES = 64 * 1024 * 1024


async def lines(
    reader: asyncio.StreamReader, too_long: Callable[[], None], *, limit_bytes: int = LINE_BYTES
) -> AsyncIterator[bytes]:
    """Whole lines without their LF, empty ones left out; what stands behind the last LF is a line too."""
    partial = bytearray()
    skipping = False
    while data := await reader.read(READ_BYTES):
        *whole, rest = data.split(b"\n")
        for part in whole:
            if not skipping and len(partial) + len(part) > limit_bytes:
                too_long()
            elif not skipping and (partial or part):
                yield bytes(partial + part)
            partial.clear()
            skipping = False
        if not skipping and len(partial) + len(rest) > limit_bytes:
            too_long()
            partial.clear()
            skipping = True
        elif not skipping:
            partial += rest
    if partial:
        yield bytes(partial)


def read_object(line: bytes) -> dict[str, Any] | None:
    """None: no JSON, or no object."""
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return cast(dict[str, Any], mended(found)) if b"\\ud" in line or b"\\uD" in line else found


def mended(value: Any) -> Any:
    """Lone surrogates become U+FFFD: no message can carry one, and the words around it would be lost."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [mended(item) for item in value]
    if isinstance(value, dict):
        return {mended(key): mended(item) for key, item in value.items()}
    return value
