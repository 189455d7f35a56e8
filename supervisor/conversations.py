"""What happens to one peer's conversation on an order: the slash commands, `reset`, `deny`, `logout`.

Commands never start a worker, take a slot or count against a limit; their lines go out before parked parts.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import assert_never

from protocol.ids import AccountId, PeerKey
from supervisor import notices
from supervisor.clock import Clock
from supervisor.core.admission import HOUR_S
from supervisor.core.commands import Command, Help, History, New, Status, Stop
from supervisor.core.scheduler import FreshAsked, PeerState, Removed, StopAsked
from supervisor.core.states import PartKind
from supervisor.delivery import Delivery
from supervisor.dialogs import DialogLoop
from supervisor.notices import Notice, Standing
from supervisor.peers import PeerBook
from supervisor.scheduler import SchedulerLoop
from supervisor.store import Change, Journal, SetSession, Store

CLOSE_S = 5.0  # for the lines of a logout, whatever the network does


class Conversations:
    def __init__(
        self,
        *,
        journal: Journal,
        book: PeerBook,
        loop: SchedulerLoop,
        delivery: Delivery,
        dialogs: DialogLoop,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._book = book
        self._loop = loop
        self._delivery = delivery
        self._dialogs = dialogs
        self._clock = clock

    async def obey(self, who: PeerKey, command: Command, changes: Sequence[Change]) -> None:
        """Carry out a peer's command. changes: the message's own, kept in one transaction with the answer."""
        match command:
            case Stop():
                await self._take(StopAsked(who), changes)
                return
            case New():
                notice = await self._fresh_for_peer(who)
            case Status():
                notice = await self._standing(who)
            case History(count):
                rows = await self._journal.do(Store.history, who, count)
                notice = notices.history_lines([notices.HistoryLine(r.from_peer, r.text, r.flag) for r in rows])
            case Help():
                notice = notices.help_lines(snippets=tuple(self._book.settings.snippets))
            case _:
                assert_never(command)
        await self._delivery.notice(who, notice, PartKind.COMMAND, extra=changes)

    async def fresh(self, who: PeerKey) -> bool:
        """Set the conversation aside; what waits runs in the new one. False while a turn runs: nothing was done."""
        if self._loop.core.turn_of(who) is not None:
            return False
        await self._take(FreshAsked(who), [SetSession(who, None, self._clock.wall())])
        await self._book.refresh(who)
        return True

    async def remove(self, who: PeerKey) -> None:
        """Denied: the turn stops without a word, what waits is dropped."""
        await self._take(Removed(who), ())

    async def forget(
        self, who: PeerKey, until_gone: Callable[[PeerKey], Awaitable[None]], folders: Iterable[Path]
    ) -> bool:
        """All that was said, and the folders. False while a turn runs: nothing was done. What waits is dropped."""
        if self._loop.core.turn_of(who) is not None:
            return False
        await self._take(Removed(who), ())
        await self._take(FreshAsked(who), ())
        await until_gone(who)
        parts = await self._journal.do(Store.open_parts)
        self._delivery.lapse(part for part in parts if part.who == who)
        await self._journal.do(Store.forget, who, self._clock.wall())
        for folder in folders:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await self._book.refresh(who)
        return True

    async def end_account(self, account: AccountId) -> None:
        """Logout: tell those whose work is cut, then end all of it."""
        core = self._loop.core
        for who in (w for w in self._book.known() if w.account == account):
            waiting = core.waiting_of(who)
            if who in core.busy() or waiting:
                await self._delivery.notice(who, notices.logged_out(waiting=waiting), PartKind.OUTCOME)
            await self.remove(who)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._delivery.drain()

    async def _fresh_for_peer(self, who: PeerKey) -> Notice:
        if not self._book.policy(who).owner:
            return notices.new_owner_only()
        return notices.new_done() if await self.fresh(who) else notices.new_while_running()

    async def _standing(self, who: PeerKey) -> Notice:
        turn, asked = self._loop.core.turn_of(who), self._dialogs.view(who)
        policy = self._book.policy(who)
        record = await self._book.refresh(who)
        left = None
        if policy.max_turns_per_hour:
            recent = sum(at > self._clock.wall() - HOUR_S for at in record.turns_at)
            left = max(0, policy.max_turns_per_hour - recent - self._loop.core.waiting_of(who))  # as the door counts
        return notices.status_lines(
            Standing(
                running_s=None if turn is None else self._clock.now() - turn[1],
                question="" if asked is None else asked.question.title or asked.question.body,
                waiting=self._loop.core.waiting_of(who),
                parked=self._delivery.parked(who),
                budget_left=self._delivery.budget_left(who),
                turns_left=left,
                starting=self._loop.core.state_of(who) is PeerState.STARTING,
            )
        )

    async def _take(self, event: StopAsked | FreshAsked | Removed, changes: Sequence[Change]) -> None:
        """Through the scheduler's queue, and back here once it is done."""
        done = asyncio.Event()
        self._loop.post(event, changes, after=done.set)
        await done.wait()
