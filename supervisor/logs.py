"""The log: events with ids, one line each, never what people wrote.

Whatever comes from outside is escaped before it is written, so that no peer's name can forge a line or move a cursor.
stderr in the foreground, <home>/bridge.log (five files of 5 MiB) when detached. A terminal gets short lines for people, the
systemd journal its own priorities, everything else whole time stamps.
"""

import logging
import logging.handlers
import os
import sys
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


class ForPeople(OneLine):
    """The time of day here, and the level only where it is above info."""

    converter = staticmethod(time.localtime)
    default_time_format = "%H:%M:%S"
    default_msec_format = ""

    def formatMessage(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname}: " if record.levelno > logging.INFO else ""
        return f"{record.asctime} {level}{record.message}"


class ForTheJournal(OneLine):
    """sd-daemon(3): the priority in front of each line; the journal adds the time."""

    _PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

    def formatMessage(self, record: logging.LogRecord) -> str:
        return record.message

    def format(self, record: logging.LogRecord) -> str:
        priority = f"<{self._PRIORITY.get(record.levelno, 6)}>"
        return "\n".join(priority + line for line in super().format(record).split("\n"))


def formatter(journal_stream: str | None) -> OneLine:
    """How lines on stderr look. journal_stream: $JOURNAL_STREAM, device and inode of the journal's end"""
    if sys.stderr.isatty():
        return ForPeople()
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return OneLine()
    return ForTheJournal() if journal_stream == f"{found.st_dev}:{found.st_ino}" else OneLine()


def set_up(level: str, *, file: Path | None, journal_stream: str | None = None) -> None:
    """Send everything from `level` up to stderr, or to file. Calls again replace what was set before."""
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler()
        handler.setFormatter(formatter(journal_stream))
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
