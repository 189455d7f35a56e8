"""Everything bridge-ctl shows, as lines of text. In come replies of protocol.ctl, out go lines; nothing is printed here.

Every word from outside passes through safe(): what peers, files and the network wrote can neither move the cursor nor
turn the writing direction, and nothing is ever parsed as markup.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protocol.ctl import (
    AccountRow,
    DoctorReply,
    EventRow,
    HistoryReply,
    PeerRow,
    RefusedRow,
    RuleRow,
    Severity,
    StatusReply,
    TraceReply,
)
from protocol.ids import label

CELL_COLUMNS = 40
LAST_CELL_COLUMNS = 100  # nothing stands to the right of it
LINE_COLUMNS = 400
_ELLIPSIS = "..."
_MARKS = 3  # combining marks that may stand on one character; without an end they would take no columns at all
_QUIET_ZONE = 2  # modules; the standard asks for four, phones do with two

RED, GREEN, YELLOW, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
_COLOURS = {
    "running": GREEN,
    "asking": YELLOW,
    "stopping": YELLOW,
    "stale": YELLOW,
    "paused": YELLOW,
    "expired": RED,
    "stopped": RED,
    "locked_out": RED,
}


_SEVERITY_COLOURS = {Severity.OK: GREEN, Severity.WARN: YELLOW, Severity.ERROR: RED}


@dataclass(frozen=True, slots=True)
class Look:
    """What the terminal can do. Piped output is plain."""

    colour: bool = False


def safe(text: str, columns: int = LINE_COLUMNS) -> str:
    """One line of at most so many columns. Control, bidi and other invisible characters are shown as escapes."""
    shown: list[str] = []
    width = 0
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.combining(character) else 0
        piece = character if _shows(character) and marks <= _MARKS else _escaped(character)
        wide = width_of(piece)
        if width + wide > columns:
            return _cut(shown, columns)
        shown.append(piece)
        width += wide
    return "".join(shown)


def width_of(text: str) -> int:
    """Terminal columns of what safe() lets through."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def summary(status: StatusReply) -> str:
    """The bridge in one line; systemd's STATUS= too."""
    accounts = ", ".join(f"{safe(row.name, CELL_COLUMNS)} {safe(row.state)}" for row in status.accounts)
    # Problems come with the command that mends them, a missing account included.
    parts = [accounts or ("no account" if status.problems else "no account: bridge-ctl login"), _counts(status)]
    parts += [safe(problem) for problem in status.problems]
    return "; ".join(parts)


def status_lines(status: StatusReply, look: Look) -> Iterator[str]:
    isolation = status.isolation
    missing = f", missing: {safe(', '.join(isolation.missing))}" if isolation.missing else ""
    yield f"bridge-supervisor {safe(status.version)}, pid {status.pid}, up {age(status.uptime_s)}, home {safe(status.home)}"
    yield f"isolation {safe(isolation.mode)}, level {safe(isolation.level)}{missing}; {_counts(status)}"
    yield ""
    yield from account_lines(status.accounts, look)
    if status.peers:
        yield ""
        yield from _table(
            (
                "PEER",
                "ACCOUNT",
                "ROLE",
                "AGENT",
                "ACCESS",
                "STATE",
                "TURN",
                "QUEUED",
                "TURNS",
                "BUDGET",
                "PARKED",
                "WORKER",
            ),
            [_peer_cells(row, status.accounts) for row in status.peers],
            look,
        )
    if status.dialogs:
        yield ""
        yield from _table(
            ("WAITING FOR", "KIND", "QUESTION", "SINCE", "EXPIRES IN"),
            [(label(row.peer), row.kind, row.title, age(row.age_s), age(row.expires_in_s)) for row in status.dialogs],
            look,
        )
    if status.refused:
        yield ""
        yield from refused_lines(status.refused, look)
    counters = [f"{safe(name)} {count}" for name, count in status.counters.items() if count]
    if counters:
        yield ""
        yield f"counters: {', '.join(counters)}"
    if status.problems:
        yield ""
        yield from (_coloured(f"! {safe(problem)}", YELLOW, look) for problem in status.problems)


def account_lines(accounts: Sequence[AccountRow], look: Look) -> Iterator[str]:
    if not accounts:
        yield "no account is signed in; sign in with: bridge-ctl login"
        return
    yield from _table(
        ("ACCOUNT", "OWNER", "ROLE", "STATE", "LAST POLL", "HOLD", "FAILURES", "LOCK", "LAST ERROR"),
        [
            (
                row.name or row.account,
                row.owner,
                row.role,
                row.state,
                _maybe_age(row.last_poll_age_s),
                _maybe_age(row.last_hold_s),
                str(row.poll_failures),
                _lock(row),
                row.last_error or "-",
            )
            for row in accounts
        ],
        look,
    )


def refused_lines(refused: Sequence[RefusedRow], look: Look) -> Iterator[str]:
    yield from _table(
        ("REFUSED", "ACCOUNT", "MESSAGES", "LAST"),
        [(row.peer, row.account, str(row.count), age(row.last_age_s)) for row in refused],
        look,
    )


def history_lines(history: HistoryReply) -> Iterator[str]:
    if not history.lines:
        yield f"no messages of {safe(history.peer)} are kept"
    for line in history.lines:
        flag = f" ({safe(line.flag)})" if line.flag else ""
        head = f"{age(line.age_s)} ago  {safe(line.who)}{flag}: "
        first, *rest = line.text.replace("\r\n", "\n").split("\n")
        yield head + safe(first)
        yield from (" " * width_of(head) + safe(more) for more in rest)


def rule_lines(rules: Sequence[RuleRow], look: Look) -> Iterator[str]:
    if not rules:
        yield "nothing was answered with always"
        return
    yield from _table(
        ("PEER", "RULE", "AGE", "NO LONGER ASKED ABOUT"),
        [(label(row.peer), str(row.rule), age(row.age_s), row.text) for row in rules],
        look,
    )


def finding_lines(reply: DoctorReply, look: Look) -> Iterator[str]:
    """Severity and text; what mends it stands below."""
    for finding in reply.findings:
        severity = _coloured(f"{finding.severity.value:<5}", _SEVERITY_COLOURS[finding.severity], look)
        yield f"{severity}  {safe(finding.text)}"
        if finding.fix:
            yield f"       {safe(finding.fix)}"


def event_lines(events: Sequence[EventRow], look: Look) -> Iterator[str]:
    for one in events:
        about = [f"{name}={value}" for name, value in (("peer", one.peer), ("message", one.message_id)) if value]
        about += [f"{name}={_bare(value)}" for name, value in one.data.items()]
        about += [f"account={one.account}"] if one.account else []
        name = _coloured(safe(one.event), GREEN, look)
        yield f"{one.seq} {safe(one.at)} {name} {safe(' '.join(about))}".rstrip()


def trace_lines(reply: TraceReply) -> Iterator[str]:
    yield f"message {safe(reply.message_id)} of {safe(reply.peer)} on {safe(reply.account)}: {safe(reply.state)}"
    spent = (
        ("hold", reply.latency.hold_ms),
        ("queue", reply.latency.queue_ms),
        ("start", reply.latency.start_ms),
        ("agent", reply.latency.agent_ms),
        ("send", reply.latency.send_ms),
    )
    yield "  ".join(f"{name} {'-' if value is None else f'{value:.1f} ms'}" for name, value in spent)
    for step in reply.steps:
        data = " ".join(f"{name}={_bare(value)}" for name, value in step.data.items())
        yield f"{step.after_ms:>12.1f} ms  {safe(step.what)} {safe(data)}".rstrip()


def qr_lines(modules: Sequence[Sequence[int]], *, columns: int, encoding: str, look: Look) -> list[str] | None:
    """A QR code for a terminal, two rows of modules in one of text; None where it would not fit or cannot be written.

    modules   rows of 0 (light) and 1 (dark), without a quiet zone
    """
    rows = _with_quiet_zone(modules)
    if len(rows[0]) > columns:
        return None
    blocks = " ▀▄█"
    try:
        blocks.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return _qr_in_ascii(rows, columns)
    if len(rows) % 2:
        rows.append([0] * len(rows[0]))
    lines = []
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        pairs = zip(upper, lower, strict=True)
        if look.colour:
            # Black on white whatever the terminal's own colours are (16 and 231 of the 256 are the true ones).
            dark = "".join(blocks[up + 2 * down] for up, down in pairs)
            lines.append(f"\x1b[38;5;16m\x1b[48;5;231m{dark}{PLAIN}")
        else:
            # Without colours light modules are drawn: right on a dark terminal, and phones read the reverse too.
            lines.append("".join(blocks[(1 - up) + 2 * (1 - down)] for up, down in pairs))
    return lines


def age(seconds: float) -> str:
    """A length of time in one or two units."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


# --- inside ---------------------------------------------------------------------------------------------------

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs", "Me"})


def _shows(character: str) -> bool:
    # Cf holds the bidi controls and the zero-width characters; U+3000 is the space of Chinese text.
    return character in " \u3000" or unicodedata.category(character) not in _HIDDEN


def _escaped(character: str) -> str:
    code = ord(character)
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _cut(shown: list[str], columns: int) -> str:
    """Take pieces away until the dots fit."""
    room = columns - len(_ELLIPSIS)
    while shown and width_of("".join(shown)) > room:
        shown.pop()
    return "".join(shown) + _ELLIPSIS[: max(columns, 0)]


def _counts(status: StatusReply) -> str:
    states = [row.state for row in status.peers]
    running = sum(state in ("starting", "running", "stopping") for state in states)
    waiting = sum(row.queued for row in status.peers)
    parked = sum(row.parked_parts for row in status.peers)
    refused = sum(row.count for row in status.refused)
    return f"{running} running, {waiting} waiting, {states.count('asking')} asking, {parked} parked, {refused} refused"


def _peer_cells(row: PeerRow, accounts: Sequence[AccountRow]) -> tuple[str, ...]:
    names = [account.name for account in accounts if account.account == row.account and account.name]
    worker = "-"
    if row.worker is not None:
        megabytes = row.worker.rss_bytes // (1024 * 1024)
        worker = f"pid {row.worker.pid}, {megabytes} MB, {len(row.worker.isolation)} layers"
        if row.worker.isolation_missing:
            worker += f", missing {', '.join(row.worker.isolation_missing)}"
    return (
        row.label or row.peer,
        names[0] if names else row.account,
        row.role,
        row.agent,
        row.access,
        row.state,
        age(row.turn.age_s) if row.turn else "-",
        str(row.queued),
        str(row.turns),
        str(row.budget_left),
        str(row.parked_parts),
        worker,
    )


def _lock(row: AccountRow) -> str:
    if not row.lock.held:
        return "free"
    return "held" if row.lock.pid is None else f"pid {row.lock.pid}"


def _bare(value: object) -> str:
    return "-" if value is None else str(value)


def _maybe_age(seconds: float | None) -> str:
    return "-" if seconds is None else age(seconds)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], look: Look) -> Iterator[str]:
    cells = [[*(safe(cell, CELL_COLUMNS) for cell in row[:-1]), safe(row[-1], LAST_CELL_COLUMNS)] for row in rows]
    widths = [max(width_of(row[column]) for row in (heads, *cells)) for column in range(len(heads))]
    for row in (heads, *cells):
        padded = [cell + " " * (width - width_of(cell)) for cell, width in zip(row, widths, strict=True)]
        padded[-1] = row[-1]
        if row is not heads:
            padded = [
                _coloured(shown, _COLOURS[cell], look) if cell in _COLOURS and head == "STATE" else shown
                for head, cell, shown in zip(heads, row, padded, strict=True)
            ]
        yield "  ".join(padded)


def _coloured(text: str, colour: str, look: Look) -> str:
    return f"{colour}{text}{PLAIN}" if look.colour else text


def _with_quiet_zone(modules: Sequence[Sequence[int]]) -> list[list[int]]:
    width = len(modules[0]) + 2 * _QUIET_ZONE
    margin = [0] * _QUIET_ZONE
    empty = [[0] * width for _ in range(_QUIET_ZONE)]
    return [*empty, *([*margin, *(int(one) for one in row), *margin] for row in modules), *(list(row) for row in empty)]


def _qr_in_ascii(rows: Sequence[Sequence[int]], columns: int) -> list[str] | None:
    """Two characters a module; light modules are drawn."""
    if 2 * len(rows[0]) > columns:
        return None
    return ["".join("  " if module else "##" for module in row) for row in rows]
