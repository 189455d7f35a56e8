"""Pictures for a prompt: known by their bytes."""

import base64
from pathlib import Path

import pytest

from worker.hosts import pictures
from worker.hosts.pictures import Picture, picture


@pytest.mark.parametrize(
    ("data", "mime"),
    [
        (b"\x89PNG\r\n\x1a\nrest", "image/png"),
        (b"\xff\xd8\xff\xe0rest", "image/jpeg"),
        (b"GIF89arest", "image/gif"),
        (b"RIFF\x10\x00\x00\x00WEBPrest", "image/webp"),
    ],
)
def test_a_picture_is_what_its_bytes_say_whatever_its_name(tmp_path: Path, data: bytes, mime: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(data)

    assert picture(path) == Picture(base64.b64encode(data).decode(), mime)


def test_what_is_no_picture_or_not_there_or_too_large_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, large = tmp_path / "a.png", tmp_path / "b.png"
    named.write_bytes(b"no picture")
    large.write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 100)
    monkeypatch.setattr(pictures, "PICTURE_BYTES", 50)

    assert picture(named) is None
    assert picture(large) is None
    assert picture(tmp_path / "missing.png") is None
    assert picture(tmp_path) is None
