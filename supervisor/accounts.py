"""The signed-in accounts: for each one its lock, its channel and its poll loop, and the orders that change them.

Each account's tasks stand in a group of their own: one that raises stops its account and is named, the others go on.
Credentials come and go here; the journal keeps what outlives them.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from enum import StrEnum

from protocol.content import Role
from protocol.ctl import AccountRow, CodeWanted, LockRow, Progress, QrShown
from protocol.errors import BridgeError
from protocol.ids import AccountId
from supervisor.channels.base import Channel, ChannelError, Credentials
from supervisor.channels.wechat import WeChatSettings
from supervisor.channels.wechat.client import WeChatChannel
from supervisor.channels.wechat.login import AlreadyBound, Confirmed, NotConfirmed, log_in
from supervisor.clock import Clock
from supervisor.config import Environment, Settings, WeChat
from supervisor.core.naming import AccountNames
from supervisor.core.poll import Arrival, PollState
from supervisor.credentials import CredentialsFile
from supervisor.ctlserver import Conversation
from supervisor.lockfile import AccountLock, AlreadyRunning
from supervisor.poll import Polling
from supervisor.store import AccountRecord, Journal, MessageRow, Store

log = logging.getLogger(__name__)

LOCK_RETRY_S = 30.0
REVIVED_S = 60.0  # a second refusal of the token within this time after a revival means that it has expired


class AccountState(StrEnum):
    RUNNING = "running"
    STALE = "stale"
    PAUSED = "paused"
    EXPIRED = "expired"
    STOPPED = "stopped"
    LOCKED_OUT = "locked_out"


class LoginFailed(BridgeError):
    """No account was added or changed."""


@dataclass(slots=True)
class _Account:
    """channel is kept through a pause, so that running turns can still answer."""

    record: AccountRecord
    credentials: Credentials
    state: AccountState = AccountState.STOPPED
    channel: Channel | None = None
    lock: AccountLock | None = None
    holder: int | None = None
    polling: Polling | None = None
    task: asyncio.Task[None] | None = None
    revived_at: float | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class Hooks:
    """What others do when an account moves; none of them may block.

    recorded     new rows are in the journal
    back_online  WeChat answers again after an outage
    logged_in    somebody has scanned: reply tokens of the login before are worth nothing
    signed_in    the account can send (again), whatever kept it from that
    """

    recorded: Callable[[tuple[MessageRow, ...], Arrival], None]
    expired: Callable[[AccountId], None]
    back_online: Callable[[AccountId], None]
    logged_in: Callable[[AccountId], None]
    signed_in: Callable[[AccountId], None]


class Accounts:
    """One per supervisor. new_lock: makes the lock of an account, wherever locks lie."""

    def __init__(
        self,
        *,
        settings: Settings,
        environment: Environment,
        journal: Journal,
        credentials: CredentialsFile,
        new_lock: Callable[[AccountId], AccountLock],
        tasks: asyncio.TaskGroup,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self._environment = environment
        self._journal = journal
        self._credentials = credentials
        self._new_lock = new_lock
        self._tasks = tasks
        self._clock = clock
        self._accounts: dict[AccountId, _Account] = {}
        self._hooks: Hooks | None = None

    def attach(self, hooks: Hooks) -> None:
        """Intake and scheduler listen here; they in turn need this object, hence the second step."""
        self._hooks = hooks

    # -- what others may ask

    def record(self, account: AccountId) -> AccountRecord | None:
        found = self._accounts.get(account)
        return found.record if found is not None else None

    def channel(self, account: AccountId) -> Channel | None:
        """None while nothing can be sent."""
        found = self._accounts.get(account)
        return found.channel if found is not None and found.state is not AccountState.EXPIRED else None

    def names(self) -> list[AccountNames]:
        return [AccountNames(a.record.account, a.record.name, a.record.bot_id) for a in self._accounts.values()]

    def bot_id(self, account: AccountId) -> str:
        found = self._accounts.get(account)
        return found.record.bot_id if found is not None else account

    def called(self, account: AccountId) -> str:
        found = self._accounts.get(account)
        return (found.record.name or found.record.bot_id) if found is not None else account

    def state(self, account: AccountId) -> AccountState:
        found = self._accounts.get(account)
        return _state(found) if found is not None else AccountState.STOPPED

    def listens(self, account: AccountId) -> bool:
        """Will what its peers write be read, as far as anybody knows?"""
        return self.state(account) in (AccountState.RUNNING, AccountState.STALE)

    def rows(self) -> list[AccountRow]:
        return [self._row(account) for account in self._accounts.values()]

    def locks(self) -> list[AccountLock]:
        """Those held now."""
        return [account.lock for account in self._accounts.values() if account.lock is not None]

    def expired(self) -> list[AccountId]:
        return [who for who, account in self._accounts.items() if account.state is AccountState.EXPIRED]

    def all_locked_out(self) -> int | None:
        """The pid of a holder when every stored account that should run is held elsewhere; else None."""
        wanting = [a for a in self._accounts.values() if a.state not in (AccountState.PAUSED, AccountState.EXPIRED)]
        if wanting and all(a.state is AccountState.LOCKED_OUT for a in wanting):
            return wanting[0].holder or 0
        return None

    # -- orders

    async def open_stored(self) -> None:
        """At start: every account with credentials and a row in the journal, each as it was left."""
        records = {record.account: record for record in await self._journal.do(Store.accounts)}
        for stored in self._credentials.all():
            credentials = stored.credentials
            record = records.get(credentials.account)
            if record is None:
                # The journal was lost or set aside. The login is as good as before, and nobody else can go on with it.
                log.warning("account_restored account=%s: it was not in the journal", credentials.bot_id)
                record = await self._journal.do(
                    Store.sign_in, credentials.account, credentials.bot_id, stored.name, stored.role, stored.saved_at
                )
            account = _Account(record, credentials)
            self._accounts[record.account] = account
            if record.paused:
                account.state = AccountState.PAUSED
            elif record.expired:
                account.state = AccountState.EXPIRED
            else:
                self._take_lock(account)

    def run_opened(self) -> None:
        """Begin to poll whatever open_stored has opened."""
        for account in self._accounts.values():
            if account.lock is not None:
                self._poll(account)
            elif account.state is AccountState.LOCKED_OUT:
                self._spawn(account, self._wait_for_lock(account))

    async def log_in(self, talk: Conversation, *, name: str, role: Role | None) -> str:
        """Show the QR and wait for the scan; the account is stored and polled at once. raises LoginFailed"""
        running = [a.credentials for a in self._accounts.values() if a.polling is not None]
        running.sort(key=lambda c: -self._accounts[c.account].record.logged_in_at)
        outcome = await log_in(
            self._wechat(), known_tokens=[c.token for c in running], desk=_Desk(talk), clock=self._clock
        )
        match outcome:
            case Confirmed(credentials):
                return await self._signed_in(credentials, name=name, role=role)
            case AlreadyBound():
                return "this WeChat user is already signed in here; nothing changed"
            case NotConfirmed(reason):
                raise LoginFailed(f"not signed in: {reason}")

    async def log_out(self, account_id: AccountId) -> None:
        """Stop polling, forget token, cursor and tickets. Turns were ended by the caller."""
        account = self._accounts[account_id]
        await self._stop_polling(account)
        await self._close_channel(account)
        await self._journal.do(Store.sign_out, account_id, self._clock.wall())
        self._credentials.remove(account_id)
        del self._accounts[account_id]

    async def pause(self, account_id: AccountId) -> None:
        """Stop polling and release the lock; running and waiting turns still answer. Lasts over a restart."""
        account = self._accounts[account_id]
        await self._journal.do(Store.set_paused, account_id, True)
        account.record = replace(account.record, paused=True)
        await self._stop_polling(account)
        account.state = AccountState.PAUSED

    async def resume(self, account_id: AccountId) -> None:
        """raises AlreadyRunning: another bridge holds the account; it stays paused"""
        account = self._accounts[account_id]
        lock = self._new_lock(account_id)
        lock.acquire()
        account.lock = lock
        await self._journal.do(Store.set_paused, account_id, False)
        account.record = replace(account.record, paused=False)
        self._poll(account)

    def token_refused(self, account_id: AccountId) -> None:
        """A send was answered with -14: announce ourselves once, then try again; a second time, it has expired."""
        account = self._accounts.get(account_id)
        if account is None or account.channel is None or account.state is not AccountState.RUNNING:
            return
        now = self._clock.now()
        if account.revived_at is not None and now < account.revived_at + REVIVED_S:
            self._tasks.create_task(self._expire_after_send(account), name=f"expire {account.record.bot_id}")
            return
        account.revived_at = now
        self._tasks.create_task(self._revive(account, account.channel), name=f"revive {account.record.bot_id}")

    async def stop_polling(self) -> None:
        """At shutdown: no account is polled any more on return; sends still work."""
        async with asyncio.TaskGroup() as stopping:
            for account in self._accounts.values():
                stopping.create_task(self._stop_polling(account), name=f"stop {account.record.bot_id}")

    async def close(self) -> None:
        for account in self._accounts.values():
            await self._close_channel(account)
            self._release(account)

    # -- one account's life

    def _take_lock(self, account: _Account) -> bool:
        lock = self._new_lock(account.record.account)
        try:
            lock.acquire()
        except AlreadyRunning as held:
            if account.state is not AccountState.LOCKED_OUT:
                log.warning("account_locked_out account=%s holder=%s", account.record.bot_id, held.pid)
            account.state, account.holder = AccountState.LOCKED_OUT, held.pid
            return False
        except BridgeError as error:
            account.state, account.last_error = AccountState.STOPPED, str(error)
            log.error("account_stopped account=%s reason=%s", account.record.bot_id, error)
            return False
        account.lock, account.holder = lock, None
        return True

    async def _wait_for_lock(self, account: _Account) -> None:
        while not self._take_lock(account):
            await self._clock.sleep_until(self._clock.now() + LOCK_RETRY_S)
        account.task = None
        self._poll(account)

    def _poll(self, account: _Account) -> None:
        account.state, account.last_error = AccountState.RUNNING, None
        account.channel = account.channel or WeChatChannel(account.credentials, self._wechat())
        self._spawn(account, self._run(account, account.channel))
        self._hook.signed_in(account.record.account)  # whatever was to be sent before found no way out, and is held

    def _spawn(self, account: _Account, work: Coroutine[None, None, None]) -> None:
        account.task = self._tasks.create_task(self._guarded(account, work), name=f"account {account.record.bot_id}")

    async def _guarded(self, account: _Account, work: Coroutine[None, None, None]) -> None:
        """A bug in one account's tasks ends that account and is named; the bridge goes on (settled.md 28)."""
        try:
            await work
        except Exception as error:
            log.exception("account_stopped account=%s", account.record.bot_id)
            account.state, account.last_error = AccountState.STOPPED, type(error).__name__
            account.polling = None
            self._release(account)

    async def _run(self, account: _Account, channel: Channel) -> None:
        who = account.record.account
        cursor = await self._journal.do(Store.cursor, who)
        account.polling = Polling(
            who,
            channel,
            self._journal,
            cursor,
            self._hook.recorded,
            on_back=lambda: self._hook.back_online(who),
            clock=self._clock,
        )
        log.info("account_running account=%s name=%s", account.record.bot_id, account.record.name)
        over = await account.polling.run()
        account.polling = None
        self._release(account)
        if over.state is PollState.EXPIRED:
            await self._expired(account)

    async def _expired(self, account: _Account) -> None:
        account.state, account.last_error = AccountState.EXPIRED, "the login has expired"
        await self._journal.do(Store.set_expired, account.record.account, True)
        account.record = replace(account.record, expired=True)
        log.error("account_expired account=%s: sign in again with bridge-ctl login", account.record.bot_id)
        self._hook.expired(account.record.account)

    async def _revive(self, account: _Account, channel: Channel) -> None:
        try:
            await channel.announce_start()
        except ChannelError as error:
            log.info("account_not_revived account=%s reason=%s", account.record.bot_id, error)
        if account.state is AccountState.RUNNING:
            self._hook.signed_in(account.record.account)

    async def _expire_after_send(self, account: _Account) -> None:
        await self._stop_polling(account)
        if account.state is not AccountState.EXPIRED:
            await self._expired(account)

    async def _signed_in(self, credentials: Credentials, *, name: str, role: Role | None) -> str:
        """The journal forgets the old cursor before the new token is kept: the two never meet."""
        known = self._accounts.get(credentials.account)
        if known is not None:
            await self._stop_polling(known)
        wall = self._clock.wall()
        record = await self._journal.do(Store.sign_in, credentials.account, credentials.bot_id, name, role, wall)
        self._credentials.put(credentials, wall, name=record.name, role=record.role)
        if known is not None:
            await self._close_channel(known)
            known.record, known.credentials, known.revived_at = record, credentials, None
        account = known or _Account(record, credentials)
        self._accounts[record.account] = account
        self._hook.logged_in(record.account)
        if self._take_lock(account):
            self._poll(account)
        elif account.state is AccountState.LOCKED_OUT:
            self._spawn(account, self._wait_for_lock(account))
        log.info("account_signed_in account=%s name=%s role=%s", record.bot_id, record.name, record.role)
        return f"{record.name or record.bot_id}: signed in as the {record.role.value}'s account"

    async def _stop_polling(self, account: _Account) -> None:
        task, account.task = account.task, None
        if account.polling is not None:
            account.polling.ask_to_stop()
        elif task is not None:
            task.cancel()  # it waits for the lock
        if task is not None:
            await asyncio.wait({task})
        self._release(account)

    async def _close_channel(self, account: _Account) -> None:
        channel, account.channel = account.channel, None
        if channel is not None:
            await channel.aclose()

    def _release(self, account: _Account) -> None:
        lock, account.lock = account.lock, None
        if lock is not None:
            lock.release()

    @property
    def _hook(self) -> Hooks:
        if self._hooks is None:
            raise RuntimeError("accounts run before their hooks are attached")
        return self._hooks

    def _wechat(self) -> WeChatSettings:
        return wechat_settings(self.settings.wechat, self._environment)

    def _row(self, account: _Account) -> AccountRow:
        view = account.polling.view() if account.polling is not None else None
        last_error = account.last_error if view is None else view.last_error
        return AccountRow(
            account=account.record.bot_id,
            name=account.record.name,
            owner=account.record.account,
            role=account.record.role.value,
            state=_state(account).value,
            token_age_s=round(max(0.0, self._clock.wall() - account.record.logged_in_at), 1),
            last_poll_age_s=None if view is None or view.last_poll_age_s is None else round(view.last_poll_age_s, 1),
            last_hold_s=None if view is None or view.last_hold_s is None else round(view.last_hold_s, 1),
            poll_failures=0 if view is None else view.poll_failures,
            last_error=last_error,
            lock=LockRow(held=account.lock is not None, pid=os.getpid() if account.lock else account.holder),
        )


def _state(account: _Account) -> AccountState:
    stale = account.polling is not None and account.polling.view().state is PollState.STALE
    return AccountState.STALE if stale and account.state is AccountState.RUNNING else account.state


class _Desk:
    """A login's words, carried to the client that asked for it."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    async def show_qr(self, url: str, number: int, of: int) -> None:
        self._talk.reply(QrShown(url, number, of))

    async def tell(self, line: str) -> None:
        self._talk.reply(Progress(line))

    async def ask_code(self, *, again: bool) -> str:
        self._talk.reply(CodeWanted(again))
        return (await self._talk.next()).code


def wechat_settings(wechat: WeChat, environment: Environment) -> WeChatSettings:
    """[wechat] as the channel takes it."""
    return WeChatSettings(
        base_url=wechat.base_url,
        cdn_base_url=wechat.cdn_base_url,
        bot_agent=wechat.bot_agent,
        channel_version=wechat.channel_version,
        proxy=environment.proxy(wechat),
        trusted_hosts=wechat.trusted_hosts,
        poll_hold_ms=int(wechat.poll_hold_ms),
        max_reply_chars=wechat.max_reply_chars,
    )
