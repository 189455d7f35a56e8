"""Files on their way to a peer: out of a worker's outbox folder, or of our own making, into the spool, then by delivery.

A worker names an entry of its outbox and nothing else: `sessions/<peer>/outbox/<id>/` with one regular file in it. We
take that file away before anything is read of it, into a folder that no worker reaches, under the key of its send: so
it survives a restart, and nobody swaps it. Neighbours: delivery.py sends what lies in the spool, worker/workspace.py
lays it out.
"""

import asyncio
import contextlib
import errno
import hashlib
import io
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.ids import LeaseKey, PeerKey, SendKey, TurnId
from protocol.to_supervisor import SendAsked
from protocol.to_worker import FileSettled
from supervisor import notices
from supervisor.channels.base import Upload
from supervisor.core.media import HEAD_BYTES, safe_name, sniff
from supervisor.core.states import PartKind
from supervisor.delivery import Delivery, FileFate
from supervisor.home import Home

log = logging.getLogger(__name__)

OUTBOX = "outbox"
A_FILE = "file"
BELONGS_IN_THE_ANSWER = "they wait for your answer, which a text would mix with: say it there"
OFFERS_PER_TURN = 20  # twice what one message of a peer lets us send
_FILE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class OfferRefused(Exception):
    """What the agent is told."""


class TooLarge(OfferRefused):
    def __init__(self, name: str, size: int, most: int) -> None:
        super().__init__(f"it has {size} bytes, and at most {most} can be sent")
        self.name = name


class Spool:
    """Files that stand in the journal as parts, each under its send key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: SendKey) -> Path:
        return self._folder / key

    def upload(self, key: SendKey, name: str) -> Upload | None:
        """None: it is gone."""
        try:
            with open(os.open(self.path(key), _LOOK | os.O_NONBLOCK), "rb") as file:
                return Upload(self.path(key), name, sniff(file.read(HEAD_BYTES)).picture)
        except OSError:
            return None

    def put(self, key: SendKey, content: bytes) -> None:
        """raises OSError"""
        descriptor = os.open(self.path(key), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)

    def copy(self, key: SendKey, source: Path) -> None:
        """raises OSError"""
        with open(source, "rb") as found, open(self.path(key), "xb") as file:
            shutil.copyfileobj(found, file)

    def discard(self, key: SendKey) -> None:
        self.path(key).unlink(missing_ok=True)

    def keep_only(self, keys: Iterable[SendKey]) -> None:
        """At the start: what no open part stands for any more."""
        wanted = set(keys)
        for path in self._folder.iterdir():
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    def take(self, key: SendKey, outbox: Path, file_id: str, *, most_bytes: int) -> str:
        """Take the one file of this outbox entry away; its safe name. raises OfferRefused, TooLarge, OSError"""
        folder = os.open(outbox, _LOOK | os.O_DIRECTORY)
        try:
            entry = os.open(file_id, _LOOK | os.O_DIRECTORY, dir_fd=folder)
            try:
                return self._take(key, entry, most_bytes)
            finally:
                os.close(entry)
                with contextlib.suppress(OSError):  # a worker may have filled it; what is left is its own affair
                    os.rmdir(file_id, dir_fd=folder)
        finally:
            os.close(folder)

    def _take(self, key: SendKey, entry: int, most_bytes: int) -> str:
        names: list[str] = []
        with os.scandir(entry) as found:
            for one in found:
                names.append(one.name)
                if len(names) > 1:
                    raise OfferRefused("the outbox holds more than one file under this id")
        if not names:
            raise OfferRefused("the outbox holds no file under this id")
        name = safe_name(names[0].encode("utf-8", "surrogateescape").decode("utf-8", "replace"), fallback=A_FILE)
        descriptor = os.open(names[0], _LOOK | os.O_NONBLOCK, dir_fd=entry)
        try:
            status = _judged(os.fstat(descriptor), name, most_bytes)
        except OfferRefused:
            os.close(descriptor)
            raise
        with open(descriptor, "rb") as file:
            try:
                os.rename(names[0], self.path(key), src_dir_fd=entry)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with open(self.path(key), "xb") as copy:
                    shutil.copyfileobj(file, copy)
                return name
        try:
            # What was judged and what was moved may be two: the names in that folder are the worker's to change.
            moved = os.lstat(self.path(key))
            if (moved.st_dev, moved.st_ino) != (status.st_dev, status.st_ino):
                raise OfferRefused("the file changed while it was taken")
            _judged(moved, name, most_bytes)
        except OfferRefused:
            self._drop(key)
            raise
        return name

    def _drop(self, key: SendKey) -> None:
        path = self.path(key)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _judged(status: os.stat_result, name: str, most_bytes: int) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        raise OfferRefused("that is no file")
    if status.st_nlink != 1:
        raise OfferRefused("the file has another name elsewhere")
    if status.st_size > most_bytes:
        raise TooLarge(name, status.st_size, most_bytes)
    return status


def is_picture(path: Path, most_bytes: int) -> bool:
    """Is this a file that phones show as a picture, by its bytes? raises OSError, ValueError: there is none"""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            return False
        return sniff(os.read(descriptor, HEAD_BYTES)).picture
    finally:
        os.close(descriptor)


def _digest(file: io.BufferedReader) -> str:
    with file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class AnswersWorkers(Protocol):
    """The pool, as far as offers need it."""

    def settle(self, key: LeaseKey, settled: FileSettled) -> None: ...


@dataclass(frozen=True, slots=True)
class _Call:
    """What `send` was asked for under one name, and what became of it, once that is known."""

    content: str
    told: asyncio.Future[tuple[bool, str, str]]


@dataclass(frozen=True, slots=True)
class _Seen:
    name: str
    size: int
    digest: asyncio.Future[str]


class Outgoing:
    """most_bytes: [wechat] max_send_bytes as it is now. may_send: is `send_file` among this peer's tools? closed: why
    nothing that the peer did not ask for would be shown now, empty where it would"""

    def __init__(
        self,
        home: Home,
        spool: Spool,
        delivery: Delivery,
        pool: Callable[[], AnswersWorkers],
        most_bytes: Callable[[], int],
        may_send: Callable[[PeerKey], bool],
        closed: Callable[[PeerKey], str],
    ) -> None:
        self._home = home
        self._spool = spool
        self._delivery = delivery
        self._pool = pool
        self._most_bytes = most_bytes
        self._may_send = may_send
        self._closed = closed
        self._calls: dict[PeerKey, tuple[TurnId, dict[bytes, _Call]]] = {}  # of `send`, in each peer's latest turn
        self._seen: dict[PeerKey, tuple[int, list[_Seen]]] = {}  # of each peer's latest turn

    async def offered(self, key: LeaseKey, turn_id: TurnId, file_id: str, caption: str) -> None:
        """A worker's offer: into the answer, behind what its turn has said so far. The worker hears what became of it."""
        who, turn = key.who, int(turn_id)

        def settle(ok: bool, detail: str) -> None:
            self._pool().settle(key, FileSettled(turn_id, file_id, ok, detail))

        if not self._may_send(who):
            settle(False, "sending files is not among this session's tools")
            return
        if not _FILE_ID.fullmatch(file_id):
            settle(False, "no such entry")
            return
        if len(self._seen_in(who, turn)) >= OFFERS_PER_TURN:
            settle(False, f"at most {OFFERS_PER_TURN} files can be sent in one turn")
            return
        send_key = self._delivery.new_key()
        outbox = self._home.session_dir(*who) / OUTBOX
        try:
            name = await asyncio.to_thread(self._spool.take, send_key, outbox, file_id, most_bytes=self._most_bytes())
            again = await self._is_repeated(who, turn, send_key, name)
        except TooLarge as error:
            log.info("file_too_large peer=%s message=%d account=%s", who.peer, turn, who.account)
            settle(False, str(error))
            await self._delivery.notice(who, notices.file_too_large(error.name), PartKind.OUTCOME)
            return
        except (OfferRefused, OSError) as error:
            why = (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)
            log.warning("file_refused peer=%s message=%d reason=%s account=%s", who.peer, turn, why, who.account)
            self._spool.discard(send_key)
            settle(False, why)
            return
        if again:
            self._spool.discard(send_key)
            settle(True, "It was sent already in this turn.")
            return
        log.info("file_offered peer=%s message=%d account=%s", who.peer, turn, who.account)
        await self._delivery.file(
            who, send_key, name, turn_row=turn, caption=caption, fate=lambda fate: settle(*_TOLD[fate])
        )

    async def asked_to_send(self, key: LeaseKey, asked: SendAsked) -> None:
        """The operator's own agent: one picture now, apart from its answer, or not at all. The lease let nobody else ask."""
        who = key.who

        def settle(sent: bool, state: str, error: str) -> None:
            self._pool().settle(key, FileSettled(asked.turn_id, asked.file_id, sent, error, state))

        send_key = self._delivery.new_key()
        try:
            content, name = await asyncio.to_thread(self._wanted, send_key, who, asked)
        except (OfferRefused, OSError) as error:
            why = (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)
            self._spool.discard(send_key)
            settle(False, "refused", why)
            return
        calls = self._calls_in(who, asked.turn_id)
        call_name = hashlib.sha256(asked.call_id.encode()).digest()  # a worker names its calls as long as it likes
        if (before := calls.get(call_name)) is not None:
            self._spool.discard(send_key)
            if before.content != content:
                settle(False, "refused", "this call was made before, with other content")
            else:
                before.told.add_done_callback(lambda told: settle(*told.result()))
            return
        if len(calls) >= OFFERS_PER_TURN:
            self._spool.discard(send_key)
            settle(False, "refused", f"at most {OFFERS_PER_TURN} calls of send can be made in one turn")
            return
        call = calls[call_name] = _Call(content, asyncio.get_running_loop().create_future())
        call.told.add_done_callback(lambda told: settle(*told.result()))
        why = BELONGS_IN_THE_ANSWER if asked.text else self._closed(who)
        if why:
            self._spool.discard(send_key)
            call.told.set_result((False, "refused", why))
            return
        log.info("picture_sent_by_agent peer=%s message=%d account=%s", who.peer, asked.turn_id, who.account)
        await self._delivery.file(
            who, send_key, name, fate=lambda fate: call.told.set_result(_SEND_TOLD[fate]), now_or_never=True
        )

    def _wanted(self, send_key: SendKey, who: PeerKey, asked: SendAsked) -> tuple[str, str]:
        """What tells this content from any other, and the picture's name; it lies in the spool then. raises OfferRefused,
        OSError"""
        if asked.text:
            return f"text {hashlib.sha256(asked.text.encode()).hexdigest()}", ""
        if not _FILE_ID.fullmatch(asked.file_id):
            raise OfferRefused("no such entry")
        outbox = self._home.session_dir(*who) / OUTBOX
        name = self._spool.take(send_key, outbox, asked.file_id, most_bytes=self._most_bytes())
        path = self._spool.path(send_key)
        if not is_picture(path, self._most_bytes()):
            raise OfferRefused(f"{name}: not a picture that phones show (PNG, JPEG, GIF, WebP)")
        return f"picture {name} {_digest(open(path, 'rb'))}", name

    def _calls_in(self, who: PeerKey, turn: TurnId) -> dict[bytes, _Call]:
        """A call never outlives its turn: whoever died in it has no agent left that waits."""
        latest, calls = self._calls.get(who, (turn, {}))
        if latest != turn:
            calls = {}
        self._calls[who] = (turn, calls)
        return calls

    async def send_file(self, who: PeerKey, name: str, content: bytes) -> bool:
        """A file of our own making, now or never. False: it was not sent, and the peer was told nothing."""
        send_key = self._delivery.new_key()
        try:
            await asyncio.to_thread(self._spool.put, send_key, content)
        except OSError as error:
            log.warning("file_not_spooled reason=%s", error.strerror)
            return False
        return await self._now_or_never(who, send_key, safe_name(name, fallback=A_FILE)) is FileFate.SENT

    async def send_copy(self, who: PeerKey, source: Path) -> FileFate:
        """A copy of one of the operator's files, now or never. raises OSError"""
        send_key = self._delivery.new_key()
        await asyncio.to_thread(self._spool.copy, send_key, source)
        return await self._now_or_never(who, send_key, safe_name(source.name, fallback=A_FILE))

    async def _now_or_never(self, who: PeerKey, send_key: SendKey, name: str) -> FileFate:
        told: asyncio.Future[FileFate] = asyncio.get_running_loop().create_future()

        def tell(fate: FileFate) -> None:
            if not told.done():
                told.set_result(fate)

        await self._delivery.file(who, send_key, name, fate=tell, now_or_never=True)
        return await told

    async def _is_repeated(self, who: PeerKey, turn: int, send_key: SendKey, name: str) -> bool:
        """Was the same file offered before in this turn, under the same name? Agents name one picture twice (B-099).

        Everybody's turns wait for us, so that the bytes are awaited only where name and size are those of another.
        """
        seen = self._seen_in(who, turn)
        file = open(self._spool.path(send_key), "rb")  # noqa: SIM115, ASYNC230 - open, it outlives its name; _digest() closes it
        size = os.fstat(file.fileno()).st_size
        found = _Seen(name, size, asyncio.ensure_future(asyncio.to_thread(_digest, file)))
        self._seen[who] = (turn, [*seen, found])
        return any(
            [await before.digest == await found.digest for before in seen if (before.name, before.size) == (name, size)]
        )

    def _seen_in(self, who: PeerKey, turn: int) -> list[_Seen]:
        latest, seen = self._seen.get(who, (turn, []))
        return seen if latest == turn else []


_TOLD = {
    FileFate.SENT: (True, ""),
    FileFate.WAITS: (True, "It goes out as soon as they write again."),
    FileFate.NOT_SENT: (False, "it could not be uploaded; they were told its name"),
    FileFate.DROPPED: (False, "the turn was stopped before it went out"),
}
_SEND_TOLD = {
    FileFate.SENT: (True, "sent", ""),
    FileFate.WAITS: (False, "failed", "it could not be sent now, and is not kept"),
    FileFate.NOT_SENT: (False, "failed", "it could not be uploaded"),
    FileFate.DROPPED: (False, "failed", "it could not be sent now, and is not kept"),
}
