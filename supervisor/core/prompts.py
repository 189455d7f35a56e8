"""What the bridge adds to a prompt: one line each, in blocks apart from the peer's words.

A peer can type a perfect copy of such a line; it then stands in the peer's own block, so the agent sees who wrote it.
Foreign words inside a note (a quote, a file name) lose line breaks and brackets and are capped.
"""

from collections.abc import Sequence

QUOTE_CHARS = 400
NAME_CHARS = 80
PATH_CHARS = 1000  # of our own making but for the file's name, which lost its brackets before

_LOSES = str.maketrans({"[": "(", "]": ")", "\n": " ", "\r": " ", "\t": " ", "\u2028": " ", "\u2029": " "})


def note_late(age_s: float) -> str:
    """The message is older than it looks: it was written while nobody listened, a minute ago at least."""
    return f"[bridge: this message was written {_span(age_s)} ago and only arrives now]"


def note_pause(gap_s: float) -> str:
    """Hours or days have passed since this conversation's last message."""
    return f"[bridge: {_span(gap_s)} have passed since the last message of this conversation]"


def note_interrupted(earlier: str) -> str:
    """The last turn was cut off; what it was doing may or may not have happened."""
    return (
        f"[bridge: your last turn was cut off while you answered “{foreign(earlier, QUOTE_CHARS)}”; "
        "whatever it was doing may have happened or not: look before you repeat it]"
    )


def note_quote(text: str) -> str:
    return f"[bridge: the message answers to “{foreign(text, QUOTE_CHARS)}”]"


def note_quote_unknown() -> str:
    return "[bridge: the message answers to an earlier one that is not at hand]"


def note_cut(missing_chars: int) -> str:
    return f"[bridge: the message was longer; its last {missing_chars} characters are missing here]"


def note_attachments_unread(names: Sequence[str]) -> str:
    listed = ", ".join(f"“{foreign(name, NAME_CHARS)}”" for name in names)
    return f"[bridge: attached, but not readable here: {listed}]"


def note_attachment(path: str) -> str:
    return f"[bridge: attached: {foreign(path, PATH_CHARS)}]"


def note_attachment_before(path: str) -> str:
    """A voice message without words, or a video, that came since the last turn and started none."""
    return f"[bridge: sent before this message, and kept: {foreign(path, PATH_CHARS)}]"


def foreign(text: str, limit: int) -> str:
    """Words from outside made fit for a note: one line, no brackets, at most limit characters."""
    line = " ".join(text.translate(_LOSES).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _span(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} minute{'' if minutes == 1 else 's'}"
    hours = minutes // 60
    return f"{hours} hours" if hours < 48 else f"{hours // 24} days"
