import asyncio
import sqlite3
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from protocol.ids import AccountId, MessageId, PeerId, PeerKey, ReplyToken, SendKey
from protocol.to_supervisor import Boundary
from supervisor import notices
from supervisor.channels.base import (
    Batch,
    RawMessage,
    Receipt,
    ReceiptKind,
    Route,
    SignedOut,
    Unavailable,
)
from supervisor.config import WeChat
from supervisor.core.states import MessageState, PartKind, PartState
from supervisor.delivery import Delivery, QuestionFate
from supervisor.store import AddPart, Heard, Journal, SetMessage, Store
from tests.fakes.channel import Phone
from tests.fakes.clock import FakeClock

ACCOUNT = AccountId("owner@im.wechat")
ALICE = PeerKey(ACCOUNT, PeerId("alice@im.wechat"))
BOB = PeerKey(ACCOUNT, PeerId("bob@im.wechat"))
UNPACED = WeChat(send_gap_ms=0.0)
DEADLINE_S = 20.0


class Bridge:
    """A delivery with a real journal, and what its neighbours would do around it."""

    def __init__(self, path: Path, phone: Phone, clock: FakeClock, settings: WeChat) -> None:
        self.path, self.phone, self.clock, self.settings = path, phone, clock, settings
        self.channel: Phone | None = phone
        self.told_signed_out: list[AccountId] = []
        self.journal: Journal
        self.delivery: Delivery
        self._ids = count(1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Bridge"]:
        """Leaving it is a kill: whatever is on its way is cut off."""
        self.journal, _ = await Journal.open(self.path)
        try:
            async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
                self.delivery = Delivery(
                    journal=self.journal,
                    channel=lambda account: self.channel,
                    settings=self.settings,
                    signed_out=self.told_signed_out.append,
                    tasks=tasks,
                    clock=self.clock,
                )
                self.delivery.restore(await self.journal.do(Store.open_parts), await self.journal.do(Store.peers))
                yield self
                raise _Killed
        except* _Killed:
            pass
        finally:
            await self.journal.close()

    async def writes(self, who: PeerKey, language: str = "en") -> int:
        """An inbound message, as poll and intake record it; its row is the turn."""
        number, now = next(self._ids), self.clock.wall()
        token = ReplyToken(f"token-{number}")
        raw = RawMessage(MessageId(f"in-{number}-{now}"), who.peer, number, token, b"{}")
        recorded = await self.journal.do(Store.record_batch, ACCOUNT, Batch((raw,), None, None), now)
        row = recorded.rows[0].row
        await self.journal.do(Store.apply, [Heard(row, who, now, token, language)])
        self.phone.writes(who.peer)
        self.delivery.heard(who, now, token, language)
        return row

    async def settled(self) -> None:
        await self.delivery.drain()

    async def answers(self, who: PeerKey, row: int, text: str) -> None:
        self.delivery.piece(who, row, text, Boundary.END)
        await self.delivery.finish(who, row, extra=[SetMessage(row, MessageState.ANSWERED, self.clock.wall())])

    async def releases_the_rest(self) -> None:
        """The pause that lets a command overtake the parked rest."""
        await self.clock.until_somebody_sleeps()
        self.clock.advance(1.0)
        await self.settled()

    async def asks(
        self, who: PeerKey, row: int, words: str = "Which one?", *, if_room: Sequence[notices.Notice] = ()
    ) -> list[QuestionFate]:
        """What became of it will stand in the list."""
        fates: list[QuestionFate] = []
        question = notices.Notice("question", "哪个？", words)
        await self.delivery.ask(who, question, row, language="en", fate=fates.append, if_room=if_room)
        return fates

    def shown(self, who: PeerKey) -> list[str]:
        return self.phone.shown.get(who.peer, [])

    async def part_states(self) -> list[PartState]:
        return [row.state for row in await self.journal.do(Store.open_parts)]


class _Killed(Exception):
    pass


def bridge(tmp_path: Path, phone: Phone | None = None, settings: WeChat = UNPACED) -> Bridge:
    return Bridge(tmp_path / "state.db", phone or Phone(), FakeClock(), settings)


def run(story: Coroutine[None, None, None]) -> None:
    asyncio.run(story)


def without_breaks(text: str) -> str:
    return text.replace("\n", "")


async def refused() -> Receipt:
    return Receipt(ReceiptKind.REJECTED, code=-2)


# --- the worked examples


def test_thirty_streamed_paragraphs_arrive_whole_in_at_most_ten_bubbles(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE)
            paragraphs = [f"{n:03d}" + "x" * 297 for n in range(30)]

            for paragraph in paragraphs:
                b.delivery.piece(ALICE, row, paragraph + "\n\n", Boundary.PARAGRAPH)
                await b.settled()
            streamed = len(b.shown(ALICE))
            await b.delivery.finish(ALICE, row)
            await b.settled()

            assert 1 < streamed <= len(b.shown(ALICE)) <= 10
            assert without_breaks("".join(b.shown(ALICE))) == "".join(paragraphs)
            assert all(len(bubble) <= 2000 for bubble in b.shown(ALICE))

    run(story())


def test_the_tenth_bubble_of_a_long_answer_says_that_more_waits_and_the_rest_comes_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            more = "\n\n" + notices.more_waiting().zh
            row = await b.writes(ALICE, "zh")
            await b.answers(ALICE, row, "测" * 25_000)
            await b.settled()

            first = list(b.shown(ALICE))
            assert len(first) == 10
            assert [bubble.endswith(more) for bubble in first] == [False] * 9 + [True]
            assert b.delivery.parked(ALICE) == 3

            row = await b.writes(ALICE, "zh")
            await b.answers(ALICE, row, "接着说")
            await b.releases_the_rest()

            assert b.shown(ALICE)[-1] == "接着说"
            assert "".join(b.shown(ALICE)[:-1]).replace(more, "") == "测" * 25_000
            assert (b.delivery.parked(ALICE), b.delivery.budget_left(ALICE)) == (0, 6)

    run(story())


def test_after_a_refused_bubble_none_is_tried_until_the_peer_writes_and_then_each_comes_once(tmp_path: Path) -> None:
    async def story() -> None:
        phone = Phone()
        phone.script[3] = refused
        async with bridge(tmp_path, phone).running() as b:
            row = await b.writes(ALICE)
            await b.answers(ALICE, row, "y" * 9000)
            await b.settled()

            assert len(phone.calls) == 3
            assert b.delivery.parked(ALICE) > 0
            assert b.delivery.throttled(ACCOUNT)

            row = await b.writes(ALICE)
            await b.answers(ALICE, row, "new answer")
            await b.releases_the_rest()

            assert b.shown(ALICE)[-1] == "new answer"
            assert "".join(bubble.split("] ")[-1] for bubble in b.shown(ALICE)[:-1]) == "y" * 9000
            assert (await b.journal.do(Store.counters))["sends_rejected"] == 1

    run(story())


@pytest.mark.parametrize("arrived", ["before_the_kill", "never"])
def test_a_kill_in_the_middle_of_a_bubble_loses_and_doubles_nothing(tmp_path: Path, arrived: str) -> None:
    async def story() -> None:
        phone = Phone()
        reached, clock = asyncio.Event(), FakeClock()
        first = Bridge(tmp_path / "state.db", phone, clock, UNPACED)

        async def hangs() -> Receipt | None:
            if arrived == "before_the_kill":
                route, text, key = phone.calls[-1]
                phone.calls.append((route, text, key))
                await Phone.send_text(phone, route, text, key)
            reached.set()
            await asyncio.Event().wait()
            return None

        phone.script[4] = hangs
        async with first.running() as b:
            row = await b.writes(ALICE)
            await b.answers(ALICE, row, "z" * 13_000)
            await reached.wait()
            assert (await b.part_states())[0] is PartState.SENDING

        phone.script.clear()
        async with Bridge(tmp_path / "state.db", phone, clock, UNPACED).running() as b:
            await b.settled()

            bubbles = b.shown(ALICE)
            assert [bubble.split("]")[0] for bubble in bubbles] == [f"[{n}/7" for n in range(1, 8)]
            assert "".join(bubble.split("] ")[1] for bubble in bubbles) == "z" * 13_000
            assert await b.part_states() == []

    run(story())


# --- what is on disk when


def test_a_part_and_its_key_are_on_disk_before_it_is_sent(tmp_path: Path) -> None:
    async def story() -> None:
        phone = Phone()
        async with bridge(tmp_path, phone).running() as b:
            states: list[tuple[str, int]] = []

            def look(key: SendKey) -> None:
                with sqlite3.connect(b.path) as db:
                    states.extend(db.execute("SELECT state, attempts FROM part WHERE send_key = ?", (key,)))

            phone.on_call = look
            row = await b.writes(ALICE)
            await b.answers(ALICE, row, "a" * 3000)
            await b.settled()

            assert states == [("sending", 1), ("sending", 1)]

    run(story())


def test_the_end_of_a_turn_and_all_that_is_left_of_its_text_are_one_transaction(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE)
            b.delivery.piece(ALICE, row, "a" * 30_000, Boundary.END)
            clash = AddPart(SendKey("same"), ALICE, row, PartKind.REPLY, "", 0.0)
            await b.journal.do(Store.apply, [clash])

            with pytest.raises(sqlite3.IntegrityError):
                await b.delivery.finish(ALICE, row, extra=[clash])

            assert len(await b.part_states()) == 1
            assert b.phone.calls == []

    run(story())


def test_while_the_disk_is_full_nothing_is_sent_and_then_everything_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE)
            await b.journal.do(lambda store: store._db.execute("PRAGMA max_page_count = 1").fetchall())
            b.delivery.piece(ALICE, row, "f" * 200_000, Boundary.END)
            finishing = asyncio.ensure_future(b.delivery.finish(ALICE, row))
            await b.clock.until_somebody_sleeps()
            assert b.phone.calls == []

            await b.journal.do(lambda store: store._db.execute("PRAGMA max_page_count = 1000000").fetchall())
            b.clock.advance(1.0)
            await finishing
            await b.settled()

            assert len(b.shown(ALICE)) == 10
            assert len(await b.part_states()) == b.delivery.parked(ALICE) == 93

    run(story())


def test_a_cancelled_caller_does_not_have_its_parts_written_twice(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE)
            b.delivery.piece(ALICE, row, "said once", Boundary.END)
            finishing = asyncio.ensure_future(b.delivery.finish(ALICE, row))
            await asyncio.sleep(0)

            finishing.cancel()
            await asyncio.wait({finishing})
            await b.delivery.notice(ALICE, notices.nothing_running(), PartKind.COMMAND)
            await b.settled()

            assert sorted(b.shown(ALICE)) == sorted(["said once", notices.nothing_running().en])

    run(story())


def test_a_spent_budget_survives_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        first = bridge(tmp_path)
        async with first.running() as b:
            row = await b.writes(ALICE)
            await b.answers(ALICE, row, "b" * 25_000)
            await b.settled()

        async with Bridge(first.path, first.phone, first.clock, UNPACED).running() as b:
            await b.settled()

            assert len(b.phone.calls) == 10
            assert (b.delivery.budget_left(ALICE), b.delivery.parked(ALICE)) == (0, 3)

    run(story())


# --- turns


def test_the_first_words_leave_after_two_silent_seconds(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE)
            b.delivery.piece(ALICE, row, "Let me think", Boundary.NONE)
            await b.settled()
            assert b.shown(ALICE) == []

            await b.clock.until_somebody_sleeps()
            b.clock.advance(2.0)
            await b.phone.until_called(1)

            assert b.shown(ALICE) == ["Let me think"]
            assert b.delivery.has_text(ALICE, row)

    run(story())


def test_a_stopped_turn_says_so_in_one_line_and_no_more_of_its_text(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE)
            b.delivery.piece(ALICE, row, "The beginning", Boundary.NONE)
            stopped = SetMessage(row, MessageState.STOPPED, b.clock.wall())

            await b.delivery.abandon(ALICE, row, notice=notices.stopped(waiting=2), extra=[stopped])
            b.delivery.piece(ALICE, row, " and late words\n\n", Boundary.PARAGRAPH)
            b.delivery.tool_started(ALICE, row)
            await b.settled()

            assert b.shown(ALICE) == [notices.stopped(waiting=2).en]
            message = await b.journal.do(Store.message, row)
            assert message is not None and message.state is MessageState.STOPPED

    run(story())


def test_an_answer_without_text_ends_with_its_notice_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE, "zh")
            assert not b.delivery.has_text(ALICE, row)

            await b.delivery.finish(ALICE, row, notice=notices.empty())
            await b.settled()

            assert b.shown(ALICE) == [notices.empty().zh]

    run(story())


def test_an_answer_that_is_too_long_is_cut_and_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        settings = WeChat(send_gap_ms=0.0, max_answer_chars=1000)
        async with bridge(tmp_path, settings=settings).running() as b:
            row = await b.writes(ALICE)
            b.delivery.piece(ALICE, row, "c" * 1500, Boundary.NONE)
            assert b.delivery.cut_off(ALICE, row)

            await b.delivery.finish(ALICE, row)
            await b.settled()

            assert b.shown(ALICE) == ["c" * 1000, notices.cut_off().en]

    run(story())


def test_what_was_said_before_a_question_is_read_before_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE)
            b.delivery.piece(ALICE, row, "Two files match.", Boundary.TOOL)

            fates = await b.asks(ALICE, row)
            await b.settled()

            assert b.shown(ALICE) == ["Two files match.", "Which one?"]
            assert fates == [QuestionFate.SENT]

    run(story())


@pytest.mark.parametrize("answer", ["refused", "unconfirmed"])
def test_a_question_that_is_not_surely_sent_is_told_as_not_sent_at_once(tmp_path: Path, answer: str) -> None:
    """B-035"""

    async def unconfirmed() -> Receipt:
        return Receipt(ReceiptKind.UNCONFIRMED)

    async def story() -> None:
        phone = Phone()
        phone.script[1] = refused if answer == "refused" else unconfirmed
        async with bridge(tmp_path, phone).running() as b:
            row = await b.writes(ALICE)

            fates = await b.asks(ALICE, row)
            await b.settled()

            assert fates == [QuestionFate.NOT_SENT]
            assert await b.part_states() == []

    run(story())


def test_without_room_for_all_of_it_nothing_of_a_question_is_sent(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path, settings=WeChat(send_gap_ms=0.0, send_budget=2)).running() as b:
            row = await b.writes(ALICE)

            fates = await b.asks(ALICE, row, "x" * 5000)
            await b.settled()

            assert (fates, b.shown(ALICE)) == ([QuestionFate.NOT_SENT], [])

    run(story())


def test_of_what_may_go_before_a_question_the_first_that_fits_does(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path, settings=WeChat(send_gap_ms=0.0, send_budget=4)).running() as b:
            row = await b.writes(ALICE)
            before = [notices.Notice("plan", "", "p" * length) for length in (9000, 3000, 100)]

            fates = await b.asks(ALICE, row, if_room=before)
            await b.settled()

            plan = "".join(b.shown(ALICE)[:-1])
            assert plan.count("p") == 3000 and b.shown(ALICE)[-1] == "Which one?"
            assert (fates, b.delivery.budget_left(ALICE)) == ([QuestionFate.SENT], 1)

    run(story())


def test_a_question_of_several_bubbles_is_sent_once_the_last_is_and_not_at_all_once_one_fails(tmp_path: Path) -> None:
    async def story() -> None:
        phone = Phone()
        phone.script[5] = refused
        async with bridge(tmp_path, phone).running() as b:
            row = await b.writes(ALICE)

            sent = await b.asks(ALICE, row, "x" * 5000)
            await b.settled()
            failed = await b.asks(ALICE, row, "y" * 5000)
            await b.settled()

            assert len(b.shown(ALICE)) == 4
            assert (sent, failed) == ([QuestionFate.SENT], [QuestionFate.NOT_SENT])

    run(story())


def test_a_question_that_is_over_is_neither_sent_nor_told_of(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path, settings=WeChat(send_gap_ms=600.0)).running() as b:
            row = await b.writes(ALICE)
            for _ in range(2):
                await b.delivery.notice(ALICE, notices.nothing_running(), PartKind.COMMAND)
            await b.phone.until_called(2)

            fates = await b.asks(ALICE, row)
            await b.delivery.unask(ALICE)
            b.clock.advance(10.0)
            await b.settled()

            assert (fates, len(b.shown(ALICE))) == ([], 2)

    run(story())


def test_a_line_can_be_worded_in_another_language_than_the_peers_is_by_now(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            await b.writes(ALICE, "en")

            await b.delivery.notice(ALICE, notices.question_withdrawn(), PartKind.COMMAND, language="zh")
            await b.settled()

            assert b.shown(ALICE) == [notices.question_withdrawn().zh]

    run(story())


# --- peers and accounts


def test_each_send_carries_the_newest_reply_token(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE)
            await b.writes(ALICE)
            await b.answers(ALICE, row, "late answer")
            await b.settled()

            assert b.phone.calls[0][0] == Route(ACCOUNT, ALICE.peer, ReplyToken("token-2"))

    run(story())


def test_an_unknown_outcome_is_tried_again_with_the_same_key(tmp_path: Path) -> None:
    async def story() -> None:
        phone = Phone()

        async def lost() -> Receipt:
            raise Unavailable("connection reset")

        phone.script[1] = lost
        async with bridge(tmp_path, phone).running() as b:
            row = await b.writes(ALICE)
            await b.answers(ALICE, row, "persistent")
            await b.clock.until_somebody_sleeps()
            b.clock.advance(1.0)
            await b.settled()

            assert [key for _, _, key in phone.calls] == [phone.calls[0][2]] * 2
            assert b.shown(ALICE) == ["persistent"]
            assert b.delivery.budget_left(ALICE) == 9

    run(story())


def test_a_send_that_hangs_holds_up_its_own_peer_alone(tmp_path: Path) -> None:
    async def story() -> None:
        phone = Phone()

        async def hangs() -> Receipt:
            await asyncio.Event().wait()
            raise AssertionError

        phone.script[1] = hangs
        async with bridge(tmp_path, phone).running() as b:
            alice, bob = await b.writes(ALICE), await b.writes(BOB)
            await b.answers(ALICE, alice, "stuck")
            await phone.until_called(1)

            await b.answers(BOB, bob, "quick")
            await phone.until_called(2)

            assert b.shown(BOB) == ["quick"]
            assert not b.delivery.idle(ALICE)

    run(story())


def test_a_signed_out_account_holds_everybodys_parts_until_it_is_signed_in(tmp_path: Path) -> None:
    async def story() -> None:
        phone = Phone()

        async def expired() -> Receipt:
            raise SignedOut("errcode -14")

        phone.script[1] = expired
        async with bridge(tmp_path, phone).running() as b:
            alice, bob = await b.writes(ALICE), await b.writes(BOB)
            await b.answers(ALICE, alice, "to alice")
            await b.settled()
            await b.answers(BOB, bob, "to bob")
            await b.settled()
            assert len(phone.calls) == 1
            assert b.told_signed_out == [ACCOUNT]

            b.delivery.signed_in(ACCOUNT)
            await b.settled()

            assert (b.shown(ALICE), b.shown(BOB)) == (["to alice"], ["to bob"])
            assert b.delivery.budget_left(ALICE) == 9

    run(story())


def test_without_a_channel_parts_wait_for_the_login(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE)
            b.channel = None
            await b.answers(ALICE, row, "kept")
            await b.settled()
            assert await b.part_states() == [PartState.PENDING]

            b.channel = b.phone
            b.delivery.signed_in(ACCOUNT)
            await b.settled()

            assert b.shown(ALICE) == ["kept"]

    run(story())


def test_a_peer_spared_the_parked_rest_gets_one_line_instead(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            row = await b.writes(ALICE)
            await b.answers(ALICE, row, "d" * 25_000)
            await b.settled()
            await b.writes(ALICE)

            assert await b.delivery.drop_parked(ALICE) == 3
            await b.settled()

            assert len(b.shown(ALICE)) == 11
            assert b.shown(ALICE)[-1] == notices.parked_dropped(3).en
            assert await b.part_states() == []

    run(story())


def test_twenty_rounds_of_one_question_and_one_answer_are_all_delivered(tmp_path: Path) -> None:
    """B-023"""

    async def story() -> None:
        async with bridge(tmp_path).running() as b:
            for n in range(20):
                row = await b.writes(ALICE)
                await b.answers(ALICE, row, f"answer {n}")
                await b.settled()

            assert b.shown(ALICE) == [f"answer {n}" for n in range(20)]

    run(story())


def test_sends_after_the_second_keep_their_distance(tmp_path: Path) -> None:
    async def story() -> None:
        async with bridge(tmp_path, settings=WeChat(send_gap_ms=600.0)).running() as b:
            row = await b.writes(ALICE)
            await b.answers(ALICE, row, "e" * 7000)
            counts = []

            for _ in range(2):
                await b.clock.until_somebody_sleeps()
                counts.append(len(b.phone.calls))
                b.clock.advance(0.6)
                await b.phone.until_called(counts[-1] + 1)
            await b.settled()

            assert counts == [2, 3]
            assert len(b.shown(ALICE)) == 4

    run(story())
