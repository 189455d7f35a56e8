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


@pytest.mark.parametrize(
    "words", ["🦀", "\ud83d", "a\x00b", "x\n2026-01-01T00:00:00.000Z INFO forged", "\u202eexe.gpj", "\x1b[2J"]
)
def test_b110_a_peers_words_make_one_line_and_no_error(log_file: Path, words: str) -> None:
    logging.getLogger("test").info("refused peer=%s", words)

    lines = log_file.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1
    assert " INFO refused peer=" in lines[0]
    assert not set(lines[0]) & set("\x00\x1b\u202e")


def test_a_megabyte_in_one_line_is_one_line(log_file: Path) -> None:
    logging.getLogger("test").info("%s", "x" * 1_000_000)

    assert log_file.read_text(encoding="utf-8").count("\n") == 1


def test_the_http_librarys_urls_stay_out(log_file: Path) -> None:
    logging.getLogger("httpx").info("GET https://host/?qrcode=SECRET")

    assert "SECRET" not in log_file.read_text(encoding="utf-8")
