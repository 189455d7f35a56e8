"""What bridge-ctl shows, and that nothing from outside can do more than be read."""

import re
import unicodedata

import msgspec
import pytest
import segno
from hypothesis import given
from hypothesis import strategies as st

from protocol.ctl import (
    AccountRow,
    DialogRow,
    DoctorReply,
    Finding,
    HistoryLine,
    HistoryReply,
    IsolationRow,
    LockRow,
    PeerRow,
    RefusedRow,
    RuleRow,
    Severity,
    StatusReply,
    TurnRow,
    WorkerRow,
)
from supervisor.console.render import (
    Look,
    account_lines,
    age,
    finding_lines,
    history_lines,
    qr_lines,
    refused_lines,
    rule_lines,
    safe,
    status_lines,
    summary,
    width_of,
)

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07",
    "a\x00b\x7fc\x9b31m",
    "line\nbreak\r\nand\ttab",
    "\u202eevil\u2066\u200f\u061c",
    "zero\u200bwidth\ufeff\u00ad",
    "[/foo] [bold]x[/bold] [link=http://x]y[/link]",
    "\ud800 lone",
    "Z" + "\u0301" * 500,
    "用户" * 300,
    "\u2028\u2029\u0085",
    "\U000e0041\ue000\U0010ffff",
    "x" * 10_000,
)
VISIBLE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]*")


def status(word: str = "alice", *, problems: tuple[str, ...] = ()) -> StatusReply:
    """A status in which every text from outside is word."""
    return StatusReply(
        version="0.1.0",
        pid=4242,
        uptime_s=12.5,
        home=f"/h/{word}",
        isolation=IsolationRow("required", "strong", []),
        accounts=[
            AccountRow("bot-1", word, word, "operator", "running", 86.0, 0.4, 18.2, 0, word, LockRow(True, 4242)),
            AccountRow("bot-2", "second", "o2", "guest", "expired", None, None, None, 3, None, LockRow(False, None)),
        ],
        peers=[
            PeerRow(
                peer=word,
                label=word,
                account="bot-1",
                role="guest",
                agent="echo",
                access="readonly",
                state="running",
                turn=TurnRow("7400", 3.1),
                queued=2,
                turns=7,
                budget_left=6,
                parked_parts=4,
                session_age_s=900.0,
                media_bytes=0,
                worker=WorkerRow(5151, 3, 0.0, 31457280, ["landlock", "seccomp"], ["net_ns"], {"memory": "capped"}),
            ),
            PeerRow("bob", "bob", "gone", "guest", "echo", "chat", "asking", None, 0, 0, 10, 0, None, 0, None),
        ],
        refused=[RefusedRow(word, "bot-1", 3, 5.0)],
        dialogs=[DialogRow(word, "bot-1", "select", word, 2.0, 178.0)],
        counters={"received": 10, "dead": 0},
        problems=list(problems) or [word],
    )


def everything(word: str, look: Look) -> list[str]:
    shown = status(word)
    history = HistoryReply(word, [HistoryLine("peer", word, 61.0, word)])
    return [
        *status_lines(shown, look),
        *account_lines(shown.accounts, look),
        *refused_lines(shown.refused, look),
        *history_lines(history),
        *rule_lines([RuleRow(word, "bot-1", 3, word, 61.0)], look),
        summary(shown),
    ]


@pytest.mark.parametrize("word", HOSTILE, ids=ascii)
def test_hostile_text_is_shown_escaped_and_cut_in_every_view(word: str) -> None:
    for line in everything(word, Look()):
        assert VISIBLE.fullmatch(line), ascii(line)
        assert len(line) < 6000


@given(text=st.text(), columns=st.integers(min_value=3, max_value=60))
def test_a_safe_text_fits_its_columns_and_holds_nothing_invisible(text: str, columns: int) -> None:
    shown = safe(text, columns)

    assert width_of(shown) <= columns
    assert VISIBLE.fullmatch(shown)
    assert not any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in shown)


@given(text=st.text(alphabet="abc 用户。　é", max_size=100))
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert safe(text) == text


def test_escapes_can_be_told_apart() -> None:
    assert safe("a\nb\tc\x1b\u202e\U000e0041") == "a\\nb\\tc\\x1b\\u202e\\U000e0041"


def test_a_long_text_ends_in_dots_and_wide_characters_count_twice() -> None:
    assert safe("x" * 11, 10) == "xxxxxxx..."
    assert safe("x" * 10, 10) == "x" * 10
    assert safe("用户用户用户", 10) == "用户用..."


def test_columns_of_a_table_stand_below_each_other() -> None:
    lines = list(account_lines(status("用户").accounts, Look()))
    roles = (lines[0].index("ROLE"), lines[1].index("operator"), lines[2].index("guest"))
    columns = [width_of(line[:role]) for line, role in zip(lines, roles, strict=True)]

    assert len(set(columns)) == 1


def test_the_summary_names_accounts_counts_and_problems_in_one_line() -> None:
    line = summary(status("work", problems=("second: sign in again: bridge-ctl login",)))

    assert line == (
        "work running, second expired; 1 running, 2 waiting, 1 asking, 4 parked, 3 refused; "
        "second: sign in again: bridge-ctl login"
    )


def test_the_summary_of_an_empty_bridge_says_how_to_sign_in() -> None:
    empty = StatusReply("0.1.0", 1, 0.0, "/h", IsolationRow("required", "strong", []), [], [], [], [], {}, [])

    assert summary(empty) == "no account: bridge-ctl login; 0 running, 0 waiting, 0 asking, 0 parked, 0 refused"
    told = msgspec.structs.replace(empty, problems=["no account is signed in: bridge-ctl login"])
    assert summary(told).count("bridge-ctl login") == 1
    assert "no account is signed in; sign in with: bridge-ctl login" in list(status_lines(empty, Look()))


def test_the_status_names_layers_that_are_missing_and_counters_that_are_not_zero() -> None:
    text = "\n".join(status_lines(status(), Look()))

    assert "pid 5151, 30 MB, 2 layers, missing net_ns" in text
    assert "counters: received 10" in text
    assert "dead" not in text
    assert "! alice" in text


def test_colour_is_only_there_when_asked_for_and_only_around_states() -> None:
    plain = list(status_lines(status(), Look()))
    coloured = list(status_lines(status(), Look(colour=True)))

    assert not any("\x1b" in line for line in plain)
    assert any("\x1b[31mexpired" in line for line in coloured)
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in coloured] == plain


def test_a_history_keeps_the_line_breaks_of_a_message_under_its_head() -> None:
    history = HistoryReply(
        "alice", [HistoryLine("peer", "one\r\ntwo\x1b", 61.0), HistoryLine("bot", "三", 5.0, "parked")]
    )

    assert list(history_lines(history)) == [
        "1 min ago  peer: one",
        "                 two\\x1b",
        "5 s ago  bot (parked): 三",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(-3, "0 s"), (59.9, "59 s"), (3599, "59 min"), (3661, "1 h 1 min"), (200_000, "2 d 7 h")]
)
def test_ages_are_told_in_one_or_two_units(seconds: float, words: str) -> None:
    assert age(seconds) == words


# --- QR codes

URL = "https://liteapp.weixin.qq.com/q/7GiQu1?qrcode=0123456789abcdef0123456789abcdef&bot_type=3"
MODULES = [[int(one) for one in row] for row in segno.make(URL, error="l", micro=False).matrix]


def read_blocks(lines: list[str], *, dark: str) -> list[list[int]]:
    """The modules that a reader sees; dark: are the drawn halves the dark or the light ones?"""
    rows: list[list[int]] = []
    for line in lines:
        bare = re.sub(r"\x1b\[[0-9;]*m", "", line)
        halves = [{" ": (0, 0), "▀": (1, 0), "▄": (0, 1), "█": (1, 1)}[c] for c in bare]
        for half in (0, 1):
            rows.append([pair[half] if dark == "drawn" else 1 - pair[half] for pair in halves])
    return rows


@pytest.mark.parametrize(("look", "dark"), [(Look(colour=True), "drawn"), (Look(), "left out")])
def test_a_qr_code_is_drawn_module_by_module_within_a_light_margin(look: Look, dark: str) -> None:
    lines = qr_lines(MODULES, columns=80, encoding="utf-8", look=look)

    assert lines is not None
    size = len(MODULES)
    seen = read_blocks(lines, dark=dark)
    assert [row[2 : 2 + size] for row in seen[2 : 2 + size]] == MODULES
    margin = [
        *seen[0],
        *seen[1],
        *seen[size + 2],
        *(row[0] for row in seen[: size + 4]),
        *(row[-1] for row in seen[: size + 4]),
    ]
    assert set(margin) == {0}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no-such-encoding"])
def test_an_encoding_without_blocks_gets_the_code_in_ascii(encoding: str) -> None:
    lines = qr_lines(MODULES, columns=200, encoding=encoding, look=Look())

    assert lines is not None
    seen = [[int(line[i] == " ") for i in range(0, len(line), 2)] for line in lines]
    assert [row[2:-2] for row in seen[2:-2]] == MODULES
    assert "".join(lines).isascii()


@pytest.mark.parametrize(("columns", "encoding"), [(20, "utf-8"), (60, "ascii")])
def test_a_terminal_too_narrow_for_the_code_gets_none(columns: int, encoding: str) -> None:
    assert qr_lines(MODULES, columns=columns, encoding=encoding, look=Look()) is None


def test_a_finding_is_its_severity_and_text_with_what_mends_it_below() -> None:
    reply = DoctorReply(
        ok=False,
        level="strong",
        findings=[
            Finding("queue", Severity.OK, "0 turns running"),
            Finding("account_state", Severity.ERROR, "default: expired", fix="bridge-ctl login"),
        ],
    )

    assert list(finding_lines(reply, Look())) == [
        "ok     0 turns running",
        "error  default: expired",
        "       bridge-ctl login",
    ]
    assert "\x1b[31merror" in "".join(finding_lines(reply, Look(colour=True)))


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_words_in_a_finding_stay_on_their_line(word: str) -> None:
    reply = DoctorReply(ok=True, level="strong", findings=[Finding("x", Severity.WARN, word, fix=word)])

    lines = list(finding_lines(reply, Look()))

    assert len(lines) == 2
    assert all(VISIBLE.fullmatch(line) for line in lines)
