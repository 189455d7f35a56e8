"""credentials.json on a real disk."""

import json
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from protocol.content import Role
from protocol.errors import BridgeError
from protocol.ids import AccountId
from supervisor.channels.base import Credentials
from supervisor.credentials import CredentialsFile, CredentialsUnwritable, StoredAccount

ALICE = Credentials(
    AccountId("alice@im.wechat"), "b1@im.bot", "b1@im.bot:060000SECRET", "https://ilinkai.weixin.qq.com"
)
BOB = Credentials(AccountId("bob@im.wechat"), "b2@im.bot", "b2@im.bot:060000OTHER", "https://ilinkai.weixin.qq.com")


def put(file: CredentialsFile, credentials: Credentials) -> None:
    file.put(credentials, 1.0, name="work", role=Role.OPERATOR)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credentials.json"


def test_what_is_put_is_there_after_a_restart_and_what_is_removed_is_not(path: Path) -> None:
    file, _ = CredentialsFile.open(path)
    put(file, ALICE)
    put(file, BOB)
    file.remove(ALICE.account)

    again, warnings = CredentialsFile.open(path)

    assert again.all() == (StoredAccount(BOB, 1.0, "work", Role.OPERATOR),)
    assert warnings == ()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_token_never_shows_in_a_repr() -> None:
    assert "SECRET" not in repr(ALICE)


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 107, b'{"accou', b"[]", b'{"accounts": [{"account": "a"}]}', b"\xff\xfe"]
)
def test_b006_a_damaged_file_is_set_aside_and_named_once(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)

    file, warnings = CredentialsFile.open(path)

    assert file.all() == ()
    assert len(warnings) == 1 and "bridge-ctl login" in warnings[0]
    assert [p.read_bytes() for p in path.parent.glob("credentials.json.damaged-*")] == [data]


def test_a_file_open_to_others_is_closed_and_named(path: Path) -> None:
    file, _ = CredentialsFile.open(path)
    put(file, ALICE)
    path.chmod(0o644)

    again, warnings = CredentialsFile.open(path)

    assert [one.credentials for one in again.all()] == [ALICE]
    assert len(warnings) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_refused_with_its_path(path: Path) -> None:
    path.write_bytes(b"{}")
    os.chown(path, 12345, 12345)

    with pytest.raises(BridgeError, match="credentials.json: belongs to another user"):
        CredentialsFile.open(path)


def test_a_refused_write_keeps_the_old_accounts(path: Path) -> None:
    file, _ = CredentialsFile.open(path)
    put(file, ALICE)
    before = path.read_bytes()
    moved = path.parent.with_name("elsewhere")
    path.parent.rename(moved)

    with pytest.raises(CredentialsUnwritable):
        put(file, BOB)

    assert [one.credentials for one in file.all()] == [ALICE]
    assert (moved / path.name).read_bytes() == before


def test_an_entry_that_does_not_say_its_role_counts_as_a_guests(path: Path) -> None:
    file, _ = CredentialsFile.open(path)
    put(file, ALICE)
    entries = json.loads(path.read_text())
    del entries["accounts"][0]["role"]
    path.write_text(json.dumps(entries))

    again, _ = CredentialsFile.open(path)

    assert [one.role for one in again.all()] == [Role.GUEST]


def test_b006_many_writes_at_once_leave_a_file_that_parses_at_every_moment(path: Path) -> None:
    """B-006: readers never see a half of it."""
    file, _ = CredentialsFile.open(path)
    put(file, ALICE)
    over = threading.Event()

    def read() -> int:
        reads = 0
        while not over.is_set():
            reads += len(json.loads(path.read_bytes())["accounts"]) == 1
        return reads

    with ThreadPoolExecutor() as threads:
        reading = [threads.submit(read) for _ in range(3)]
        for _ in range(300):
            put(file, ALICE)
        over.set()

    assert all(one.result() > 0 for one in reading)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
