"""A picture as agents take it inside a prompt: by its bytes, whatever its name says."""

import base64
from dataclasses import dataclass
from pathlib import Path

PICTURE_BYTES = 8 * 1024 * 1024  # a larger one is named by its path only
_HEADS = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


@dataclass(frozen=True, slots=True)
class Picture:
    data: str  # base64
    mime: str


def picture(path: Path) -> Picture | None:
    """None: unreadable, too large, or of a kind that models do not take."""
    try:
        if path.stat().st_size > PICTURE_BYTES:
            return None
        data = path.read_bytes()
    except OSError:
        return None
    mime = next((mime for head, mime in _HEADS if data.startswith(head)), None)
    if mime is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        mime = "image/webp"
    return None if mime is None else Picture(base64.b64encode(data).decode(), mime)
