"""What accounts tell the others; the rest of them is played in tests/promises/test_accounts.py."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.content import Role
from protocol.ids import AccountId
from supervisor.accounts import Accounts, Hooks
from supervisor.channels.base import Credentials
from supervisor.clock import SystemClock
from supervisor.config import Settings, read_environment
from supervisor.credentials import CredentialsFile
from supervisor.lockfile import AccountLock, AlreadyRunning
from supervisor.store import Journal, Store

ME = AccountId("me@im.wechat")


class Lock:
    """An account's lock that somebody else holds for the first so many tries."""

    def __init__(self, held: int = 0) -> None:
        self.left = held

    def acquire(self) -> None:
        if self.left:
            self.left -= 1
            raise AlreadyRunning("this account", 4711)

    def release(self) -> None: ...


class Told(Exception):
    """The account's hook was called."""


async def until_signed_in(folder: Path, lock: Lock) -> list[AccountId]:
    """Open the stored account as a start does, and go on until somebody is told that it can send."""
    journal, _ = await Journal.open(folder / "journal")
    credentials = Credentials(account=ME, bot_id="b@im.bot", token="t", base_url="http://127.0.0.1:9")
    await journal.do(Store.sign_in, ME, "b@im.bot", "default", Role.OPERATOR, 1.0)
    file, _ = CredentialsFile.open(folder / "credentials.json")
    file.put(credentials, 1.0, name="default", role=Role.OPERATOR)
    told: list[AccountId] = []
    heard = asyncio.Event()

    def signed_in(account: AccountId) -> None:
        assert accounts.channel(account) is not None
        told.append(account)
        heard.set()

    def nothing(*_: object) -> None: ...

    try:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            accounts = Accounts(
                settings=Settings(),
                environment=read_environment(),
                journal=journal,
                credentials=file,
                new_lock=_always(lock),
                tasks=tasks,
                clock=SystemClock(),
            )
            accounts.attach(
                Hooks(recorded=nothing, expired=nothing, back_online=nothing, logged_in=nothing, signed_in=signed_in)
            )
            await accounts.open_stored()
            accounts.run_opened()
            await heard.wait()
            await accounts.stop_polling()
            await accounts.close()
            raise Told
    except* Told:
        pass
    finally:
        await journal.close()
    return told


def _always(lock: Lock) -> Callable[[AccountId], AccountLock]:
    return lambda _: lock  # type: ignore[return-value]


def test_after_a_start_whoever_sends_is_told_that_the_account_can(tmp_path: Path) -> None:
    """Parts that a kill left are tried before the account is opened; untold, they and all that followed were held until
    the next login."""
    assert asyncio.run(until_signed_in(tmp_path, Lock())) == [ME]


def test_whoever_sends_is_told_when_the_lock_of_an_account_comes_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.accounts.LOCK_RETRY_S", 0.01)

    assert asyncio.run(until_signed_in(tmp_path, Lock(held=2))) == [ME]
