"""Backup and restore: a home as one file, and back.

A backup is a gzipped tar of what cannot be had again: settings, tokens, the journal, the audit log, and each peer's
session and workspace. Media and run/ are left out. A home may be in use meanwhile: the journal is copied by SQLite
itself, in one piece, and what workers write is read without following their links. A restored home starts paused, since
the one it was taken from may still be polling.
"""

import contextlib
import io
import json
import os
import secrets
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from protocol.errors import BridgeError
from supervisor.credentials import CredentialsFile
from supervisor.home import Home
from supervisor.lockfile import HomeLock
from supervisor.store import Store

FORMAT = 1
MANIFEST = "backup.json"
MANIFEST_BYTES = 64 * 1024
FILES = ("bridge.toml", "peers.toml", "credentials.json", "audit.jsonl")
JOURNAL = "state.db"
FOLDERS = ("sessions", "workspaces")
ROOTS = (MANIFEST, JOURNAL, *FILES, *FOLDERS)


class BackupRefused(BridgeError):
    """The archive cannot be written, or may not be unpacked; the line says why and what would help."""


def back_up(home: Home, target: Path, *, version: str) -> int:
    """Write the archive, mode 0600, and return its size in bytes. An existing file is never replaced.

    raises BackupRefused, leaving nothing behind
    """
    if not home.journal.exists():
        raise BackupRefused(f"{home.path}: holds no journal, so there is nothing to back up; was another --home meant?")
    if target.exists():
        raise BackupRefused(f"{target}: exists already; choose another name")
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with contextlib.ExitStack() as undo:
            undo.callback(unfinished.unlink, missing_ok=True)
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
                    _add_bytes(archive, MANIFEST, _manifest(version))
                    for name in FILES:
                        _add_path(archive, home.path, name)
                    _add_journal(archive, home.journal)
                    for name in FOLDERS:
                        _add_tree(archive, home.path, name)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(unfinished, target)  # fails where somebody has made the file meanwhile
            except FileExistsError:
                raise BackupRefused(f"{target}: exists already; choose another name") from None
        return target.stat().st_size
    except OSError as error:
        raise BackupRefused(f"{target}: cannot be written: {error.strerror or error}") from error
    except sqlite3.Error as error:
        raise BackupRefused(f"{home.journal}: cannot be read: {error}") from error


def restore(source: Path, home: Home) -> tuple[str, ...]:
    """Unpack into a folder of its own, look whether it is whole, and only then put it in the home's place.

    Returns the lines that the operator should read. raises BackupRefused, AlreadyRunning; the home is then as it was
    """
    _must_be_free(home)
    try:
        home.path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{home.path.name}-", dir=home.path.parent))
    except OSError as error:
        raise BackupRefused(f"{home.path.parent}: cannot be written to: {error.strerror}") from error
    try:
        with tarfile.open(source, "r:gz") as archive:
            _unpack(archive, staging, source)
        lines = _validate(Home(staging), source)
        _must_be_free(home)
        staging.rename(home.path)  # onto nothing, or onto an empty folder
        Home(home.path).make()
        return lines
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BackupRefused(f"{source}: is no backup, or a damaged one: {error}") from error
    except OSError as error:
        named = error.filename or source
        raise BackupRefused(f"{named}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


# --- writing ----------------------------------------------------------------------------------------------------


def _manifest(version: str) -> bytes:
    made = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return json.dumps({"format": FORMAT, "version": version, "made_at": made}).encode()


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
    archive.addfile(entry, io.BytesIO(data))


def _add_path(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        _add_file(archive, os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), name)


def _add_journal(archive: tarfile.TarFile, journal: Path) -> None:
    """SQLite's own copy: one moment of it, whatever is being written."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / JOURNAL
        with (
            contextlib.closing(sqlite3.connect(f"file:{_quoted(journal)}?mode=rw", uri=True, timeout=30)) as db,
            contextlib.closing(sqlite3.connect(copy)) as into,
        ):
            db.backup(into)
            into.execute("PRAGMA journal_mode = DELETE").fetchall()
        _add_path(archive, copy.parent, JOURNAL)


def _quoted(path: Path) -> str:
    return path.as_uri().removeprefix("file://")


def _add_tree(archive: tarfile.TarFile, home: Path, name: str) -> None:
    """Folders, regular files and links as links. A peer may move things about while we read: each is opened relative to
    the folder it was found in, and never through a link."""
    if not (home / name).is_dir():
        return
    for folder, names, files, descriptor in os.fwalk(home / name, follow_symlinks=False):
        place = PurePosixPath(os.path.relpath(folder, home))
        _add_entry(archive, str(place), os.fstat(descriptor), tarfile.DIRTYPE)
        for one in (*names, *files):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _add_found(archive, str(place / one), one, descriptor)


def _add_found(archive: tarfile.TarFile, path: str, name: str, folder: int) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        _add_entry(archive, path, found, tarfile.SYMTYPE, link=os.readlink(name, dir_fd=folder))
    elif stat.S_ISREG(found.st_mode):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(name, flags, dir_fd=folder)
        except OSError:  # a link or a closed file by now: no part of what can be kept
            return
        _add_file(archive, descriptor, path)


def _add_file(archive: tarfile.TarFile, descriptor: int, path: str) -> None:
    """Takes the descriptor. What grows or shrinks while it is read is stored at the size that was read."""
    with os.fdopen(descriptor, "rb") as file, tempfile.TemporaryFile() as copy:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return
        shutil.copyfileobj(file, copy)
        size = copy.tell()
        copy.seek(0)
        entry = _entry(path, found, tarfile.REGTYPE)
        entry.size = size
        archive.addfile(entry, copy)


def _add_entry(archive: tarfile.TarFile, path: str, found: os.stat_result, kind: bytes, *, link: str = "") -> None:
    entry = _entry(path, found, kind)
    entry.linkname = link
    archive.addfile(entry)


def _entry(path: str, found: os.stat_result, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type = kind
    entry.mode = stat.S_IMODE(found.st_mode) & 0o777
    entry.uid, entry.gid = found.st_uid, found.st_gid
    entry.mtime = int(found.st_mtime)
    return entry


# --- reading ----------------------------------------------------------------------------------------------------


def _must_be_free(home: Home) -> None:
    if home.lock.exists():
        with HomeLock(home.lock):
            pass
    if home.path.is_symlink() or (home.path.exists() and not home.path.is_dir()):
        raise BackupRefused(f"{home.path}: not a folder; choose another --home")
    if home.path.is_dir() and any(home.path.iterdir()):
        raise BackupRefused(f"{home.path}: not empty; move it away, or choose another --home")


def _unpack(archive: tarfile.TarFile, staging: Path, source: Path) -> None:
    """Links are made last, when nothing is written any more: no member can be led out of the folder by another one."""
    links: list[tuple[Path, tarfile.TarInfo]] = []
    folders: list[tuple[Path, tarfile.TarInfo]] = []
    for entry in _members(archive, source):
        path = staging / entry.name
        if entry.issym():
            links.append((path, entry))
        elif entry.isdir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folders.append((path, entry))
        else:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = archive.extractfile(entry)
            assert content is not None  # a regular file
            with path.open("xb") as file:
                shutil.copyfileobj(content, file)
            _dress(path, entry)
    for path, entry in links:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.symlink_to(entry.linkname)
        _own(path, entry)
    for path, entry in reversed(folders):
        _dress(path, entry)


def _members(archive: tarfile.TarFile, source: Path) -> Iterator[tarfile.TarInfo]:
    """Each member, if all is as a backup of ours has it. raises BackupRefused"""
    seen: set[str] = set()
    for entry in archive:
        place = PurePosixPath(entry.name)
        if place.is_absolute() or ".." in place.parts or not place.parts or place.parts[0] not in ROOTS:
            raise BackupRefused(f"{source}: refused, since {entry.name!r} in it is no part of a home")
        if not (entry.isreg() or entry.isdir() or entry.issym()) or (entry.issym() and place.parts[0] not in FOLDERS):
            raise BackupRefused(f"{source}: refused, since {entry.name!r} in it is no file, folder or link of a home")
        if str(place) in seen:
            raise BackupRefused(f"{source}: refused, since {entry.name!r} is in it twice")
        seen.add(str(place))
        if str(place) != MANIFEST and MANIFEST not in seen:
            raise BackupRefused(f"{source}: is no backup of a bridge")
        yield entry


def _dress(path: Path, entry: tarfile.TarInfo) -> None:
    path.chmod(entry.mode & 0o777)
    _own(path, entry)


def _own(path: Path, entry: tarfile.TarInfo) -> None:
    """As root each peer has a uid of its own, which the journal knows and its folders belong to."""
    if os.geteuid() == 0 and PurePosixPath(entry.name).parts[0] in FOLDERS:
        os.chown(path, entry.uid, entry.gid, follow_symlinks=False)


def _validate(staged: Home, source: Path) -> tuple[str, ...]:
    """Is all there and readable? The journal is paused and the tokens counted. raises BackupRefused, ValueError"""
    manifest = json.loads(_bounded(staged.path / MANIFEST))
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise BackupRefused(f"{source}: is no backup of a bridge")
    if manifest["format"] > FORMAT:
        raise BackupRefused(
            f"{source}: made by bridge-supervisor {manifest.get('version')}, newer than this one; install that one"
        )
    if not staged.journal.exists():
        raise BackupRefused(f"{source}: holds no journal")
    staged.make()
    store, odd = Store.open(staged.journal)
    with contextlib.closing(store):
        if odd:
            raise BackupRefused(f"{source}: its journal is damaged")
        accounts = store.accounts()
        for account in accounts:
            store.set_paused(account.account, True)
    _, odd = CredentialsFile.open(staged.credentials)
    if odd:
        raise BackupRefused(f"{source}: its credentials are damaged")
    (staged.path / MANIFEST).unlink()
    shutil.rmtree(staged.run)
    lines = [f"restored the backup of {manifest.get('made_at')}"]
    if accounts:
        lines.append("its accounts are paused: once no other bridge polls them, bridge-ctl resume")
    return tuple(lines)


def _bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MANIFEST_BYTES)
