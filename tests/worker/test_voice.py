"""SILK becomes WAV in a child of the worker, or stays what it is."""

import asyncio
import io
import wave
from pathlib import Path

import pysilk
import pytest

from protocol.content import Prompt
from worker import voice
from worker.voice import RATE_HZ, made_audible


def silk(seconds: float = 0.5) -> bytes:
    """As WeChat sends it, of a low hum."""
    sound = b"".join((1000 if at // 60 % 2 else -1000).to_bytes(2, "little", signed=True) for at in range(RATE_HZ))
    out = io.BytesIO()
    pysilk.encode(io.BytesIO(sound[: int(len(sound) * seconds)]), out, RATE_HZ, 24_000)
    return out.getvalue()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    media, session = tmp_path / "media", tmp_path / "session"
    media.mkdir()
    session.mkdir()
    return media, session


def test_a_silk_file_that_the_bridge_names_is_named_as_wav_of_the_same_length(folders: tuple[Path, Path]) -> None:
    media, session = folders
    (media / "voice.silk").write_bytes(silk())
    (media / "send.silk").write_bytes(silk())
    prompt = Prompt("what?", (f"[bridge: kept: {media}/voice.silk]", "[bridge: else]"), files=(f"{media}/send.silk",))

    told = asyncio.run(made_audible(prompt, media, session))

    wav = session / "voice" / "voice.wav"
    assert told.notes == (f"[bridge: kept: {wav}]", "[bridge: else]")
    assert told.files == (str(session / "voice" / "send.wav"),)
    assert told.text == "what?"
    with wave.open(str(wav)) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (RATE_HZ, 1, 2)
        assert abs(sound.getnframes() - RATE_HZ / 2) < RATE_HZ / 10


@pytest.mark.parametrize("data", [b"", b"#!SILK", b"\x02#!SILK_V3" + b"\xff" * 5000])
def test_what_cannot_be_decoded_stays_what_it_is(folders: tuple[Path, Path], data: bytes) -> None:
    media, session = folders
    (media / "voice.silk").write_bytes(data)
    prompt = Prompt("", (f"[bridge: kept: {media}/voice.silk]",))

    assert asyncio.run(made_audible(prompt, media, session)) == prompt


def test_a_small_file_that_would_become_an_hour_of_sound_stays_what_it_is(folders: tuple[Path, Path]) -> None:
    media, session = folders
    out = io.BytesIO()
    pysilk.encode(io.BytesIO(bytes(RATE_HZ * 2)), out, RATE_HZ, 24_000)
    packets = out.getvalue()[len(b"\x02#!SILK_V3") :]
    # Packets: two bytes of length, then that many of silence. The last one is the smallest.
    each: list[bytes] = []
    while len(packets) > 2:
        size = int.from_bytes(packets[:2], "little")
        each.append(packets[: 2 + size])
        packets = packets[2 + size :]
    smallest = min((one for one in each if 2 < len(one) < 1000), key=len)
    (media / "voice.silk").write_bytes(b"\x02#!SILK_V3" + smallest * (voice.SILK_BYTES // len(smallest) - 1))
    prompt = Prompt("", (f"[bridge: kept: {media}/voice.silk]",))

    assert asyncio.run(made_audible(prompt, media, session)) == prompt
    assert not list((session / "voice").iterdir())


def test_only_files_of_the_peers_own_media_are_looked_at(folders: tuple[Path, Path]) -> None:
    media, session = folders
    other = session / "voice.silk"
    other.write_bytes(silk())
    prompt = Prompt(
        f"{media}/voice.silk", (f"[bridge: {other}]", f"[bridge: {media}/../session/voice.silk]"), (), (str(other),)
    )

    assert asyncio.run(made_audible(prompt, media, session)) == prompt


def test_a_decoder_that_hangs_is_ended(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    media, session = folders
    (media / "voice.silk").write_bytes(silk())
    monkeypatch.setattr(voice, "DECODE_S", 0.0)
    prompt = Prompt("", (f"[bridge: kept: {media}/voice.silk]",))

    assert asyncio.run(made_audible(prompt, media, session)) == prompt


def test_without_a_decoder_nothing_is_tried(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    media, session = folders
    (media / "voice.silk").write_bytes(silk())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    prompt = Prompt("", (f"[bridge: kept: {media}/voice.silk]",))

    assert asyncio.run(made_audible(prompt, media, session)) == prompt
    assert not list(session.iterdir())
