"""Rows of the journal and what intake makes of them: with a real journal, book, scheduler and delivery; nobody sends."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.content import Role
from protocol.ids import AccountId, Cursor, LeaseKey, MessageId, PeerId, PeerKey
from protocol.to_worker import AnswerDialog
from supervisor.channels.base import Batch, RawMessage
from supervisor.channels.wechat.wire import WeChatReader
from supervisor.clock import SystemClock
from supervisor.config import Settings, WeChat
from supervisor.conversations import Conversations
from supervisor.core.poll import Arrival
from supervisor.core.recovery import Handle, recover
from supervisor.core.scheduler import DrainBegan, Scheduler, SchedulerLimits
from supervisor.delivery import Delivery
from supervisor.dialogs import DialogLoop
from supervisor.indicator import Indicator
from supervisor.intake import Intake
from supervisor.peers import PeerBook
from supervisor.prompts import Prompts
from supervisor.scheduler import SchedulerLoop
from supervisor.store import AccountRecord, BeginHandling, Journal, MessageRow, PartRow, Store
from supervisor.usage import Usage
from tests.fakes.attachments import NothingSaved

OWNER = AccountId("owner@im.wechat")
ME = PeerKey(OWNER, PeerId("owner@im.wechat"))
DEADLINE_S = 20.0


def said(
    number: int, text: str = "hello", *, items: Sequence[object] = (), age_s: float = 0.0, by: PeerId = ME.peer
) -> RawMessage:
    created_at_ms = round((SystemClock().wall() - age_s) * 1000)
    item_list = [*([{"type": 1, "text_item": {"text": text}}] if text else []), *items]
    wire = {
        "message_id": number,
        "from_user_id": by,
        "message_type": 1,
        "create_time_ms": created_at_ms,
        "context_token": f"token {number}",
        "item_list": item_list,
    }
    raw = json.dumps(wire).encode()
    return RawMessage(MessageId(str(number)), by, created_at_ms, None, raw)


class Accounts:
    """As much of it as intake asks."""

    def called(self, account: AccountId) -> str:
        return "default"


class Worker:
    """Waits for answers, and does not care."""

    def answer(self, key: LeaseKey, answer: AnswerDialog) -> None: ...


@dataclass
class Hall:
    """Everything around an intake, in one run of the bridge."""

    journal: Journal
    intake: Intake
    loop: SchedulerLoop
    prompts: Prompts
    dialogs: DialogLoop
    attachments: NothingSaved

    async def arrives(self, *messages: RawMessage, arrival: Arrival = Arrival.LIVE) -> tuple[MessageRow, ...]:
        recorded = await self.journal.do(
            Store.record_batch, OWNER, Batch(messages, Cursor("c"), None), SystemClock().wall()
        )
        self.intake.take(recorded.rows, arrival)
        return recorded.rows

    async def handled(self) -> dict[str, int]:
        rows = await self.journal.do(Store.open_messages)
        return {row.message_id: row.handled for row in rows}

    async def until_all_judged(self) -> None:
        """Each look at the journal lets the others run."""
        while any(row.state.value == "received" for row in await self.journal.do(Store.open_messages)):
            pass

    async def parts(self) -> tuple[PartRow, ...]:
        return await self.journal.do(Store.open_parts)


@asynccontextmanager
async def hall(path: Path, settings: Settings | None = None) -> AsyncIterator[Hall]:
    """The scheduler drains from the start, so that no turn begins; no channel is signed in, so that parts stay."""
    clock = SystemClock()
    journal, _ = await Journal.open(path)
    record = AccountRecord(OWNER, "bot-1@im.bot", "default", Role.OPERATOR, False, False, 0.0)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        if not await journal.do(Store.accounts):
            await journal.do(Store.sign_in, OWNER, record.bot_id, record.name, record.role, clock.wall())
        book = PeerBook(settings or Settings(), journal, lambda account: record)
        await book.load()
        delivery = Delivery(
            journal=journal,
            channel=lambda account: None,
            settings=WeChat(),
            signed_out=lambda account: None,
            tasks=tasks,
            clock=clock,
        )
        attachments = NothingSaved()
        prompts = Prompts(journal, book, WeChatReader(), attachments, clock)  # type: ignore[arg-type]
        dialogs = DialogLoop(
            journal=journal,
            delivery=delivery,
            book=book,
            listens=lambda account: True,
            scheduler=lambda event: None,
            pool=lambda: Worker(),
            tasks=tasks,
            clock=clock,
        )
        loop = SchedulerLoop(
            Scheduler(SchedulerLimits()),
            journal=journal,
            delivery=delivery,
            grants=None,  # type: ignore[arg-type]  # no worker is started
            prompts=prompts,
            indicator=Indicator(tasks, lambda who: None, clock),
            dialogs=dialogs,
            tasks=tasks,
            clock=clock,
        )
        loop.attach(object())  # type: ignore[arg-type]
        loop.post(DrainBegan())
        intake = Intake(
            journal=journal,
            book=book,
            loop=loop,
            delivery=delivery,
            conversations=Conversations(
                journal=journal, book=book, loop=loop, delivery=delivery, dialogs=dialogs, clock=clock
            ),
            dialogs=dialogs,
            accounts=Accounts(),  # type: ignore[arg-type]
            attachments=attachments,  # type: ignore[arg-type]
            reader=WeChatReader(),
            usage=Usage(journal, clock),
            clock=clock,
        )
        running = [tasks.create_task(run(), name="loop") for run in (loop.run, dialogs.run)]
        yield Hall(journal, intake, loop, prompts, dialogs, attachments)
        for task in running:
            task.cancel()
        await asyncio.sleep(0)
    await journal.close()


def test_b018_two_orderly_stops_before_anybody_was_judged_make_no_message_dead(tmp_path: Path) -> None:
    async def stop_at_once(first: bool) -> None:
        async with hall(tmp_path / "state.db") as here:
            if first:
                await here.arrives(said(1), said(2))
            else:
                rows = await here.journal.do(Store.open_messages)
                await here.journal.do(Store.apply, [BeginHandling(rows[0].row)])
                here.intake.take(rows, Arrival.LIVE)
            await here.intake.close()
            assert await here.handled() == {"1": 0, "2": 0}
            orders = recover(await here.journal.do(Store.open_messages), ())
            assert [type(order) for order in orders] == [Handle, Handle]

    asyncio.run(stop_at_once(first=True))
    asyncio.run(stop_at_once(first=False))
    asyncio.run(stop_at_once(first=False))


def test_b018_what_a_death_left_behind_still_counts_after_an_orderly_stop(tmp_path: Path) -> None:
    async def script() -> None:
        async with hall(tmp_path / "state.db") as here:
            rows = await here.arrives(said(1), said(2))
            await here.journal.do(Store.apply, [BeginHandling(rows[1].row)])  # a run that died over the second one

            await here.intake.close()

            assert await here.handled() == {"1": 0, "2": 1}

    asyncio.run(script())


def test_b018_each_row_is_marked_exactly_once_before_it_is_judged_however_batches_meet(tmp_path: Path) -> None:
    async def script() -> None:
        async with hall(tmp_path / "state.db") as here:
            await here.arrives(said(1), said(2))
            await here.arrives(said(3), said(4))
            judging = asyncio.ensure_future(here.intake.run())

            await here.until_all_judged()

            assert await here.handled() == {"1": 1, "2": 1, "3": 1, "4": 1}
            await here.intake.close()
            await judging

    asyncio.run(script())


def test_whoever_writes_much_holds_nobody_up_but_himself(tmp_path: Path) -> None:
    async def script() -> None:
        async with hall(tmp_path / "state.db") as here:
            await here.arrives(*(said(number, f"flood {number}") for number in range(1, 21)))
            await here.arrives(said(21, by=PeerId("somebody@im.wechat")))
            judging = asyncio.ensure_future(here.intake.run())
            rows = await here.journal.do(Store.open_messages)
            while any(row.message_id == "21" for row in rows):
                rows = await here.journal.do(Store.open_messages)
            waiting = sum(row.state.value == "received" for row in rows)

            assert waiting >= 15, "of the twenty before it"
            await here.intake.close()
            await judging

    asyncio.run(script())


def test_a_stop_waits_for_the_row_in_hand_and_judges_no_other(tmp_path: Path) -> None:
    async def script() -> None:
        async with hall(tmp_path / "state.db") as here:
            await here.arrives(said(1), said(2), said(3))
            judging = asyncio.ensure_future(here.intake.run())
            await asyncio.sleep(0)  # it holds the first one now

            await here.intake.close()

            await judging
            states = {r.message_id: r.state.value for r in await here.journal.do(Store.open_messages)}
            assert states == {"1": "queued", "2": "received", "3": "received"}
            assert await here.handled() == {"1": 1, "2": 0, "3": 0}

    asyncio.run(script())


PICTURE = {"type": 2, "image_item": {}}
FILE = {"type": 4, "file_item": {"file_name": "报告[1].pdf"}}
VIDEO = {"type": 5, "video_item": {}}
VOICE = {"type": 3, "voice_item": {}}
SPOKEN = {"type": 3, "voice_item": {"text": "in words"}}
STICKER = {"type": 7}


@pytest.mark.parametrize(
    ("text", "items", "line"),
    [
        ("look", [PICTURE], "I couldn't open the attachment. Please send it again."),
        ("look", [FILE, PICTURE], "I couldn't open 报告[1].pdf. Please send it again."),
        ("", [PICTURE], "I couldn't open the attachment. Please send it again."),
        ("", [STICKER], "I couldn't open the attachment. Please send it again."),
        ("look", [VIDEO], "I can't watch videos. A screenshot or a few words would help."),
        ("look", [VOICE], "I can't listen to voice messages that come without text. Please type it instead."),
        ("look", [], None),
        ("", [SPOKEN], None),
    ],
)
def test_an_attachment_is_named_to_its_peer_in_one_line_and_the_words_run(
    tmp_path: Path, text: str, items: list[object], line: str | None
) -> None:
    async def script() -> None:
        async with hall(tmp_path / "state.db") as here:
            await here.arrives(said(1, text, items=items))
            judging = asyncio.ensure_future(here.intake.run())

            await here.until_all_judged()
            await here.intake.close()
            await judging
            await here.attachments.all_fetched()

            assert [part.text for part in await here.parts()] == ([line] if line else [])
            assert here.loop.core.waiting_of(ME) == 1

    asyncio.run(script())
