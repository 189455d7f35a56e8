"""Voice messages as WAV for the agent, where a decoder for WeChat's SILK is installed.

A stranger's bytes meet a native decoder: that happens in the peer's own worker, in a child of it that has ten seconds, and
nowhere else. What cannot be decoded stays what it is. Standard library only, but for the decoder.
"""

import asyncio
import contextlib
import importlib.util
import io
import re
import sys
import wave
from pathlib import Path
from typing import Any

import msgspec

from protocol.content import Prompt

FOLDER = "voice"  # of the session's
SUFFIX = ".silk"
RATE_HZ = 24_000  # mono, 16 bits: what the decoder makes of WeChat's voice
SILK_BYTES = 512 * 1024  # a voice message has a minute at most, which is a third of this
SOUND_BYTES = 5 * 60 * RATE_HZ * 2  # silence is so small that its sound could be a thousand times as large
DECODE_S = 10.0


async def made_audible(prompt: Prompt, media_dir: Path, session_dir: Path) -> Prompt:
    """The prompt with each SILK file that it names decoded beside the session, and named instead."""
    named = _named(prompt, media_dir)
    if not named or importlib.util.find_spec("pysilk") is None:
        return prompt
    instead = {}
    for silk in sorted(named):
        wav = session_dir / FOLDER / f"{Path(silk).stem}.wav"
        if await _decoded(Path(silk), wav):
            instead[silk] = str(wav)

    def changed(text: str) -> str:
        for silk, wav in instead.items():
            text = text.replace(silk, wav)
        return text

    return msgspec.structs.replace(
        prompt,
        notes=tuple(map(changed, prompt.notes)),
        files=tuple(instead.get(path, path) for path in prompt.files),
    )


def _named(prompt: Prompt, media_dir: Path) -> set[str]:
    """Notes are the bridge's own words; they name a file by its whole path, at their end."""
    kept = re.compile(re.escape(f"{media_dir}/") + r"[^/\n]+" + re.escape(SUFFIX) + r"(?=\]|$)")
    found = {match.group() for note in prompt.notes for match in kept.finditer(note)}
    return found | {path for path in prompt.files if kept.fullmatch(path)}


async def _decoded(silk: Path, wav: Path) -> bool:
    here = str(Path(__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {here!r}); from worker.voice import decode; decode(*sys.argv[1:])"
    try:
        wav.parent.mkdir(mode=0o700, exist_ok=True)
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", code, str(silk), str(wav)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(DECODE_S):
            return await child.wait() == 0
    except TimeoutError:
        return False
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def decode(silk: str, wav: str) -> None:
    """In a process of its own. Whatever goes wrong ends it."""
    import pysilk  # an extra: bridge-supervisor[voice]

    with open(silk, "rb") as file:
        data = file.read(SILK_BYTES + 1)
    if len(data) > SILK_BYTES:
        sys.exit("too long")
    sound = _Bounded()
    pysilk.decode(io.BytesIO(data), sound, RATE_HZ)
    unfinished = Path(f"{wav}.part")
    with wave.open(str(unfinished), "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(RATE_HZ)
        made.writeframes(sound.getvalue())
    unfinished.rename(wav)


class _Bounded(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > SOUND_BYTES:
            sys.exit("too long")
        return super().write(data)
