"""B-110, B-060: one record, one line, whatever comes from outside."""

import logging
import os
import pty
import sys
from pathlib import Path

import pytest

from supervisor import logs


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "bridge.log"
    logs.set_up("debug", file=path)
    yield path
    for handler in logging.getLogger().handlers[:]:
        handler.close()
        logging.getLogger().removeHandler(handler)


WORDS = {
    "emoji": "🦀",
    "half a surrogate": "\ud83d",
    "NUL": "a\x00b",
    "a forged line": "x\n2026-01-01T00:00:00.000Z INFO forged",
    "bidi": "\u202eexe.gpj",
    "a screen's order": "\x1b[2J",
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_b110_a_peers_words_make_one_line_and_no_error(words: str) -> None:
    # Formatted here and not logged: pytest keeps what is logged and cannot hand half a surrogate on.
    record = logging.LogRecord("test", logging.INFO, "", 0, "refused peer=%s", (words,), None)

    line = logs.OneLine().format(record)

    assert " INFO refused peer=" in line
    assert not set(line) & set("\x00\x1b\u202e\n")
    assert line.encode("utf-8")


def test_a_log_file_gets_a_line_for_each_record(log_file: Path) -> None:
    logging.getLogger("test").info("one %s", "🦀")
    logging.getLogger("test").info("two")

    assert [line.split(" ", 2)[2] for line in log_file.read_text(encoding="utf-8").splitlines()] == ["one 🦀", "two"]


def test_a_megabyte_in_one_line_is_one_line(log_file: Path) -> None:
    logging.getLogger("test").info("%s", "x" * 1_000_000)

    assert log_file.read_text(encoding="utf-8").count("\n") == 1


def test_the_http_librarys_urls_stay_out(log_file: Path) -> None:
    logging.getLogger("httpx").info("GET https://host/?qrcode=SECRET")

    assert "SECRET" not in log_file.read_text(encoding="utf-8")


def record(level: int, words: str = "worker_ready peer=alice") -> logging.LogRecord:
    return logging.LogRecord("supervisor", level, "", 0, words, None, None)


@pytest.mark.parametrize(
    ("level", "priority"), [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3)]
)
def test_the_journal_gets_a_priority_on_every_line_and_no_time(level: int, priority: int) -> None:
    assert logs.ForTheJournal().format(record(level)) == f"<{priority}>worker_ready peer=alice"


def test_a_terminal_gets_the_time_of_day_and_a_level_only_where_something_is_wrong() -> None:
    people = logs.ForPeople()

    fine, wrong, again = (people.format(record(level)) for level in (logging.INFO, logging.ERROR, logging.INFO))

    assert fine[8:] == again[8:] == " worker_ready peer=alice"
    assert wrong[8:] == " ERROR: worker_ready peer=alice"
    assert fine[2] == fine[5] == ":"


def test_who_listens_decides_how_a_line_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        found = os.fstat(stream.fileno())

        assert type(logs.formatter(f"{found.st_dev}:{found.st_ino}")) is logs.ForTheJournal
        assert type(logs.formatter(f"{found.st_dev}:{found.st_ino + 1}")) is logs.OneLine
        assert type(logs.formatter(None)) is logs.OneLine
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)

        assert type(logs.formatter(None)) is logs.ForPeople
    os.close(ours)
