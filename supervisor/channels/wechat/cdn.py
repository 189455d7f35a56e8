"""WeChat's CDN: announced media down to plain bytes, plain files up to a ticket. Streams both ways.

In: an item's JSON or a file on disk. Out: plain pieces for a sink; the item that names an upload. A piece is at most
64 KiB, so that a file's size never shows in our memory. Neighbours: media.py has cipher and keys, client.py asks for
upload addresses and sends the item.
"""

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.channels.base import MediaUnreadable, NotUploaded, Unavailable, Upload
from supervisor.channels.wechat import WeChatSettings, wire
from supervisor.channels.wechat.http import Http
from supervisor.channels.wechat.media import Decipher, Encipher, source

PIECE_BYTES = 64 * 1024
CONNECTIONS = 64  # slow ones of one peer must leave some to the others
ATTEMPTS = 3  # of an upload


@dataclass(frozen=True, slots=True)
class CdnTiming:
    """silence_s: until the answer begins. transfer_s: of one whole file, each way"""

    silence_s: float = 15.0
    transfer_s: float = 60.0


class Cdn:
    """See supervisor.channels.base.MediaSource; and the way up."""

    def __init__(self, settings: WeChatSettings, *, timing: CdnTiming | None = None) -> None:
        self._settings = settings
        self._timing = timing or CdnTiming()
        self._http = Http(
            settings.cdn_base_url,
            proxy=settings.proxy,
            user_agent=wire.bot_agent(settings.bot_agent),
            connections=CONNECTIONS,
        )

    async def download(self, item: bytes, sink: Callable[[bytes], None], *, most_bytes: int) -> None:
        found = source(item, cdn_base_url=self._settings.cdn_base_url, trusted_hosts=self._settings.trusted_hosts)
        decipher = Decipher(found.key) if found.key is not None else None
        taken = 0

        def take(piece: bytes) -> None:
            nonlocal taken
            plain = decipher.feed(piece) if decipher is not None else piece
            taken += len(plain)
            if taken > most_bytes:
                raise MediaUnreadable(f"it is larger than {most_bytes} bytes")
            if plain:
                sink(plain)

        answer = await self._http.ask(
            "download",
            "GET",
            found.url,
            headers={},
            silence_s=self._timing.silence_s,
            body_s=self._timing.transfer_s,
            most_bytes=PIECE_BYTES,
            sink=take,
        )
        if 300 <= answer.status < 500:
            raise MediaUnreadable(f"the CDN says {answer.status}")
        if answer.status >= 300:
            raise Unavailable(f"download: HTTP {answer.status}", retry_after_s=answer.retry_after_s)
        if decipher is not None:
            rest = decipher.finish()
            if taken + len(rest) > most_bytes:
                raise MediaUnreadable(f"it is larger than {most_bytes} bytes")
            if rest:
                sink(rest)

    async def upload(self, path: Path, plain: wire.Plain, key: bytes, addresses: Sequence[str]) -> str:
        """The ticket for what was uploaded to one of the addresses, the best first. raises NotUploaded"""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(wire.padded_size(plain.size))}
        why = "no address to upload to"
        for attempt in range(ATTEMPTS if addresses else 0):
            try:
                answer = await self._http.ask(
                    "upload",
                    "POST",
                    addresses[-1 if attempt == ATTEMPTS - 1 else 0],
                    headers=headers,
                    body=_enciphered(path, key),
                    silence_s=self._timing.silence_s,
                    body_s=self._timing.transfer_s,
                    most_bytes=PIECE_BYTES,
                )
            except Unavailable as error:
                why = str(error)
                continue
            if 400 <= answer.status < 500:
                raise NotUploaded(f"upload: HTTP {answer.status}")
            if answer.status == 200 and answer.ticket:
                return answer.ticket
            # A 200 that names no ticket is a failed upload: an item that points nowhere shows as broken (B-092).
            why = f"upload: HTTP {answer.status}" + (" without a ticket" if answer.status == 200 else "")
        raise NotUploaded(why)

    async def aclose(self) -> None:
        await self._http.aclose()


async def measured(upload: Upload) -> wire.Plain:
    """Size and digest of a file as it is now. raises NotUploaded: it is gone"""
    try:
        size, md5 = await asyncio.to_thread(_digest, upload.path)
    except OSError as error:
        raise NotUploaded(f"the file cannot be read: {error.strerror}") from error
    return wire.Plain(upload.name, size, md5, upload.picture)


def _digest(path: Path) -> tuple[int, str]:
    digest = hashlib.md5(usedforsecurity=False)
    with _opened(path) as file:
        size = 0
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


async def _enciphered(path: Path, key: bytes) -> AsyncIterator[bytes]:
    cipher = Encipher(key)
    with _opened(path) as file:
        while piece := file.read(PIECE_BYTES):
            if secret := cipher.feed(piece):
                yield secret
    yield cipher.finish()


def _opened(path: Path) -> io.FileIO:
    return io.FileIO(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
