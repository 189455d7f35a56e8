"""The log: events with ids, one line each, never what people wrote.

Whatever comes from outside is escaped before it is written, so that no peer's name can forge a line or move a cursor.
stderr in the foreground, <home>/bridge.log (five files of 5 MiB) when detached.
"""

import logging
import logging.handlers
import time
from pathlib import Path

LEVELS = ("debug", "info", "warning", "error")
FILE_BYTES = 5 * 1024 * 1024
FILES = 5

_BIDI = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c"
_ESCAPES = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0))}
_ESCAPES |= {ord(c): f"\\u{ord(c):04x}" for c in _BIDI + "\u2028\u2029"}


class OneLine(logging.Formatter):
    """Time in UTC, level, message; a traceback follows indented, escaped like everything else."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).split("\n") if record.exc_info else [super().format(record)]
        clean = (line.translate(_ESCAPES) for line in lines)
        return "\n    ".join(clean).encode("utf-8", "backslashreplace").decode("utf-8")


def set_up(level: str, *, file: Path | None) -> None:
    """Send everything from `level` up to stderr, or to file. Calls again replace what was set before."""
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler()
    else:
        handler = logging.handlers.RotatingFileHandler(
            file, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8"
        )
    handler.setFormatter(OneLine())
    handler.setLevel(level.upper())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("supervisor").setLevel(logging.DEBUG)  # the event stream hears all of ours (events.py)
    logging.raiseExceptions = False  # a full disk or a closed terminal must not end anything
    for chatty in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)  # httpx logs whole URLs, queries included
