"""Questions of workers on their way to a phone and back: with a real journal and delivery, and time that the test moves."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from protocol.content import Role
from protocol.ids import (
    AccountId,
    Cursor,
    DialogId,
    Generation,
    LeaseKey,
    MessageId,
    PeerId,
    PeerKey,
    ReplyToken,
    TurnId,
)
from protocol.to_supervisor import PLAN_GO, DialogGone, DialogKind, DialogOption, DialogPurpose
from protocol.to_supervisor import Asked as AskedMessage
from protocol.to_worker import AnswerDialog, Confirmed, DialogAnswer, Dismissed, Picked, Typed
from supervisor import notices
from supervisor.channels.base import Batch, RawMessage, Receipt, ReceiptKind
from supervisor.config import Settings, WeChat
from supervisor.core.policy import Agent
from supervisor.core.scheduler import DialogClosed, DialogOpened
from supervisor.core.states import MessageState
from supervisor.delivery import Delivery
from supervisor.dialogs import DialogLoop, ReplyWas
from supervisor.peers import PeerBook
from supervisor.store import AccountRecord, Heard, Journal, SetMessage, Store
from tests.fakes.channel import Phone
from tests.fakes.clock import FakeClock

OWNER = AccountId("owner@im.wechat")
ME = PeerKey(OWNER, PeerId("owner@im.wechat"))
GUEST = PeerKey(OWNER, PeerId("guest@im.wechat"))
DEADLINE_S = 20.0
ONCE, NEVER = DialogOption("opt_7f", "Allow"), DialogOption("x", "Reject")
ALWAYS = DialogOption("always", "Always", rule="bash git status")


class Files:
    """Sends files, or fails to."""

    def __init__(self, works: bool) -> None:
        self.works = works
        self.sent: list[tuple[PeerKey, str, bytes]] = []

    async def send_file(self, who: PeerKey, name: str, content: bytes) -> bool:
        if self.works:
            self.sent.append((who, name, content))
        return self.works


class Desk:
    """A DialogLoop and what its neighbours would do around it."""

    def __init__(self, path: Path, settings: Settings, files: Files | None) -> None:
        self.path, self.settings, self.files = path, settings, files
        self.phone, self.clock = Phone(), FakeClock()
        self.listens = True
        self.told: list[DialogOpened | DialogClosed] = []
        self.answers: dict[str, DialogAnswer] = {}
        self.journal: Journal
        self.delivery: Delivery
        self.dialogs: DialogLoop
        self._ids = count(1)
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Desk"]:
        self.journal, _ = await Journal.open(self.path)
        record = AccountRecord(OWNER, "bot", "default", Role.OPERATOR, False, False, 0.0)
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            book = PeerBook(self.settings, self.journal, lambda account: record)
            self.book = book
            self.delivery = Delivery(
                journal=self.journal,
                channel=lambda account: self.phone,
                settings=self.settings.wechat,
                signed_out=lambda account: None,
                tasks=tasks,
                clock=self.clock,
            )
            self.dialogs = DialogLoop(
                journal=self.journal,
                delivery=self.delivery,
                book=book,
                listens=lambda account: self.listens,
                scheduler=self._hear,
                pool=lambda: self,
                tasks=tasks,
                clock=self.clock,
                files=self.files,
            )
            loop = tasks.create_task(self.dialogs.run())
            yield self
            await self.delivery.drain()
            loop.cancel()
        await self.journal.close()

    def _hear(self, event: DialogOpened | DialogClosed) -> None:
        self.told.append(event)
        self._moved.set()

    def answer(self, key: LeaseKey, answer: AnswerDialog) -> None:
        """As the pool does."""
        assert answer.dialog_id not in self.answers, "resolved twice"
        self.answers[answer.dialog_id] = answer.answer
        self._moved.set()

    async def until_answered(self, name: str = "d") -> DialogAnswer:
        while name not in self.answers:
            self._moved.clear()
            await self._moved.wait()
        return self.answers[name]

    async def writes(self, text: str, who: PeerKey = ME, language: str = "en") -> tuple[int, ReplyWas]:
        """A message, as poll and intake treat it; its row, and what the words were."""
        number, now = next(self._ids), self.clock.wall()
        raw = RawMessage(MessageId(f"in-{number}-{id(self)}"), who.peer, round(now * 1000), None, b"{}")
        recorded = await self.journal.do(Store.record_batch, OWNER, Batch((raw,), Cursor("c"), None), now)
        row = recorded.rows[0].row
        heard = Heard(row, who, now, ReplyToken(f"t{number}"), language, text)
        self.phone.writes(who.peer)
        was = ReplyWas.A_MESSAGE
        if self.dialogs.view(who) is not None:
            change = SetMessage(row, MessageState.ANSWER, now)
            was = await self.dialogs.reply(heard, arrived_at=now, written_at=now, changes=[change])
        if was is ReplyWas.A_MESSAGE:
            self.delivery.heard(who, now, heard.reply_token, language)
            await self.journal.do(Store.apply, [heard, SetMessage(row, MessageState.QUEUED, now)])
        await self.book.refresh(who)
        return row, was

    async def asks(
        self,
        row: int,
        kind: DialogKind,
        *options: DialogOption,
        name: str = "d",
        who: PeerKey = ME,
        purpose: DialogPurpose = DialogPurpose.PERMISSION,
        body: str = "",
        seen: bool = True,
    ) -> None:
        """seen: wait until the question is on the phone, and open."""
        key = LeaseKey(who.account, who.peer, Generation(1))
        message = AskedMessage(TurnId(str(row)), DialogId(name), kind, purpose, "touch zz", body, options)
        self.dialogs.asked(key, message)
        if seen:
            await self.until(lambda: self.dialogs.visible(who))

    async def until(self, so: Callable[[], bool]) -> None:
        """Each look at the journal lets the others run."""
        while not so():
            await self.journal.do(Store.last_event)

    async def passes(self, seconds: float) -> None:
        """Move the clock once the loop sleeps."""
        await self.clock.until_somebody_sleeps()
        self.clock.advance(seconds)

    def shown(self, who: PeerKey = ME) -> list[str]:
        return self.phone.shown.get(who.peer, [])


def desk(tmp_path: Path, *, agent: Agent | None = None, files: Files | None = None, budget: int = 10) -> Desk:
    settings = replace(
        Settings(), wechat=WeChat(send_gap_ms=0.0, send_budget=budget), agent=agent or Agent(host="acp", command=("a",))
    )
    return Desk(tmp_path / "state.db", settings, files)


def run(story: Coroutine[None, None, None]) -> None:
    asyncio.run(story)


@pytest.mark.parametrize("language", ["zh", "en"])
def test_a_permission_is_asked_and_answered_by_number_in_the_peers_language(tmp_path: Path, language: str) -> None:
    async def story() -> None:
        async with desk(tmp_path).running() as d:
            row, _ = await d.writes("go", language=language)
            await d.asks(row, DialogKind.SELECT, ONCE, NEVER)

            reply_row, was = await d.writes("２", language=language)

            assert await d.until_answered() == Picked("x")
            assert was is ReplyWas.AN_ANSWER
            head = {"zh": "这一步要你同意：touch zz", "en": "This needs your permission: touch zz"}[language]
            (question,) = d.shown()
            assert question.startswith(head) and "1. Allow\n2. Reject" in question
            message = await d.journal.do(Store.message, reply_row)
            assert message is not None and (message.state, message.text) == (MessageState.ANSWER, "２")
            assert d.told == [DialogOpened(ME), DialogClosed(ME)]
            (kept,) = await d.journal.do(Store.dialogs, row)
            assert (kept.kind, kept.title, kept.outcome) == ("select", "touch zz", "answered")

    run(story())


def test_an_answer_refills_the_budget_and_an_unreadable_one_is_asked_again_in_the_questions_language(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with desk(tmp_path).running() as d:
            row, _ = await d.writes("开始", language="zh")
            await d.asks(row, DialogKind.CONFIRM)

            await d.writes("I would rather not say", language="en")
            await d.delivery.drain()

            assert d.shown()[1].startswith("没看懂是同意还是不同意。")
            assert d.delivery.budget_left(ME) == 9
            await d.writes("yes")
            assert await d.until_answered() == Confirmed(True)

    run(story())


def test_allow_once_is_no_standing_permission(tmp_path: Path) -> None:
    """B-037: the option's own id goes back, and the same question is asked again."""

    async def story() -> None:
        async with desk(tmp_path).running() as d:
            row, _ = await d.writes("go")
            await d.asks(row, DialogKind.SELECT, ONCE, ALWAYS, NEVER)
            await d.writes("1")
            assert await d.until_answered() == Picked("opt_7f")

            await d.asks(row, DialogKind.SELECT, ONCE, ALWAYS, NEVER, name="again")

            assert len(d.shown()) == 2 and "again" not in d.answers
            assert "Always" not in "".join(d.shown()), "an external agent's own always is never offered"
            assert await d.journal.do(Store.rules, ME) == ()
            d.dialogs.turn_over(ME, row)

    run(story())


def test_an_always_answer_becomes_a_rule_for_the_operators_peer_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path, agent=Agent(host="builtin")).running() as d:
            row, _ = await d.writes("go")
            guests, _ = await d.writes("go", GUEST)
            await d.asks(row, DialogKind.SELECT, ONCE, ALWAYS, NEVER)
            await d.asks(guests, DialogKind.SELECT, ONCE, ALWAYS, NEVER, name="guest", who=GUEST)

            await d.writes("2")
            await d.writes("2", GUEST)

            assert (await d.until_answered(), await d.until_answered("guest")) == (Picked("always"), Picked("x"))
            assert [one.rule for one in await d.journal.do(Store.rules, ME)] == ["bash git status"]
            assert await d.journal.do(Store.rules, GUEST) == ()
            assert "2. Always allow: bash git status" in d.shown()[0]

    run(story())


@pytest.mark.parametrize("trouble", ["refused", "no budget", "unconfirmed"])
def test_a_question_that_cannot_be_sent_is_cancelled_at_once_and_leaves_nothing_behind(
    tmp_path: Path, trouble: str
) -> None:
    """B-035"""

    async def refused() -> Receipt:
        return Receipt(ReceiptKind.REJECTED, code=-2)

    async def unconfirmed() -> Receipt:
        return Receipt(ReceiptKind.UNCONFIRMED)

    async def story() -> None:
        async with desk(tmp_path, budget=1).running() as d:
            row, _ = await d.writes("go")
            if trouble == "no budget":
                await d.delivery.finish(ME, row, notice=notices.empty())
                await d.delivery.drain()
            else:
                d.phone.script[1] = refused if trouble == "refused" else unconfirmed

            await d.asks(row, DialogKind.SELECT, ONCE, NEVER, seen=False)

            assert await d.until_answered() == Dismissed()
            await d.writes("1")
            await d.delivery.drain()
            assert len(d.shown()) == (1 if trouble == "no budget" else 0)
            assert d.told == [DialogOpened(ME), DialogClosed(ME)]
            assert (await d.journal.do(Store.dialogs, row))[0].outcome == "unsent"

    run(story())


def test_nobody_answers_a_reminder_comes_and_then_one_line(tmp_path: Path) -> None:
    """B-066"""

    async def story() -> None:
        async with desk(tmp_path).running() as d:
            row, _ = await d.writes("go")
            await d.asks(row, DialogKind.SELECT, ONCE, NEVER)

            await d.passes(90.0)
            await d.until(lambda: len(d.shown()) == 2)
            await d.passes(90.0)

            assert await d.until_answered() == Dismissed()
            await d.delivery.drain()
            assert "touch zz (1 minute left)" in d.shown()[1]
            assert len(d.shown()) == 3 and d.shown()[2].startswith("No answer came in time")
            assert await d.writes("1") == (2, ReplyWas.A_MESSAGE)

    run(story())


def test_the_reminder_gives_way_where_the_budget_is_small(tmp_path: Path) -> None:
    """B-066"""

    async def story() -> None:
        async with desk(tmp_path, budget=4).running() as d:
            row, _ = await d.writes("go")
            await d.asks(row, DialogKind.SELECT, ONCE, NEVER)

            await d.passes(90.0)
            await d.passes(90.0)
            await d.until_answered()
            await d.delivery.drain()

            assert [text.split(" ")[0] for text in d.shown()] == ["This", "No"]

    run(story())


def test_dialogs_can_be_switched_off_and_nobody_is_asked_whom_nobody_hears(tmp_path: Path) -> None:
    async def story() -> None:
        quiet = desk(tmp_path, agent=Agent(host="acp", command=("a",), remote_dialogs=False))
        async with quiet.running() as d:
            row, _ = await d.writes("go")
            await d.asks(row, DialogKind.SELECT, ONCE, NEVER, seen=False)
            assert await d.until_answered() == Dismissed()
            assert (d.shown(), d.told) == ([], [])
        (tmp_path / "other").mkdir()
        async with desk(tmp_path / "other").running() as d:
            row, _ = await d.writes("go")
            d.listens = False
            await d.asks(row, DialogKind.SELECT, ONCE, NEVER, seen=False)
            assert await d.until_answered() == Dismissed()
            assert d.shown() == []

    run(story())


def test_a_withdrawal_by_the_operator_leaves_the_next_question_to_be_asked(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path).running() as d:
            row, _ = await d.writes("go")
            assert not await d.dialogs.withdraw(ME)
            await d.asks(row, DialogKind.SELECT, ONCE, NEVER, name="a")
            await d.asks(row, DialogKind.CONFIRM, name="b", seen=False)

            assert await d.dialogs.withdraw(ME)
            await d.until(lambda: d.dialogs.visible(ME))

            assert d.answers == {"a": Dismissed()}
            assert d.shown()[1] == notices.question_withdrawn().en and len(d.shown()) == 3
            await d.writes("no")
            assert await d.until_answered("b") == Confirmed(False)

    run(story())


@pytest.mark.parametrize("how", ["pause", "close"])
def test_a_pause_and_a_shutdown_withdraw_all_with_one_line(tmp_path: Path, how: str) -> None:
    async def story() -> None:
        async with desk(tmp_path).running() as d:
            row, _ = await d.writes("go")
            await d.asks(row, DialogKind.SELECT, ONCE, NEVER, name="a")
            await d.asks(row, DialogKind.CONFIRM, name="b", seen=False)
            await asyncio.sleep(0)

            await (d.dialogs.withdraw_account(OWNER) if how == "pause" else d.dialogs.close())
            await d.delivery.drain()

            assert d.answers == {"a": Dismissed(), "b": Dismissed()}
            assert d.shown()[1:] == [notices.question_withdrawn().en]
            if how == "close":
                assert d.dialogs.view(ME) is None
                await d.asks(row, DialogKind.CONFIRM, name="c", seen=False)
                assert await d.until_answered("c") == Dismissed()

    run(story())


def test_what_was_asked_in_the_moment_of_a_shutdown_is_not_put_any_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path).running() as d:
            row, _ = await d.writes("go")
            await d.asks(row, DialogKind.CONFIRM, seen=False)
            await d.dialogs.close()

            assert await d.until_answered() == Dismissed()
            await d.delivery.drain()
            assert d.shown() == []

    run(story())


def test_what_the_agent_takes_back_and_what_ends_with_its_turn_is_not_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path).running() as d:
            row, _ = await d.writes("go")
            await d.asks(row, DialogKind.SELECT, ONCE, NEVER, name="a")
            d.dialogs.gone(LeaseKey(OWNER, ME.peer, Generation(1)), DialogGone(TurnId(str(row)), DialogId("a")))
            await d.until(lambda: d.told == [DialogOpened(ME), DialogClosed(ME)])
            await d.asks(row, DialogKind.SELECT, ONCE, NEVER, name="b")
            d.dialogs.turn_over(ME, row)

            assert (await d.writes("1"))[1] is ReplyWas.A_MESSAGE
            await d.delivery.drain()
            assert d.answers == {}
            assert [text.split(" ")[0] for text in d.shown()] == ["This", "That", "This"]
            assert [one.outcome for one in await d.journal.do(Store.dialogs, row)] == ["gone", "turn_over"]

    run(story())


def test_dialogs_open_at_a_death_are_lost_and_their_questions_are_not_sent_afterwards(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path).running() as d:
            row, _ = await d.writes("go")
            await d.asks(row, DialogKind.SELECT, ONCE, NEVER)
        async with desk(tmp_path).running() as d:
            assert await d.journal.do(Store.end_lost_dialogs, d.clock.wall()) == 1
            assert (await d.writes("1"))[1] is ReplyWas.A_MESSAGE

    run(story())


# --- plan review


@pytest.mark.parametrize("works", [True, False, None])
def test_a_plan_goes_first_as_a_file_or_as_text_and_then_one_bubble_asks(tmp_path: Path, works: bool | None) -> None:
    async def story() -> None:
        files = None if works is None else Files(works)
        async with desk(tmp_path, files=files).running() as d:
            row, _ = await d.writes("plan it")
            await d.asks(row, DialogKind.EDITOR, purpose=DialogPurpose.PLAN_REVIEW, body="1. look\n2. leap")

            assert d.shown()[-1].startswith("The plan is ready: touch zz\n\n1. look\n2. leap\n\nStill in plan mode")
            if works:
                assert files is not None and files.sent == [(ME, "plan.md", b"1. look\n2. leap")]
                assert len(d.shown()) == 1
            else:
                assert d.shown()[:-1] == ["The plan in full:\n\n1. look\n2. leap"]
            await d.writes("1")
            assert await d.until_answered() == Picked(PLAN_GO)

    run(story())


def test_feedback_on_a_plan_goes_to_the_agent_and_ten_minutes_are_given(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path).running() as d:
            row, _ = await d.writes("plan it")
            await d.asks(row, DialogKind.EDITOR, purpose=DialogPurpose.PLAN_REVIEW, body="x", name="a")
            await d.writes("write the tests first")
            assert await d.until_answered("a") == Typed("write the tests first")

            await d.asks(row, DialogKind.EDITOR, purpose=DialogPurpose.PLAN_REVIEW, body="x", name="b")
            view = d.dialogs.view(ME)
            assert view is not None and view.expires - d.clock.now() == 600.0
            await d.passes(600.0)

            assert await d.until_answered("b") == Dismissed()
            await d.delivery.drain()
            assert d.shown()[-1].startswith("No answer about the plan came in time")

    run(story())


def test_a_plan_too_long_for_the_budget_is_cut_and_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path, budget=5).running() as d:
            row, _ = await d.writes("plan it")
            await d.asks(row, DialogKind.EDITOR, purpose=DialogPurpose.PLAN_REVIEW, body="计划" * 15_000)

            *plan, question = d.shown()
            assert question.startswith("The plan is ready")
            assert plan[0].startswith("[1/3] The plan is too long for the chat") and plan[-1].endswith("…")
            assert d.delivery.budget_left(ME) == 1
            d.dialogs.turn_over(ME, row)

    run(story())
