"""credentials.json: the stored accounts' tokens. Mode 0600, replaced atomically, one writer (we hold the home's lock).

A damaged file is set aside and counts as logged out; one that others may read is closed to 0600 and named once; one
that belongs to somebody else is not used.
"""

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from protocol.content import Role
from protocol.errors import BridgeError
from protocol.ids import AccountId
from supervisor.channels.base import Credentials

VERSION = 1


class CredentialsUnwritable(BridgeError):
    """The disk refuses the file; the old one is untouched."""


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """name and role stand in the journal too: here they are for the day on which the journal is lost."""

    credentials: Credentials
    saved_at: float
    name: str
    role: Role


class CredentialsFile:
    """All stored accounts. Tokens leave it only inside Credentials, whose repr hides them."""

    def __init__(self, path: Path, stored: Mapping[AccountId, StoredAccount]) -> None:
        self._path = path
        self._stored = dict(stored)

    @classmethod
    def open(cls, path: Path) -> tuple[Self, tuple[str, ...]]:
        """The second value: one line for each thing that was odd. raises BridgeError: it belongs to somebody else"""
        warnings: list[str] = []
        try:
            found = path.lstat()
        except FileNotFoundError:
            return cls(path, {}), ()
        if found.st_uid != os.geteuid():
            raise BridgeError(f"{path}: belongs to another user; give it back or remove it")
        if not stat.S_ISREG(found.st_mode):
            raise BridgeError(f"{path}: is no plain file; move it away")
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o600)
            warnings.append(f"{path.name}: was open to other users, now closed to 0600; sign in again if one read it")
        try:
            stored = _parse(path.read_bytes())
        except (ValueError, KeyError, TypeError, AttributeError):
            aside = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
            path.rename(aside)
            warnings.append(f"{path.name}: damaged, set aside as {aside.name}; nobody is signed in: bridge-ctl login")
            stored = {}
        return cls(path, stored), tuple(warnings)

    def all(self) -> tuple[StoredAccount, ...]:
        return tuple(self._stored.values())

    def put(self, credentials: Credentials, at: float, *, name: str, role: Role) -> None:
        """Store or renew one account. raises CredentialsUnwritable"""
        self._write({**self._stored, credentials.account: StoredAccount(credentials, at, name, role)})

    def remove(self, account: AccountId) -> None:
        """raises CredentialsUnwritable"""
        self._write({key: value for key, value in self._stored.items() if key != account})

    def _write(self, stored: Mapping[AccountId, StoredAccount]) -> None:
        accounts = [
            {
                "account": one.credentials.account,
                "bot_id": one.credentials.bot_id,
                "token": one.credentials.token,
                "base_url": one.credentials.base_url,
                "saved_at": one.saved_at,
                "name": one.name,
                "role": one.role.value,
            }
            for one in stored.values()
        ]
        data = json.dumps({"version": VERSION, "accounts": accounts}, indent=1).encode()
        try:
            descriptor, name = tempfile.mkstemp(prefix=".credentials-", dir=self._path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, self._path)
            except BaseException:
                os.unlink(name)
                raise
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise CredentialsUnwritable(f"{self._path}: cannot be written: {error.strerror}") from error
        self._stored = dict(stored)


def _parse(data: bytes) -> dict[AccountId, StoredAccount]:
    document: Any = json.loads(data)
    stored = {}
    for one in document["accounts"]:
        fields = {key: one[key] for key in ("account", "bot_id", "token", "base_url")}
        if not all(isinstance(value, str) and value for value in fields.values()):
            raise ValueError("an account without one of its fields")
        account = AccountId(fields["account"])
        credentials = Credentials(account, fields["bot_id"], fields["token"], fields["base_url"])
        stored[account] = StoredAccount(
            credentials, float(one.get("saved_at", 0.0)), str(one.get("name", "")), Role(one.get("role", Role.GUEST))
        )
    return stored
