"""B-110, B-060: one record, one line, whatever comes from outside."""

import logging
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
