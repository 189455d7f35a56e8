"""The outbox folder: how an agent's file gets out of its sandbox (settled by file, never by the link).

Whoever offers a file copies it, with the worker's own rights, to `outbox/<id>/` in the session folder and renames a small
`<id>.json` {name, caption} beside it. turn.py looks there while a turn runs, tells the supervisor, and lays `<id>.answer`
{ok, detail, state} down when it hears what became of it. The embedded agent's tools, our MCP server (offer.py), Pi's
extension and blocks in an ACP answer all come through here. A call of `send`, which the operator's own session has, is
such an entry too: its json holds {send: {call, text}}, and a picture only where there is no text.
Standard library only: offer.py starts in a bare interpreter.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

OUTBOX = "outbox"
ANSWER_S = 180.0  # an upload has three tries of a minute
LOOK_S = 0.1
NAME_BYTES = 200
NOTE_BYTES = 64 * 1024  # of an <id>.json
SEND_CHARS, SEND_PATH_CHARS = 4000, 4096  # behaviour.md 3, "Proactive send"
OFFERS = 100  # seen at one look; more wait for the next
NOBODY_SAID = "nobody said whether the file was sent"
_FILE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}


class NoFile(Exception):
    """There is nothing to offer under this path. Its words are for the agent."""


@dataclass(frozen=True, slots=True)
class Send:
    """What `send` is asked for beside the picture. call_id: the agent's own name for this call"""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Offer:
    """send: None where a file is to go out with the answer."""

    file_id: str
    caption: str
    send: Send | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """detail: for the agent, one line; may be empty. state: of a send"""

    ok: bool
    detail: str
    state: str = ""

    def in_words(self) -> str:
        if self.ok:
            return self.detail or "The file was sent."
        return f"The file was not sent: {self.detail}"

    def as_result(self) -> str:
        """What `send` gives back, as JSON: sent, state ("sent", "refused", "failed", "unknown"), error."""
        return json.dumps({"sent": self.ok, "state": self.state or "refused", "error": self.detail or None})


class Outbox:
    """One session's. Blocking calls, each short but for lay(), which copies a file."""

    def __init__(self, session_dir: Path) -> None:
        self.folder = session_dir / OUTBOX
        self._seen: set[str] = set()

    def clear(self) -> None:
        """Before the session opens: whoever offered what lies here is gone, and so is the turn that it belonged to."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def lay(self, path: Path, caption: str = "", *, send: Send | None = None) -> str:
        """Offer a copy of this file; the id under which its answer will come. raises NoFile"""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise NoFile(f"{path.name}: {getattr(error, 'strerror', None) or 'no such path'}") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NoFile(f"{path.name}: not a file")
        with open(descriptor, "rb") as source:
            try:
                file_id, copy = self._place(path.name)
                with open(copy, "xb") as target:
                    shutil.copyfileobj(source, target)
                self._announce(file_id, path.name, caption, send)
            except OSError as error:
                raise NoFile(f"{path.name}: {error.strerror or 'cannot be copied'}") from None
        return file_id

    def lay_bytes(self, name: str, data: bytes, caption: str = "") -> str:
        """The same for bytes that are no file yet. raises NoFile"""
        try:
            file_id, copy = self._place(name)
            copy.write_bytes(data)
            self._announce(file_id, name, caption)
        except OSError as error:
            raise NoFile(f"{name}: {error.strerror or 'cannot be written'}") from None
        return file_id

    def lay_text(self, send: Send) -> str:
        """A call of `send` without a picture. raises NoFile"""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            file_id = secrets.token_hex(8)
            self._announce(file_id, "", "", send)
        except OSError as error:
            raise NoFile(error.strerror or "the outbox cannot be written") from None
        return file_id

    def look(self) -> tuple[Offer, ...]:
        """What has been offered since the last look."""
        try:
            with os.scandir(self.folder) as entries:
                new = [
                    name
                    for entry in entries
                    if entry.name.endswith(".json") and (name := entry.name.removesuffix(".json")) not in self._seen
                ]
        except OSError:
            return ()
        offers = []
        for file_id in sorted(new)[:OFFERS]:
            self._seen.add(file_id)
            if _FILE_ID.fullmatch(file_id):
                offers.append(self._offer(file_id))
        return tuple(offers)

    def settle(self, file_id: str, answer: Answer) -> None:
        """Lay down the answer for whoever waits for it."""
        if not _FILE_ID.fullmatch(file_id):
            return
        with contextlib.suppress(OSError):
            (self.folder / f"{file_id}.json").unlink(missing_ok=True)
            unfinished = self.folder / f"{file_id}.answer.part"
            unfinished.write_text(
                json.dumps({"ok": answer.ok, "detail": answer.detail, "state": answer.state}), encoding="utf-8"
            )
            unfinished.rename(self.folder / f"{file_id}.answer")
            self._seen.discard(file_id)

    def answer(self, file_id: str) -> Answer | None:
        """What became of an offer, once it is known; it is told once."""
        path = self.folder / f"{file_id}.answer"
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            path.unlink(missing_ok=True)
            return Answer(bool(told["ok"]), str(told["detail"]), str(told.get("state", "")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError):
            return Answer(False, NOBODY_SAID)

    def _place(self, name: str) -> tuple[str, Path]:
        file_id = secrets.token_hex(8)
        folder = self.folder / file_id
        folder.mkdir(mode=0o700, parents=True)
        plain = name.replace("/", "_").replace("\0", "") or "file"
        shortened = os.fsencode(plain)
        if len(shortened) > NAME_BYTES:
            stem, dot, suffix = plain.rpartition(".")
            keeps = dot + suffix if stem and len(suffix) <= 8 else ""
            cut = shortened[: NAME_BYTES - len(os.fsencode(keeps))]
            plain = cut.decode("utf-8", "ignore") + keeps
        return file_id, folder / (plain if plain not in (".", "..") else "file")

    def _announce(self, file_id: str, name: str, caption: str, send: Send | None = None) -> None:
        note: dict[str, object] = {"name": name, "caption": caption}
        if send is not None:
            note["send"] = {"call": send.call_id, "text": send.text}
        unfinished = self.folder / f"{file_id}.part"
        unfinished.write_text(json.dumps(note), encoding="utf-8")
        unfinished.rename(self.folder / f"{file_id}.json")

    def _offer(self, file_id: str) -> Offer:
        try:
            with open(self.folder / f"{file_id}.json", "rb") as file:
                note = json.loads(file.read(NOTE_BYTES))
        except (OSError, ValueError):
            return Offer(file_id, "")
        note = note if isinstance(note, dict) else {}
        send = note.get("send")
        wanted = Send(_text(send.get("call")), _text(send.get("text"))) if isinstance(send, dict) else None
        return Offer(file_id, _text(note.get("caption")), wanted)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


async def send_file(outbox: Outbox, path: Path, caption: str = "", *, answer_s: float = ANSWER_S) -> Answer:
    """The embedded agent's tool: offer, and wait for what becomes of it. path: absolute"""
    return await _offered(outbox, lambda: outbox.lay(path, caption), answer_s)


async def send(
    outbox: Outbox, folder: Path, call_id: str, text: str, image: str, *, answer_s: float = ANSWER_S
) -> Answer:
    """The embedded agent's `send`. image: a path, relative to this folder where it is not absolute"""
    if (why := unsendable(text, image)) is not None:
        return why
    return await _offered(outbox, lambda: lay_send(outbox, folder, call_id, text, image), answer_s)


def unsendable(text: str, image: str) -> Answer | None:
    """Why `send` cannot even be asked for that; None: it can."""
    if bool(text) == bool(image):
        return Answer(False, "either `text` or `image`, not both and not neither", "refused")
    if len(text) > SEND_CHARS or len(image) > SEND_PATH_CHARS:
        return Answer(
            False, f"`text` has at most {SEND_CHARS} characters, the path at most {SEND_PATH_CHARS}", "refused"
        )
    return None


def lay_send(outbox: Outbox, folder: Path, call_id: str, text: str, image: str) -> str:
    """raises NoFile"""
    wanted = Send(call_id, text)
    return outbox.lay(folder / image, send=wanted) if image else outbox.lay_text(wanted)


async def _offered(outbox: Outbox, lay: Callable[[], str], answer_s: float) -> Answer:
    try:
        file_id = await asyncio.to_thread(lay)
    except NoFile as error:
        return Answer(False, str(error), "refused")
    end = time.monotonic() + answer_s
    while (answer := outbox.answer(file_id)) is None:
        if time.monotonic() > end:
            return Answer(False, NOBODY_SAID, "unknown")
        await asyncio.sleep(LOOK_S)
    return answer


def path_of(uri: str) -> Path | None:
    """The file that a file: address names; None for any other kind."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = unquote(parts.path)
    return Path(path) if parts.scheme == "file" and parts.netloc in ("", "localhost") and path.startswith("/") else None


def picture_name(mime: str) -> str:
    return f"picture{_SUFFIXES.get(mime, '')}"
