"""Names, kinds and room of what peers send: pure rules over text, first bytes and sizes.

A file's name is a stranger's word: what comes out of safe_name() is one component, whatever went in. What a file is, its
bytes say, never its name. Neighbours: supervisor/media.py keeps inbound files, outgoing.py sends files out.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

NAME_BYTES = 200  # of the 255 that file systems take
SUFFIX_BYTES = 16  # a longer "extension" is part of a sentence
HEAD_BYTES = 32  # enough for sniff()

# Left alone although invisible: without them emoji and Persian words fall apart.
_JOINERS = "\u200c\u200d"
_RESERVED = re.compile(r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|COM[0-9¹²³]|LPT[0-9¹²³])(?:\.|$)", re.IGNORECASE)
_ODD = re.compile(r'[<>:"|?*\[\]]')
_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a file's first bytes say. suffix: "" where they say nothing. picture: phones and models show it"""

    mime: str
    suffix: str
    picture: bool = False


UNKNOWN = Kind("application/octet-stream", "")
_HEADS = (
    (b"\x89PNG\r\n\x1a\n", Kind("image/png", ".png", picture=True)),
    (b"\xff\xd8\xff", Kind("image/jpeg", ".jpg", picture=True)),
    (b"GIF87a", Kind("image/gif", ".gif", picture=True)),
    (b"GIF89a", Kind("image/gif", ".gif", picture=True)),
    (b"%PDF-", Kind("application/pdf", ".pdf")),
    (b"PK\x03\x04", Kind("application/zip", ".zip")),
    (b"\x02#!SILK_V3", Kind("audio/silk", ".silk")),
    (b"#!SILK_V3", Kind("audio/silk", ".silk")),
    (b"#!AMR", Kind("audio/amr", ".amr")),
    (b"OggS", Kind("audio/ogg", ".ogg")),
    (b"ID3", Kind("audio/mpeg", ".mp3")),
)


def sniff(head: bytes) -> Kind:
    """head: the first HEAD_BYTES of a file, or all of a shorter one."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return Kind("image/webp", ".webp", picture=True)
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return Kind("audio/wav", ".wav")
    if head[4:8] == b"ftyp":
        return Kind("video/quicktime", ".mov") if head[8:12] == b"qt  " else Kind("video/mp4", ".mp4")
    return next((kind for start, kind in _HEADS if head.startswith(start)), UNKNOWN)


def safe_name(wanted: str, *, fallback: str) -> str:
    """One path component, at most NAME_BYTES of UTF-8, that means nothing to a shell, a phone or another system.

    Letters of every script stay, and so does the extension. fallback: taken where nothing is left; must be safe itself
    """
    name = _plain(_mended(wanted), fallback)
    while (mended := _mended(name)) != name:  # what kept it from being mended was taken out
        name = _plain(mended, fallback)
    return name


def _plain(name: str, fallback: str) -> str:
    name = unicodedata.normalize("NFC", name).replace("\\", "/")
    name = next((part for part in reversed(name.split("/")) if part.strip(" .")), "")
    name = "".join(char for char in name if char in _JOINERS or unicodedata.category(char)[0] != "C" or char == "\t")
    name = _ODD.sub("_", " ".join(name.split()))
    name = name.lstrip(".-~ ").rstrip(". ")
    if _RESERVED.match(name):
        name = f"_{name}"
    return _shortened(name).rstrip(". ") or fallback


def _mended(name: str) -> str:
    """UTF-8 that somebody read as Latin-1, but only where that makes Chinese, Japanese or Korean of it."""
    try:
        mended = name.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return name
    return mended if _CJK.search(mended) else name


def _shortened(name: str) -> str:
    if len(name.encode()) <= NAME_BYTES:
        return name
    suffix = PurePath(name).suffix
    if len(suffix.encode()) > SUFFIX_BYTES:
        suffix = ""
    stem = name[: len(name) - len(suffix)].encode()[: NAME_BYTES - len(suffix.encode())]
    return stem.decode("utf-8", "ignore") + suffix


@dataclass(frozen=True, slots=True)
class Kept:
    """One file in the media folders. at: when it came, Unix seconds"""

    peer: str
    path: str
    size: int
    at: float


def surplus(kept: Iterable[Kept], *, per_peer_bytes: int, total_bytes: int) -> tuple[Kept, ...]:
    """What has to go so that each peer, and all of them together, stay within their room: the oldest first."""
    oldest_first = sorted(kept, key=lambda file: (file.at, file.path))
    sizes: dict[str, int] = {}
    for file in oldest_first:
        sizes[file.peer] = sizes.get(file.peer, 0) + file.size
    going: list[Kept] = []
    total = sum(sizes.values())
    for file in oldest_first:
        if sizes[file.peer] > per_peer_bytes:
            sizes[file.peer] -= file.size
            total -= file.size
            going.append(file)
    gone = set(going)
    for file in oldest_first:
        if total <= total_bytes:
            break
        if file not in gone:
            total -= file.size
            going.append(file)
    return tuple(going)
