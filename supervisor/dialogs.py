"""Performs core/dialog: questions of workers, put to their peers in the chat, and the answers carried back.

In come Asked and DialogGone from the scheduler, replies from intake, orders from ctl and closing, and the clock; out go
bubbles through delivery, AnswerDialog to the worker, DialogOpened and DialogClosed to the scheduler. One queue, so that a
dialog is resolved once; what a step changes in the journal is committed in one transaction before the rest of it happens.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, assert_never

from protocol.agents import RULE_HOSTS
from protocol.content import Role
from protocol.ids import AccountId, DialogId, LeaseKey, PeerKey, TurnId
from protocol.to_supervisor import Asked as AskedMessage
from protocol.to_supervisor import DialogGone, DialogPurpose
from protocol.to_worker import AnswerDialog
from supervisor import notices
from supervisor.clock import Clock, woken_or_due
from supervisor.core import dialog
from supervisor.core.answers import Question, Rules, drawn
from supervisor.core.dialog import (
    AgentWithdrew,
    AskAgain,
    Asked,
    DialogEffect,
    DialogEvent,
    Dialogs,
    Extent,
    GoesOn,
    NotSent,
    Outcome,
    Pass,
    Put,
    Ref,
    Replied,
    Resolve,
    Say,
    Sent,
    Take,
    Tell,
    TurnOver,
    Unsay,
    View,
    Waits,
    Withdrawn,
    Woke,
)
from supervisor.core.scheduler import DialogClosed, DialogOpened
from supervisor.core.states import PartKind
from supervisor.delivery import Delivery, QuestionFate
from supervisor.peers import PeerBook
from supervisor.store import (
    AddDialog,
    AddRule,
    Change,
    EndDialog,
    Heard,
    Journal,
    JournalUnavailable,
    Store,
)

log = logging.getLogger(__name__)

COMMIT_RETRY_S = 1.0
NAME_CHARS = 200  # of a dialog's id; a worker that needs more cannot ask
TITLE_CHARS = 60
PLAN_CHARS = (12_000, 8_000, 4_000, 1_500)  # of a plan as text in the chat, as the budget allows
PLAN_FILE = "plan.md"


# A worker may ask more often than a log should grow; a question that its peer never saw is the operator's business.
_LEVELS = {Outcome.NOT_ASKED: logging.DEBUG, Outcome.UNSENT: logging.WARNING}


class ReplyWas(Enum):
    AN_ANSWER = "an_answer"  # or meant as one
    A_MESSAGE = "a_message"


class SendsFiles(Protocol):
    """Sends a file to a peer. False: it could not be sent, and the peer was told nothing."""

    async def send_file(self, who: PeerKey, name: str, content: bytes) -> bool: ...


class Answers(Protocol):
    """The pool, as far as dialogs need it."""

    def answer(self, key: LeaseKey, answer: AnswerDialog) -> None: ...


@dataclass(frozen=True, slots=True)
class _Item:
    """An event and the changes that belong into its transaction. done: told whether the words were for a dialog"""

    event: DialogEvent
    changes: tuple[Change, ...] = ()
    heard: Heard | None = None
    done: asyncio.Future[ReplyWas] | None = None


class DialogLoop:
    """listens     can this account's peers be heard at all now?
    scheduler   told when a turn waits, and when it goes on; must not block
    """

    def __init__(
        self,
        *,
        journal: Journal,
        delivery: Delivery,
        book: PeerBook,
        listens: Callable[[AccountId], bool],
        scheduler: Callable[[DialogOpened | DialogClosed], None],
        pool: Callable[[], Answers],
        tasks: asyncio.TaskGroup,
        clock: Clock,
        files: SendsFiles | None = None,
    ) -> None:
        self._core = Dialogs()
        self._journal = journal
        self._delivery = delivery
        self._book = book
        self._listens = listens
        self._scheduler = scheduler
        self._pool = pool
        self._tasks = tasks
        self._clock = clock
        self._files = files
        # Bounded by what a nanny lets its worker say, and by the batches that polls hand over.
        self._inbox: deque[_Item] = deque()
        self._wake = asyncio.Event()
        self._closed = False

    # -- what others may ask

    def view(self, who: PeerKey) -> View | None:
        """The question that this peer is being asked."""
        return self._core.view(who)

    def open(self) -> Iterable[tuple[PeerKey, View]]:
        return [(who, view) for who in self._core.open() if (view := self._core.view(who)) is not None]

    def visible(self, who: PeerKey) -> bool:
        """Has this peer a question to answer?"""
        view = self._core.view(who)
        return view is not None and view.sent

    # -- what happens

    def asked(self, key: LeaseKey, message: AskedMessage) -> None:
        """A worker asks, in a turn that runs."""
        policy = self._book.policy(key.who)
        agent = policy.agent
        plan = message.purpose is DialogPurpose.PLAN_REVIEW
        rules = Rules.KEPT if policy.role is Role.OPERATOR and agent.host in RULE_HOSTS else Rules.LEFT_OUT
        question = drawn(message, rules) if len(message.dialog_id) <= NAME_CHARS else None
        if not agent.remote_dialogs:
            question = None
        self._post(
            Asked(
                _ref(key, message.turn_id, message.dialog_id),
                question,
                self._book.language(key.who),
                limit_s=60 * (agent.plan_review_minutes if plan else agent.dialog_minutes),
                agent_s=message.expires_s,
            )
        )

    def gone(self, key: LeaseKey, message: DialogGone) -> None:
        """The agent no longer waits."""
        self._post(AgentWithdrew(_ref(key, message.turn_id, message.dialog_id)))

    def turn_over(self, who: PeerKey, row: int) -> None:
        """The turn has ended, was told to, or lost its worker. Any number of times."""
        self._post(TurnOver(who, row))

    async def reply(self, heard: Heard, *, arrived_at: float, written_at: float, changes: Sequence[Change]) -> ReplyWas:
        """Words of a peer's that are no command. changes: the message's own, kept if they were for a dialog.

        A peer that was heard here has its budget back; one whose words are A_MESSAGE has yet to be heard.
        """
        done: asyncio.Future[ReplyWas] = asyncio.get_running_loop().create_future()
        self._inbox.append(
            _Item(Replied(heard.who, heard.text, arrived_at, written_at), (heard, *changes), heard, done)
        )
        self._wake.set()
        return await done

    async def withdraw(self, who: PeerKey) -> bool:
        """The operator takes the waiting question back: one line, and the turn goes on. False: none was asked"""
        if self._core.view(who) is None:
            return False
        await self._withdraw(who, Extent.OPEN)
        return True

    async def withdraw_account(self, account: AccountId) -> None:
        """The account is no longer listened to."""
        for who in self._core.open():
            if who.account == account:
                await self._withdraw(who, Extent.ALL)

    async def close(self) -> None:
        """The bridge goes away: nobody is asked any more, and nobody's answer will be heard."""
        self._closed = True
        for who in self._core.open():
            await self._withdraw(who, Extent.ALL)

    async def _withdraw(self, who: PeerKey, extent: Extent) -> None:
        done: asyncio.Future[ReplyWas] = asyncio.get_running_loop().create_future()
        self._inbox.append(_Item(Withdrawn(who, extent), done=done))
        self._wake.set()
        await done

    def _post(self, event: DialogEvent) -> None:
        self._inbox.append(_Item(event))
        self._wake.set()

    # -- step, commit, perform

    async def run(self) -> None:
        while True:
            await self._until_due()
            if not self._inbox:
                await self._take(_Item(Woke()))
            while self._inbox:
                await self._take(self._inbox.popleft())

    async def _until_due(self) -> None:
        if self._inbox:
            return
        self._wake.clear()
        await woken_or_due(self._wake, self._clock, self._core.wake_at())

    async def _take(self, item: _Item) -> None:
        event = item.event
        if isinstance(event, Asked) and (self._closed or not self._listens(event.ref.who.account)):
            event = replace(event, question=None)  # as it stands now, not when it was asked
        effects = self._core.step(event, self._clock.now())
        taken = any(isinstance(effect, Take) for effect in effects)
        if taken and item.heard is not None:
            heard = item.heard
            self._delivery.heard(heard.who, heard.at, heard.reply_token, heard.language)
        changes = [*(item.changes if taken else ()), *self._changes(effects)]
        await self._commit(changes)
        for effect in effects:
            await self._perform(effect)
        if item.done is not None and not item.done.done():
            item.done.set_result(ReplyWas.AN_ANSWER if taken else ReplyWas.A_MESSAGE)

    def _changes(self, effects: Iterable[DialogEffect]) -> Iterable[Change]:
        at = self._clock.wall()
        for effect in effects:
            match effect:
                case Put(ref, _, question):
                    yield AddDialog(
                        ref.who, ref.turn, ref.dialog_id, question.kind, question.purpose, _title(question), at
                    )
                case Resolve(ref, outcome, _, rule) if outcome is not Outcome.NOT_ASKED:
                    yield EndDialog(ref.turn, ref.dialog_id, outcome, at)
                    if rule:
                        yield AddRule(ref.who, rule, at)
                case _:
                    pass

    async def _perform(self, effect: DialogEffect) -> None:
        match effect:
            case Put(ref, _, question):
                log.info(
                    "dialog_asked peer=%s message=%d kind=%s purpose=%s expires_s=%d account=%s title=%s",
                    ref.who.peer,
                    ref.turn,
                    question.kind,
                    question.purpose,
                    round(self._left_s(ref.who)),
                    ref.who.account,
                    _title(question),
                )
                self._tasks.create_task(self._put(effect), name=f"dialog {ref.who.peer}")
            case Unsay(who, _):
                await self._delivery.unask(who)
            case Resolve(ref, outcome, answer):
                level = _LEVELS.get(outcome, logging.INFO)
                log.log(
                    level,
                    "dialog_closed peer=%s message=%d outcome=%s account=%s",
                    ref.who.peer,
                    ref.turn,
                    outcome,
                    ref.who.account,
                )
                if answer is not None:
                    key = LeaseKey(ref.who.account, ref.who.peer, ref.generation)
                    self._pool().answer(key, AnswerDialog(TurnId(str(ref.turn)), ref.dialog_id, answer))
            case Tell(who, _, _, language):
                kind = PartKind.COURTESY if effect.say is Say.REMINDER else PartKind.COMMAND
                await self._delivery.notice(who, _line(effect), kind, language=language)
            case AskAgain(who, _, why, question, language):
                again = notices.question_again_lines(question, why)
                await self._delivery.notice(who, again, PartKind.COMMAND, language=language)
            case Waits(who):
                self._scheduler(DialogOpened(who))
            case GoesOn(who):
                self._scheduler(DialogClosed(who))
            case Take() | Pass():
                pass
            case _:
                assert_never(effect)

    async def _put(self, put: Put) -> None:
        """A task of its own: a plan's file may take its time. What has ended meanwhile is not asked any more."""
        who, question = put.ref.who, put.question
        as_text: list[notices.Notice] = []
        if question.purpose is DialogPurpose.PLAN_REVIEW and question.body:
            sent = self._files is not None and await self._files.send_file(who, PLAN_FILE, question.body.encode())
            if not sent:
                plan = question.body
                if len(plan) <= PLAN_CHARS[0]:
                    as_text.append(notices.plan_text_lines(plan))
                as_text += [notices.plan_cut_lines(plan, chars=chars) for chars in PLAN_CHARS if chars < len(plan)]
        if not self._core.puts(who, put.number):
            return

        def fate(what: QuestionFate) -> None:
            sent = what is QuestionFate.SENT
            self._post(Sent(who, put.number, self._clock.wall()) if sent else NotSent(who, put.number))

        await self._delivery.ask(
            who,
            notices.question_lines(question),
            put.ref.turn,
            language=put.language,
            fate=fate,
            if_room=as_text,
        )

    def _left_s(self, who: PeerKey) -> float:
        view = self._core.view(who)
        return 0.0 if view is None else view.expires - self._clock.now()

    async def _commit(self, changes: Sequence[Change]) -> None:
        """The core has moved already, so the journal has to follow: tried again each second while the disk refuses."""
        while changes:
            try:
                await self._journal.do(Store.apply, changes)
                return
            except JournalUnavailable as error:
                log.error("journal_unavailable reason=%s", error)
                await self._clock.sleep_until(self._clock.now() + COMMIT_RETRY_S)


def _ref(key: LeaseKey, turn_id: TurnId, dialog_id: DialogId) -> Ref:
    return Ref(key.who, key.generation, int(turn_id), dialog_id)


def _title(question: Question) -> str:
    return notices.one_line(question.title or question.body, chars=TITLE_CHARS)


def _line(tell: dialog.Tell) -> notices.Notice:
    match tell.say:
        case Say.REMINDER:
            return notices.question_reminder(tell.question, left_s=tell.left_s)
        case Say.EXPIRED:
            return notices.question_expired(tell.question)
        case Say.WITHDRAWN:
            return notices.question_withdrawn()
    assert_never(tell.say)
