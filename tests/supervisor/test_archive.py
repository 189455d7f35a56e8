"""archive: what a backup holds, what a restore refuses, and that a home comes back as it was, paused."""

import contextlib
import io
import os
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.content import Role
from protocol.ids import AccountId
from supervisor import archive
from supervisor.archive import BackupRefused
from supervisor.channels.base import Credentials
from supervisor.credentials import CredentialsFile
from supervisor.home import Home
from supervisor.lockfile import AlreadyRunning, HomeLock
from supervisor.store import Store

ROOT = Path(__file__).resolve().parent.parent.parent
ME = AccountId("me@im.wechat")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """One account, one peer with a session, a workspace and media."""
    made = Home(tmp_path / "home")
    made.make()
    made.bridge_toml.write_text("[agent]\nhost = 'echo'\n")
    made.audit.write_text("{}\n")
    store, _ = Store.open(made.journal)
    store.sign_in(ME, "bot@im.bot", "default", Role.OPERATOR, 1.0)
    store.close()
    credentials, _ = CredentialsFile.open(made.credentials)
    credentials.put(_credentials(), 1.0, name="default", role=Role.OPERATOR)
    for folder in (made.session_dir(ME, ME), made.workspace_dir(ME, ME), made.media_dir(ME, ME)):
        folder.mkdir()
        (folder / "kept.txt").write_text(folder.parent.name)
    return made


def _credentials() -> Credentials:
    return Credentials(account=ME, bot_id="bot@im.bot", token="secret-token", base_url="http://127.0.0.1:1")


@contextlib.contextmanager
def journal(home: Home) -> Iterator[Store]:
    store, odd = Store.open(home.journal)
    assert not odd
    with contextlib.closing(store):
        yield store


def backed_up(home: Home) -> Path:
    target = home.path.parent / "backup.tar.gz"
    archive.back_up(home, target, version="0.1.0")
    return target


def names(file: Path) -> set[str]:
    with tarfile.open(file) as opened:
        return set(opened.getnames())


def rebuilt(file: Path, change: Callable[[tarfile.TarInfo, bytes], tuple[tarfile.TarInfo, bytes] | None]) -> Path:
    """The same archive with each member changed, or left out."""
    target = file.with_name("changed.tar.gz")
    with tarfile.open(file) as old, tarfile.open(target, "w:gz") as new:
        for entry in old:
            content = old.extractfile(entry) if entry.isreg() else None
            changed = change(entry, content.read() if content else b"")
            if changed is not None:
                entry, data = changed
                entry.size = len(data)
                new.addfile(entry, io.BytesIO(data))
    return target


def with_member(file: Path, entry: tarfile.TarInfo, data: bytes = b"") -> Path:
    target = rebuilt(file, lambda member, content: (member, content))
    with tarfile.open(file) as old, tarfile.open(target, "w:gz") as new:
        for member in old:
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
        entry.size = len(data)
        new.addfile(entry, io.BytesIO(data))
    return target


def test_a_home_comes_back_as_it_was_and_paused(home: Home, tmp_path: Path) -> None:
    back = Home(tmp_path / "back")

    lines = archive.restore(backed_up(home), back)

    assert back.bridge_toml.read_text() == home.bridge_toml.read_text()
    assert back.credentials.read_text() == home.credentials.read_text()
    assert (back.session_dir(ME, ME) / "kept.txt").read_text() == "sessions"
    assert (back.workspace_dir(ME, ME) / "kept.txt").read_text() == "workspaces"
    with journal(back) as store:
        (account,) = store.accounts()
        assert (account.account, account.paused) == (ME, True)
    with journal(home) as store:
        assert not store.accounts()[0].paused
    assert any("bridge-ctl resume" in line for line in lines)
    assert {one.name for one in back.path.iterdir()} == {one.name for one in home.path.iterdir()}
    assert not list(tmp_path.glob(".*"))


def test_media_locks_and_sockets_stay_behind(home: Home) -> None:
    (home.run / "lock").write_text("1")

    roots = {Path(name).parts[0] for name in names(backed_up(home))}

    assert roots == {
        "backup.json",
        "bridge.toml",
        "credentials.json",
        "audit.jsonl",
        "state.db",
        "sessions",
        "workspaces",
    }


def test_an_archive_is_readable_for_its_owner_alone(home: Home) -> None:
    os.umask(os.umask(0))

    assert stat.S_IMODE(backed_up(home).stat().st_mode) == 0o600


def test_a_journal_that_is_being_written_to_is_copied_in_one_piece(home: Home, tmp_path: Path) -> None:
    """It is in use, its newest rows still in the write-ahead log."""
    store, _ = Store.open(home.journal)
    with contextlib.closing(store):
        store.set_paused(ME, True)
        store.set_expired(ME, True)

        archive.restore(backed_up(home), Home(tmp_path / "back"))

    with journal(Home(tmp_path / "back")) as copied:
        assert copied.accounts()[0].expired


def test_a_running_home_can_be_backed_up_but_not_restored_over(home: Home) -> None:
    with HomeLock(home.lock):
        file = backed_up(home)

        with pytest.raises(AlreadyRunning):
            archive.restore(file, home)


def test_links_are_kept_as_links_and_nothing_is_read_through_them(home: Home, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not of this home")
    workspace = home.workspace_dir(ME, ME)
    (workspace / "out").symlink_to(secret)
    (workspace / "folder").symlink_to(tmp_path)
    os.mkfifo(workspace / "pipe")

    file = backed_up(home)
    archive.restore(file, Home(tmp_path / "back"))

    back = Home(tmp_path / "back").workspace_dir(ME, ME)
    assert os.readlink(back / "out") == str(secret)
    assert os.readlink(back / "folder") == str(tmp_path)
    assert not (back / "pipe").exists()
    assert b"not of this home" not in b"".join(_contents(file))


def _contents(file: Path) -> Iterator[bytes]:
    with tarfile.open(file) as opened:
        for entry in opened:
            content = opened.extractfile(entry) if entry.isreg() else None
            if content is not None:
                yield content.read()


@pytest.mark.parametrize("name", ["../escaped", "/escaped", "sessions/../../escaped", "run/lock", "elsewhere.txt"])
def test_a_member_that_leaves_the_home_is_refused_and_nothing_is_written(home: Home, tmp_path: Path, name: str) -> None:
    file = with_member(backed_up(home), tarfile.TarInfo(name), b"x")

    with pytest.raises(BackupRefused, match="no part of a home"):
        archive.restore(file, Home(tmp_path / "back"))

    assert not (tmp_path / "back").exists()
    assert not list(tmp_path.rglob("escaped"))
    assert not list(tmp_path.glob(".*"))


def test_nothing_is_written_through_a_link_of_the_archive(home: Home, tmp_path: Path) -> None:
    peer = f"workspaces/{home.workspace_dir(ME, ME).name}"
    link = tarfile.TarInfo(f"{peer}/way")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
    through = tarfile.TarInfo(f"{peer}/way/planted")
    file = with_member(with_member(backed_up(home), link).rename(tmp_path / "linked.tar.gz"), through, b"x")

    with pytest.raises(BackupRefused):
        archive.restore(file, Home(tmp_path / "back"))

    assert not (tmp_path / "planted").exists()
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_hard_links_pipes_and_devices_are_refused(home: Home, tmp_path: Path, kind: bytes) -> None:
    entry = tarfile.TarInfo("sessions/odd")
    entry.type, entry.linkname = kind, "credentials.json"

    with pytest.raises(BackupRefused, match="no file, folder or link"):
        archive.restore(with_member(backed_up(home), entry), Home(tmp_path / "back"))


def test_a_member_that_is_there_twice_is_refused(home: Home, tmp_path: Path) -> None:
    with pytest.raises(BackupRefused, match="twice"):
        archive.restore(with_member(backed_up(home), tarfile.TarInfo("bridge.toml")), Home(tmp_path / "back"))


def test_a_damaged_journal_is_refused(home: Home, tmp_path: Path) -> None:
    def damage(entry: tarfile.TarInfo, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
        return entry, b"not a database" if entry.name == "state.db" else data

    with pytest.raises(BackupRefused, match="journal is damaged"):
        archive.restore(rebuilt(backed_up(home), damage), Home(tmp_path / "back"))


def test_damaged_credentials_are_refused(home: Home, tmp_path: Path) -> None:
    def damage(entry: tarfile.TarInfo, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
        return entry, b"{" if entry.name == "credentials.json" else data

    with pytest.raises(BackupRefused, match="credentials are damaged"):
        archive.restore(rebuilt(backed_up(home), damage), Home(tmp_path / "back"))


@pytest.mark.parametrize("missing", ["backup.json", "state.db"])
def test_an_archive_without_its_main_parts_is_no_backup(home: Home, tmp_path: Path, missing: str) -> None:
    file = rebuilt(backed_up(home), lambda entry, data: None if entry.name == missing else (entry, data))

    with pytest.raises(BackupRefused):
        archive.restore(file, Home(tmp_path / "back"))


def test_a_truncated_archive_is_refused_wherever_it_ends(home: Home, tmp_path: Path) -> None:
    whole = backed_up(home).read_bytes()
    cut = tmp_path / "cut.tar.gz"
    for end in range(0, len(whole) - 8, max(1, len(whole) // 40)):
        cut.write_bytes(whole[:end])
        with pytest.raises(BackupRefused):
            archive.restore(cut, Home(tmp_path / "back"))
    assert not (tmp_path / "back").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_backup_of_a_newer_bridge_is_refused_by_name(home: Home, tmp_path: Path) -> None:
    def newer(entry: tarfile.TarInfo, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
        return entry, b'{"format": 99, "version": "9.0.0"}' if entry.name == "backup.json" else data

    with pytest.raises(BackupRefused, match=r"9\.0\.0, newer"):
        archive.restore(rebuilt(backed_up(home), newer), Home(tmp_path / "back"))


def test_an_existing_file_is_never_replaced(home: Home, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")

    with pytest.raises(BackupRefused, match="exists already"):
        archive.back_up(home, target, version="0.1.0")

    assert target.read_text() == "mine"


def test_a_home_that_is_not_empty_is_left_as_it_is(home: Home, tmp_path: Path) -> None:
    file = backed_up(home)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()

    with pytest.raises(BackupRefused, match="not empty"):
        archive.restore(file, Home(tmp_path / "full"))


def test_an_empty_folder_may_become_a_home(home: Home, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    archive.restore(backed_up(home), Home(tmp_path / "empty"))

    with journal(Home(tmp_path / "empty")) as store:
        assert store.accounts()


def test_a_home_without_a_journal_is_no_home_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(BackupRefused, match="nothing to back up"):
        archive.back_up(Home(tmp_path), tmp_path / "file", version="0.1.0")


@pytest.mark.skipif(os.geteuid() != 0, reason="uids of their own are given as root alone")
def test_as_root_a_peers_folders_go_back_to_the_peers_uid(home: Home, tmp_path: Path) -> None:
    folder = home.session_dir(ME, ME)
    for path in (folder, folder / "kept.txt"):
        os.chown(path, 210007, 210007)

    archive.restore(backed_up(home), Home(tmp_path / "back"))

    back = Home(tmp_path / "back").session_dir(ME, ME)
    assert {path.stat().st_uid for path in (back, back / "kept.txt")} == {210007}


def test_the_two_commands_speak_one_line_each(home: Home, tmp_path: Path) -> None:
    file, back = tmp_path / "b.tgz", tmp_path / "back"

    made = run("backup", str(file), "--home", str(home.path))
    again = run("backup", str(file), "--home", str(home.path))
    there = run("restore", str(file), "--home", str(home.path))
    restored = run("restore", str(file), "--home", str(back))
    absent = run("restore", str(tmp_path / "absent"), "--home", str(tmp_path / "other"))

    assert (made.returncode, made.stderr) == (0, "")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1) and "exists already" in again.stderr
    assert (there.returncode, there.stderr.count("\n")) == (1, 1) and "not empty" in there.stderr
    assert restored.returncode == 0 and "resume" in restored.stdout
    assert (absent.returncode, absent.stderr.count("\n")) == (1, 1) and "No such file" in absent.stderr
    with HomeLock(home.lock):
        assert run("restore", str(file), "--home", str(home.path)).returncode == 3


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_the_copy_of_the_journal_needs_no_companions(home: Home, tmp_path: Path) -> None:
    with tarfile.open(backed_up(home)) as opened:
        opened.extract("state.db", tmp_path / "alone", filter="data")

    with contextlib.closing(sqlite3.connect(f"file:{tmp_path / 'alone' / 'state.db'}?immutable=1", uri=True)) as db:
        assert db.execute("SELECT count(*) FROM account").fetchone() == (1,)
