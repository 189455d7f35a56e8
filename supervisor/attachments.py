"""What peers attach: fetched beside the poll, kept below media/<peer>/, found again for their turn.

A file is written under a hidden name and moved into place once it is whole, so that what has a name can be used. Its name
begins with WeChat's id of its message and its place in it: after a restart that tells what is there already, also where a
lost journal counts its rows anew. Neighbours: intake.py
says what to fetch, prompts.py asks what was saved.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from protocol.content import Inbound, Media, MediaKind
from protocol.errors import BridgeError
from protocol.ids import MessageId, PeerKey
from supervisor.channels.base import ChannelError, MediaSource, MediaUnreadable
from supervisor.config import Settings
from supervisor.core.media import HEAD_BYTES, Kept, safe_name, sniff, surplus

log = logging.getLogger(__name__)

FETCHED = frozenset({MediaKind.IMAGE, MediaKind.VOICE, MediaKind.FILE, MediaKind.VIDEO})
BACKOFF_S = (0.5, 2.0)  # between the attempts; one more than there are pauses
MESSAGE_S = 180.0  # for all that one message brings
AT_ONCE = 2  # messages of one peer; what hangs there must not keep others waiting
CIPHER_BYTES = 16  # by which the announced size of some kinds is larger
_WITHOUT_NAME = {MediaKind.IMAGE: "picture", MediaKind.VOICE: "voice", MediaKind.VIDEO: "video"}
MB = 1024 * 1024
_PLAIN = re.compile(r"[0-9A-Za-z]{1,32}")


@dataclass(frozen=True, slots=True)
class Saved:
    """One attachment as the agent may have it. path None: it could not be had."""

    media: Media
    path: Path | None
    is_picture: bool = False


def hold(inbound: Inbound) -> bool:
    """Does its turn have to wait for something? Not for the sound behind a transcript."""
    return any(media.kind in FETCHED and not media.transcript for media in inbound.media)


class Attachments:
    """folder: makes a peer's media folder, as its worker can read it, and tells where. raises BridgeError"""

    def __init__(
        self,
        *,
        source: MediaSource,
        folder: Callable[[PeerKey], Awaitable[Path]],
        place: Callable[[PeerKey], Path],
        root: Path,
        settings: Callable[[], Settings],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._source = source
        self._folder = folder
        self._place = place
        self._root = root
        self._settings = settings
        self._tasks = tasks
        self._rooms: dict[PeerKey, asyncio.Semaphore] = {}

    def tidy(self) -> None:
        """At start: what was being fetched when a bridge was killed has no name and is of no use."""
        for path in self._root.glob("*/.*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def fetch(self, who: PeerKey, row: int, inbound: Inbound, done: Callable[[], Awaitable[None]]) -> None:
        """In a task of its own. done: all is there, or will never be."""
        self._tasks.create_task(self._fetch(who, row, inbound, done), name=f"media {who.peer}")

    def saved(self, who: PeerKey, row: int, inbound: Inbound) -> tuple[Saved, ...]:
        """What there is of a message's attachments, in their order."""
        place = self._place(who)
        return tuple(_saved(place, inbound.message_id, number, media) for number, media in enumerate(inbound.media))

    def size_of(self, who: PeerKey) -> int:
        """Bytes of all that this peer has sent and that is still kept."""
        return sum(one.size for one in _files(self._place(who)))

    async def _fetch(self, who: PeerKey, row: int, inbound: Inbound, done: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MESSAGE_S), self._rooms.setdefault(who, asyncio.Semaphore(AT_ONCE)):
                for number, media in enumerate(inbound.media):
                    if (
                        media.kind in FETCHED
                        and _saved(self._place(who), inbound.message_id, number, media).path is None
                    ):
                        await self._save(who, row, inbound.message_id, number, media)
        await done()

    async def _save(self, who: PeerKey, row: int, message_id: MessageId, number: int, media: Media) -> None:
        settings = self._settings()
        most_bytes = settings.wechat.max_media_bytes
        try:
            if media.size_bytes is not None and media.size_bytes > most_bytes + CIPHER_BYTES:
                raise MediaUnreadable(f"{media.size_bytes} bytes are announced, at most {most_bytes} are taken")
            folder = await self._folder(who)
            with _unfinished(folder) as (unfinished, file, write):
                await self._read(media, write, most_bytes)
                path = await asyncio.to_thread(_put, unfinished, file, _prefix(message_id, number), media)
        except (BridgeError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning(
                "media_lost peer=%s message=%d kind=%s reason=%s account=%s",
                who.peer,
                row,
                media.kind,
                reason,
                who.account,
            )
            return
        log.info(
            "media_saved peer=%s message=%d kind=%s bytes=%d account=%s",
            who.peer,
            row,
            media.kind,
            path.stat().st_size,
            who.account,
        )
        keep = settings.media
        await asyncio.to_thread(_make_room, self._root, keep.per_peer_mb * MB, keep.total_mb * MB, path)

    async def _read(self, media: Media, write: Callable[[bytes | None], None], most_bytes: int) -> None:
        """raises ChannelError"""
        for pause_s in (*BACKOFF_S, None):
            write(None)  # from the start
            try:
                await self._source.download(media.wire, write, most_bytes=most_bytes)
                return
            except MediaUnreadable:
                raise
            except ChannelError:
                if pause_s is None:
                    raise
                await asyncio.sleep(pause_s)


@contextlib.contextmanager
def _unfinished(folder: Path) -> Iterator[tuple[Path, BinaryIO, Callable[[bytes | None], None]]]:
    """A new file beside its later place; gone at the end unless it was moved. write(None) empties it."""
    path = folder / f".{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:

        def write(data: bytes | None) -> None:
            if data is None:
                file.seek(0)
                file.truncate()
            else:
                file.write(data)

        try:
            yield path, file, write
        finally:
            path.unlink(missing_ok=True)


def _put(unfinished: Path, file: BinaryIO, prefix: str, media: Media) -> Path:
    """Give the whole file its name and owner. raises OSError"""
    file.flush()
    os.fsync(file.fileno())
    with unfinished.open("rb") as plain:
        suffix = sniff(plain.read(HEAD_BYTES)).suffix
    if os.geteuid() == 0:
        owner = unfinished.parent.stat()
        os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
    path = unfinished.parent / f"{prefix}{_name(media, suffix)}"
    os.rename(unfinished, path)
    return path


def _name(media: Media, suffix: str) -> str:
    return safe_name(media.name, fallback=_WITHOUT_NAME.get(media.kind, "file") + suffix)


def _prefix(message_id: MessageId, number: int) -> str:
    """Ids are digits; whatever else stands there is told by its hash."""
    name = message_id if _PLAIN.fullmatch(message_id) else hashlib.sha256(message_id.encode()).hexdigest()[:20]
    return f"{name}-{number}-"


def _saved(place: Path, message_id: MessageId, number: int, media: Media) -> Saved:
    prefix = _prefix(message_id, number)
    try:
        with os.scandir(place) as entries:
            name = next((entry.name for entry in entries if entry.name.startswith(prefix)), None)
    except OSError:
        name = None
    if name is None:
        return Saved(media, None)
    path = place / name
    try:
        with path.open("rb") as file:
            return Saved(media, path, sniff(file.read(HEAD_BYTES)).picture)
    except OSError:
        return Saved(media, None)


def _files(folder: Path) -> list[Kept]:
    """All that is kept there. A folder that does not exist holds none."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                at = entry.stat(follow_symlinks=False)
                found.append(Kept(folder.name, entry.path, at.st_size, at.st_mtime))
    return found


def _make_room(root: Path, per_peer_bytes: int, total_bytes: int, newest: Path) -> None:
    """The oldest go first, of the peer's own and then of all; what has just come stays."""
    kept = [one for place in root.iterdir() if place.is_dir() for one in _files(place)]
    for one in surplus(kept, per_peer_bytes=per_peer_bytes, total_bytes=total_bytes):
        if one.path != str(newest):
            with contextlib.suppress(OSError):
                os.unlink(one.path)
                log.info("media_dropped bytes=%d", one.size)
