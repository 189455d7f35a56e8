"""Builds and wires the parts; start order, and stop order.

Start: argv → detach → zygote → config → locks → journal → everything else. Stop: poll, scheduler, workers (drain, then
kill), delivery, store, locks. Nothing here decides: what is decided lives in core/, what is done in the shells.
"""

import asyncio
import contextlib
import logging
import os
import pwd
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from protocol.errors import BridgeError
from protocol.home import find_home
from protocol.ids import AccountId, PeerKey
from supervisor import cgroup, config, logs, platform
from supervisor.accounts import Accounts, wechat_settings
from supervisor.accounts import Hooks as AccountHooks
from supervisor.attachments import Attachments
from supervisor.audit import AuditLog
from supervisor.channels.base import Channel, Route
from supervisor.channels.wechat.cdn import Cdn
from supervisor.channels.wechat.wire import WeChatReader
from supervisor.clock import SystemClock
from supervisor.closing import close_peers
from supervisor.config import ConfigError, Environment, Settings
from supervisor.console.render import summary
from supervisor.conversations import Conversations
from supervisor.core.lease import Gone, PoolEvent
from supervisor.core.lease import Limits as LeaseLimits
from supervisor.core.scheduler import (
    AccountFreed,
    AccountHeld,
    BudgetSpent,
    DrainBegan,
    GrantChanged,
    Limited,
    Scheduler,
    SchedulerLimits,
)
from supervisor.core.starts import TRIAL, Starts
from supervisor.credentials import CredentialsFile
from supervisor.ctl import Control
from supervisor.ctlserver import CtlServer
from supervisor.delivery import Delivery
from supervisor.detach import Announcer, Foreground
from supervisor.detach import detach as go_to_background
from supervisor.dialogs import DialogLoop
from supervisor.doctor import Doctor
from supervisor.events import EventLog
from supervisor.gatekeeper import Gatekeeper
from supervisor.grants import Grants, has_tool, terms
from supervisor.home import Home
from supervisor.hooks import HookRunner
from supervisor.indicator import Indicator
from supervisor.intake import Intake
from supervisor.isolation import Isolation
from supervisor.launcher import Zygote
from supervisor.lockfile import AccountLock, AlreadyRunning, HomeLock, LockWatch
from supervisor.notify import Notifier
from supervisor.outgoing import Outgoing, Spool
from supervisor.peers import PeerBook
from supervisor.peersfile import PeersFile
from supervisor.pool import Pool
from supervisor.proactive import closed
from supervisor.probe import Probe
from supervisor.prompts import Prompts
from supervisor.router import Router
from supervisor.scheduler import SchedulerLoop
from supervisor.start import carry_on
from supervisor.status import StatusBoard
from supervisor.store import Journal
from supervisor.upkeep import Upkeep
from supervisor.usage import Usage
from supervisor.watch import Watcher

log = logging.getLogger(__name__)

VERSION = "0.1.0"
EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_OWNED = 0, 1, 2, 3
CLOSE_S = 5.0  # for the closing lines, whatever the network does


class Detach(Enum):
    YES = "yes"
    NO = "no"


class _Over(Exception):
    """The stop is complete."""


class Interrupted(BridgeError):
    """A signal came before the bridge was ready."""


def start(
    *,
    home: str | None,
    config_file: Path | None,
    log_level: str | None,
    detach: Detach,
    announcer: Announcer | None = None,
    locks: Path | None = None,
) -> int:
    """`bridge-supervisor start`: returns the exit code once the bridge has stopped.

    announcer   who hears how the start went; the caller's terminal unless told otherwise
    locks       where the accounts' locks lie; the user's home by the password database (settled.md 31) unless the
                accounts are make-believe
    """
    announcer = announcer or Foreground()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        environment = config.read_environment()
        place = Home(find_home(home, environment.variables, Path.home()))
        if detach is Detach.YES:
            announcer = go_to_background(place.log)
        zygote = Zygote.start()  # whatever happens next: it ends when our end of its socket does
        logs.set_up(
            log_level or environment.log or "info",
            file=place.log if detach is Detach.YES else None,
            journal_stream=environment.journal_stream,
        )
        platform.harden()
        place.make()
        with HomeLock(place.lock) as lock:
            place.make_sockets(environment.runtime_dir)
            settings = config.load(place, config_file, on_damage=config.OnDamage.SET_ASIDE)
            bridge = Bridge(place, lock, config_file, environment, settings, zygote, announcer, locks or _user_home())
            return asyncio.run(bridge.run())
    except ConfigError as error:
        announcer.failed(str(error))
        return EXIT_USAGE
    except AlreadyRunning as error:
        announcer.failed(str(error))
        return EXIT_OWNED
    except BridgeError as error:
        announcer.failed(str(error))
        return EXIT_FAILED


def _interrupt(number: int, _frame: object) -> None:
    raise Interrupted(f"stopped by {signal.Signals(number).name} while starting")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What runs, once it is built; the rest is held by these."""

    accounts: Accounts
    book: PeerBook
    control: Control
    delivery: Delivery
    dialogs: DialogLoop
    gatekeeper: Gatekeeper
    hooks: HookRunner
    indicator: Indicator
    intake: Intake
    lock_watch: LockWatch
    loop: SchedulerLoop
    pool: Pool
    probe: Probe
    trail: AuditLog
    upkeep: Upkeep
    usage: Usage
    watcher: Watcher


class Bridge:
    """One run of the supervisor."""

    def __init__(
        self,
        home: Home,
        lock: HomeLock,
        config_file: Path | None,
        environment: Environment,
        settings: Settings,
        zygote: Zygote,
        announcer: Announcer,
        locks: Path,
    ) -> None:
        self._home = home
        self._lock = lock
        self._locks = locks
        self._config_file = config_file
        self._environment = environment
        self._settings = settings
        self._zygote = zygote
        self._announcer = announcer
        self._clock = SystemClock()
        self._notifier = Notifier(environment.notify_socket, environment.watchdog_s, self._clock)
        self._interrupted: signal.Signals | None = None  # a signal came before all was ready
        self._ready = False
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> int:
        """raises Interrupted and other BridgeErrors while starting"""
        with self._signals():
            try:
                return await self._run()
            except asyncio.CancelledError:
                if self._interrupted is None:
                    raise
                raise Interrupted(f"stopped by {self._interrupted.name} while starting") from None

    async def _run(self) -> int:
        started = self._clock.now()
        journal, warnings = await Journal.open(self._home.journal)
        credentials, found = CredentialsFile.open(self._home.credentials)
        odd = (*self._settings.warnings, *warnings, *found)
        for line in odd:
            log.warning("found_odd %s", line)
        refused: list[BridgeError] = []
        events = EventLog(journal, self._clock)
        ours = logging.getLogger(__name__.partition(".")[0])
        try:
            await events.open()
            ours.addHandler(events)
            async with contextlib.AsyncExitStack() as closing, asyncio.TaskGroup() as tasks:
                tasks.create_task(events.run(), name="events")
                parts = await self._build(journal, events, credentials, odd, started, tasks, closing)
                await self._serve(parts, journal, tasks, closing)
                raise _Over  # ends the group: its services run until then
        except* _Over:
            pass
        except* BridgeError as group:  # a start that was refused: one line and an exit code, whatever wrapped it
            refused += [error for error in group.exceptions if isinstance(error, BridgeError)]
        finally:
            ours.removeHandler(events)
            await journal.close()
        if refused:
            raise refused[0]
        log.info("bridge_stopped")
        return EXIT_DONE

    async def _build(
        self,
        journal: Journal,
        events: EventLog,
        credentials: CredentialsFile,
        warnings: tuple[str, ...],
        started: float,
        tasks: asyncio.TaskGroup,
        closing: contextlib.AsyncExitStack,
    ) -> _Parts:
        """Make each part of what it needs, in the order in which they need each other; nothing runs yet.

        raises AlreadyRunning: every stored account is held elsewhere
        """
        settings, clock = self._settings, self._clock
        accounts = Accounts(
            settings=settings,
            environment=self._environment,
            journal=journal,
            credentials=credentials,
            new_lock=lambda account: AccountLock(account, self._locks),
            tasks=tasks,
            clock=clock,
        )
        await accounts.open_stored()
        if (holder := accounts.all_locked_out()) is not None:
            raise AlreadyRunning("every stored account", holder)
        book = PeerBook(settings, journal, accounts.record)
        await book.load()
        spool = Spool(self._home.outgoing)
        delivery = Delivery(
            files=spool,
            journal=journal,
            channel=accounts.channel,
            settings=settings.wechat,
            signed_out=accounts.token_refused,
            tasks=tasks,
            clock=clock,
            interim_text=lambda who: book.policy(who).agent.interim_text,
        )
        reader = WeChatReader()
        movable = [pid for pid in (os.getpid(), self._zygote.pid) if pid is not None]
        isolation = Isolation(settings.workers, cgroup=cgroup.prepare(movable))
        usage = Usage(journal, clock)
        gatekeeper = Gatekeeper(
            environment=self._environment,
            usage=usage,
            clock=clock,
            tasks=tasks,
            over_budget=lambda key: loop.post(BudgetSpent(key.who, key.generation)),
        )
        outgoing = Outgoing(
            self._home,
            spool,
            delivery,
            lambda: pool,
            lambda: self._settings.wechat.max_send_bytes,
            lambda who: has_tool(book.policy(who), "send_file"),
            lambda who: closed(who, book, delivery, clock),
        )
        dialogs = DialogLoop(
            files=outgoing,
            journal=journal,
            delivery=delivery,
            book=book,
            listens=accounts.listens,
            scheduler=lambda event: loop.post(event),
            pool=lambda: pool,
            tasks=tasks,
            clock=clock,
        )
        grants = Grants(self._home, book, journal, isolation, gatekeeper)
        cdn = Cdn(wechat_settings(settings.wechat, self._environment))
        closing.push_async_callback(cdn.aclose)
        attachments = Attachments(
            source=cdn,
            folder=grants.media_folder,
            place=lambda who: self._home.media_dir(*who),
            root=self._home.media,
            settings=lambda: book.settings,
            tasks=tasks,
        )
        await asyncio.to_thread(attachments.tidy)
        indicator = Indicator(tasks, partial(_route, accounts, book, settings), clock)
        loop = SchedulerLoop(
            Scheduler(_limits(settings)),
            journal=journal,
            delivery=delivery,
            grants=grants,
            prompts=Prompts(journal, book, reader, attachments, clock),
            indicator=indicator,
            dialogs=dialogs,
            files=outgoing,
            tasks=tasks,
            clock=clock,
        )
        conversations = Conversations(
            journal=journal, book=book, loop=loop, delivery=delivery, dialogs=dialogs, clock=clock
        )
        intake = Intake(
            journal=journal,
            book=book,
            loop=loop,
            delivery=delivery,
            conversations=conversations,
            dialogs=dialogs,
            accounts=accounts,
            attachments=attachments,
            reader=reader,
            usage=usage,
            clock=clock,
        )
        accounts.attach(
            AccountHooks(
                recorded=intake.take,
                expired=lambda account: loop.post(AccountHeld(account)),
                back_online=delivery.back_online,
                logged_in=lambda account: _logged_in(account, book, delivery),
                signed_in=lambda account: _signed_in(account, loop, delivery),
            )
        )
        router = await closing.enter_async_context(Router.open(self._home.sockets))
        probe = Probe(self._home, lambda: self._settings.workers, isolation, tasks)
        pool = Pool(
            _lease_limits(settings),
            self._zygote,
            router,
            clock,
            partial(_heard, probe, gatekeeper, loop),
            starts=Starts(window_s=settings.timers.crash_window_s),
        )
        loop.attach(pool)
        lock_watch = LockWatch(lambda: (self._lock, *accounts.locks()), clock)
        board = StatusBoard(
            version=VERSION,
            home=self._home,
            started=started,
            journal=journal,
            accounts=accounts,
            attachments=attachments,
            book=book,
            scheduler=loop.core,
            delivery=delivery,
            dialogs=dialogs,
            pool=pool,
            isolation=isolation,
            gatekeeper=gatekeeper,
            lock_watch=lock_watch,
            clock=clock,
            warnings=warnings,
        )
        doctor = Doctor(
            home=self._home,
            environment=self._environment,
            journal=journal,
            accounts=accounts,
            book=book,
            delivery=delivery,
            pool=pool,
            board=board,
            probe=probe,
            clock=clock,
        )
        control = Control(
            accounts=accounts,
            board=board,
            book=book,
            conversations=conversations,
            delivery=delivery,
            outgoing=outgoing,
            dialogs=dialogs,
            events=events,
            home=self._home,
            journal=journal,
            loop=loop,
            peers_file=PeersFile(self._home.peers_toml),
            clock=clock,
            doctor=doctor,
            reload_settings=lambda: config.load(self._home, self._config_file),
            apply_settings=partial(self._apply, book, accounts, delivery, loop),
            shut_down=self._stop.set,
            until_gone=pool.until_gone,
        )
        hooks = HookRunner(
            lambda hook: getattr(self._settings.hooks, hook.value),
            control.bot_id,
            self._environment.variables,
            clock,
        )
        trail = AuditLog(self._home.audit, clock)
        events.listeners += [hooks.hear, trail.hear]
        upkeep = Upkeep(journal, delivery, lambda: self._settings.journal.keep_days, clock)
        watcher = Watcher(self._home.path, pool, lambda: self._settings.workers, loop.post, clock)
        return _Parts(
            accounts=accounts,
            book=book,
            control=control,
            delivery=delivery,
            dialogs=dialogs,
            gatekeeper=gatekeeper,
            hooks=hooks,
            indicator=indicator,
            intake=intake,
            lock_watch=lock_watch,
            loop=loop,
            pool=pool,
            probe=probe,
            trail=trail,
            upkeep=upkeep,
            usage=usage,
            watcher=watcher,
        )

    async def _serve(
        self, parts: _Parts, journal: Journal, tasks: asyncio.TaskGroup, closing: contextlib.AsyncExitStack
    ) -> None:
        """Run until a stop is asked for, stop in order. closing: what may be closed only after all tasks."""
        server = CtlServer(self._home)
        closing.callback(server.close)
        tasks.create_task(parts.pool.run(), name="pool")
        tasks.create_task(parts.usage.run(), name="usage")
        tasks.create_task(parts.trail.run(), name="audit")
        tasks.create_task(parts.hooks.run(), name="hooks")
        try:
            self._zygote.preload(self._settings.agent.host)
            await parts.probe.at_start(parts.pool)
            await carry_on(
                journal=journal,
                book=parts.book,
                loop=parts.loop,
                delivery=parts.delivery,
                intake=parts.intake,
                expired=parts.accounts.expired(),
                clock=self._clock,
            )
            tasks.create_task(parts.loop.run(), name="scheduler")
            tasks.create_task(parts.dialogs.run(), name="dialogs")
            tasks.create_task(parts.intake.run(), name="intake")
            tasks.create_task(server.serve(parts.control.handle), name="ctl")
            tasks.create_task(parts.lock_watch.run(), name="locks")
            tasks.create_task(parts.watcher.run(), name="watch")
            tasks.create_task(parts.upkeep.run(), name="upkeep")
            parts.accounts.run_opened()
            self._ready = True
            log.info("bridge_ready home=%s pid=%d version=%s", self._home.path, os.getpid(), VERSION)
            self._announcer.ready()
            self._notifier.ready()
            tasks.create_task(self._notifier.run(partial(_line, parts.control.board)), name="notify")
            await self._stop.wait()
            self._notifier.stopping()
            log.info("bridge_stopping running=%d", len(parts.loop.core.busy()))
            await self._wind_down(parts, journal)
        finally:
            await parts.pool.close()
            await parts.gatekeeper.close()
            await parts.accounts.close()

    async def _wind_down(self, parts: _Parts, journal: Journal) -> None:
        """No new message, no new turn; what runs may finish; then one line to each peer with unfinished work."""
        accounts = parts.accounts
        parts.loop.post(DrainBegan())
        await accounts.stop_polling()
        await parts.dialogs.close()  # nobody's answer would be heard any more
        drained = asyncio.ensure_future(parts.loop.until_at_rest())
        hurried = asyncio.ensure_future(self._stop_now.wait())
        try:
            await asyncio.wait(
                {drained, hurried}, timeout=self._settings.timers.drain_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            drained.cancel()
            hurried.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await parts.intake.close()
                await close_peers(
                    parts.loop,
                    parts.delivery,
                    journal,
                    parts.book,
                    parts.indicator,
                    lambda account: accounts.channel(account) is not None,
                    self._clock,
                )
                await parts.delivery.drain()

    def _apply(
        self, book: PeerBook, accounts: Accounts, delivery: Delivery, loop: SchedulerLoop, settings: Settings
    ) -> None:
        """New settings count from the next turn on; a turn keeps those it began with."""
        for who in book.known():
            before, after = book.policy(who), book.policy(who, settings)
            if terms(before, book.settings.workers) != terms(after, settings.workers):
                loop.post(GrantChanged(who))
        self._settings = book.settings = accounts.settings = settings
        delivery.configure(settings.wechat)
        loop.post(Limited(_limits(settings)))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """While starting, a signal ends it; then the first one drains and the second stops now.

        From here on no signal raises wherever the program happens to be: in a callback of the loop it would be lost.
        """
        running = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def asked(number: signal.Signals) -> None:
            if self._ready:
                (self._stop_now if self._stop.is_set() else self._stop).set()
            elif self._interrupted is None:
                self._interrupted = number
                task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            running.add_signal_handler(number, asked, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                running.remove_signal_handler(number)


async def _line(board: StatusBoard) -> str:
    return summary(await board.status())


def _heard(probe: Probe, gatekeeper: Gatekeeper, loop: SchedulerLoop, event: PoolEvent) -> None:
    if event.key.who == TRIAL:
        probe.hear(event)
        return
    if isinstance(event, Gone):
        gatekeeper.revoke(event.key)
    loop.hear(event)


def _logged_in(account: AccountId, book: PeerBook, delivery: Delivery) -> None:
    book.forget_tokens(account)
    delivery.forget_tokens(account)


def _signed_in(account: AccountId, loop: SchedulerLoop, delivery: Delivery) -> None:
    loop.post(AccountFreed(account))
    delivery.signed_in(account)


def _route(accounts: Accounts, book: PeerBook, settings: Settings, who: PeerKey) -> tuple[Channel, Route] | None:
    channel, record = accounts.channel(who.account), book.record(who)
    if channel is None or record is None or not book.settings.wechat.typing_indicator:
        return None
    return channel, Route(who.account, who.peer, record.reply_token)


def _user_home() -> Path:
    """Of the password database, whatever the environment says."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def _limits(settings: Settings) -> SchedulerLimits:
    workers, timers = settings.workers, settings.timers
    return SchedulerLimits(
        concurrency=workers.concurrency,
        max_warm=workers.max_warm,
        idle_s=workers.idle_minutes * 60,
        turn_timeout_s=workers.turn_timeout_minutes * 60,
        ack_s=timers.ack_s,
        ack_again_s=timers.ack_again_s,
        stop_hint_s=timers.stop_hint_s,
        typing_s=timers.typing_s,
    )


def _lease_limits(settings: Settings) -> LeaseLimits:
    return LeaseLimits(ready_s=settings.timers.ready_s, open_s=settings.timers.open_s, hang_s=settings.timers.hang_s)
