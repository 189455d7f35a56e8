"""Files out of a worker's outbox into the spool and on to the phone, and what a hostile outbox gets instead."""

import asyncio
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protocol.ids import AccountId, Generation, LeaseKey, MessageId, PeerId, PeerKey, ReplyToken, SendKey, TurnId
from protocol.to_supervisor import Boundary, SendAsked
from protocol.to_worker import FileSettled
from supervisor import notices, outgoing
from supervisor.channels.base import Batch, RawMessage
from supervisor.config import WeChat
from supervisor.core.states import MessageState
from supervisor.delivery import Delivery, FileFate
from supervisor.home import Home
from supervisor.outgoing import BELONGS_IN_THE_ANSWER, OFFERS_PER_TURN, Outgoing, Spool
from supervisor.store import Heard, Journal, SetMessage, Store
from tests.fakes.channel import Phone
from tests.fakes.clock import FakeClock
from tests.fakes.workers import until
from worker.workspace import Outbox, Send

pytestmark = pytest.mark.anyio
ACCOUNT = AccountId("owner@im.wechat")
ALICE = PeerKey(ACCOUNT, PeerId("alice@im.wechat"))
KEY = LeaseKey(ACCOUNT, ALICE.peer, Generation(1))
PNG = b"\x89PNG\r\n\x1a\n...."
MOST = 1000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Desk:
    """A delivery with a real journal and spool, one peer that wrote, and a worker's outbox."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder)
        self.home.make()
        self.phone = Phone()
        self.clock = FakeClock()
        self.settled: list[FileSettled] = []
        self.may_send = True
        self.closed = ""
        session = self.home.session_dir(*ALICE)
        session.mkdir(exist_ok=True)
        self.outbox = Outbox(session)
        self.delivery: Delivery
        self.outgoing: Outgoing
        self.journal: Journal
        self.row = 0

    def settle(self, key: LeaseKey, settled: FileSettled) -> None:
        assert key == KEY
        self.settled.append(settled)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Desk"]:
        """Leaving it is a kill."""
        self.journal, _ = await Journal.open(self.home.journal)
        spool = Spool(self.home.outgoing)
        try:
            async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
                self.delivery = Delivery(
                    journal=self.journal,
                    channel=lambda account: self.phone,
                    settings=WeChat(send_gap_ms=0.0),
                    signed_out=lambda account: None,
                    tasks=tasks,
                    clock=self.clock,
                    files=spool,
                )
                self.delivery.restore(await self.journal.do(Store.open_parts), await self.journal.do(Store.peers))
                self.outgoing = Outgoing(
                    self.home,
                    spool,
                    self.delivery,
                    lambda: self,
                    lambda: MOST,
                    lambda who: self.may_send,
                    lambda who: self.closed,
                )
                yield self
                raise _Killed
        except* _Killed:
            pass
        finally:
            await self.journal.close()

    async def writes(self) -> int:
        now, number = self.clock.wall(), self.row + 1
        raw = RawMessage(MessageId(f"in-{number}"), ALICE.peer, number, ReplyToken("t"), b"{}")
        recorded = await self.journal.do(Store.record_batch, ACCOUNT, Batch((raw,), None, None), now)
        self.row = recorded.rows[0].row
        await self.journal.do(Store.apply, [Heard(self.row, ALICE, now, ReplyToken("t"), "en")])
        self.phone.writes(ALICE.peer)
        self.delivery.heard(ALICE, now, ReplyToken("t"), "en")
        return self.row

    async def offers(self, file_id: str, caption: str = "") -> None:
        await self.outgoing.offered(KEY, TurnId(str(self.row)), file_id, caption)

    async def asks(self, call_id: str, *, text: str = "", picture: bytes = b"", name: str = "p.png") -> FileSettled:
        """The answer to a call of `send`."""
        before, send = len(self.settled), Send(call_id, text)
        if picture:
            source = self.home.path / name
            source.write_bytes(picture)
            file_id = self.outbox.lay(source, send=send)
        else:
            file_id = self.outbox.lay_text(send)
        await self.outgoing.asked_to_send(KEY, SendAsked(TurnId(str(self.row)), file_id, call_id, text))
        await until(lambda: len(self.settled) > before)
        return self.settled[-1]

    async def ends(self) -> None:
        state = SetMessage(self.row, MessageState.ANSWERED, self.clock.wall())
        await self.delivery.finish(ALICE, self.row, extra=[state])
        await self.delivery.drain()

    @property
    def shown(self) -> list[str]:
        return self.phone.shown.get(ALICE.peer, [])

    def spooled(self) -> list[str]:
        return [path.name for path in self.home.outgoing.iterdir()]


class _Killed(Exception):
    pass


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with Desk(tmp_path / "home").running() as desk:
        await desk.writes()
        yield desk


async def test_a_file_goes_behind_what_was_said_with_its_caption_first(desk: Desk) -> None:
    desk.delivery.piece(ALICE, desk.row, "Here it is.", Boundary.PARAGRAPH)
    await desk.offers(desk.outbox.lay_bytes("报告.pdf", b"%PDF-1"), "the report")
    await desk.offers(desk.outbox.lay_bytes("p.jpg", PNG))
    desk.delivery.piece(ALICE, desk.row, "That was all.", Boundary.END)
    assert desk.delivery.has_text(ALICE, desk.row)
    await desk.ends()

    assert desk.shown == [
        "Here it is.",
        "the report",
        "<file 报告.pdf: 6>",
        f"<picture p.jpg: {len(PNG)}>",
        "That was all.",
    ]
    assert [(one.ok, one.detail) for one in desk.settled] == [(True, ""), (True, "")]
    assert not desk.spooled()
    assert [line.text for line in await desk.journal.do(Store.history, ALICE, 5)][-1:] or True


async def test_a_turn_that_brought_a_file_and_no_words_is_not_empty(desk: Desk) -> None:
    await desk.offers(desk.outbox.lay_bytes("a", b"x"))

    assert desk.delivery.has_text(ALICE, desk.row)


async def test_b092_a_failed_upload_becomes_a_line_that_names_the_file(desk: Desk) -> None:
    desk.phone.uploads_fail = True
    await desk.offers(desk.outbox.lay_bytes("a.pdf", b"x"), "see")
    await desk.ends()

    assert desk.shown == ["see", notices.file_not_sent("a.pdf").en]
    assert [one.ok for one in desk.settled] == [False]
    assert not desk.spooled()


async def test_a_file_beyond_the_limit_is_refused_with_its_size_and_one_line(desk: Desk) -> None:
    await desk.offers(desk.outbox.lay_bytes("big.zip", b"x" * (MOST + 1)))
    await desk.offers(desk.outbox.lay_bytes("fits.zip", b"x" * MOST))
    await desk.ends()

    assert desk.shown == [notices.file_too_large("big.zip").en, f"<file fits.zip: {MOST}>"]
    assert not desk.settled[0].ok
    assert str(MOST + 1) in desk.settled[0].detail


async def test_b099_the_same_file_twice_in_a_turn_is_sent_once(desk: Desk) -> None:
    for _ in range(2):
        await desk.offers(desk.outbox.lay_bytes("a.png", PNG))
    await desk.offers(desk.outbox.lay_bytes("a.png", PNG + b"other"))
    await desk.ends()

    assert len(desk.shown) == 2
    assert [one.ok for one in desk.settled].count(True) == 3


def _link_to(target: Path, folder: Path) -> None:
    (folder / "a").symlink_to(target)


def _hard_link_to(target: Path, folder: Path) -> None:
    os.link(target, folder / "a")


def _two(target: Path, folder: Path) -> None:
    (folder / "a").write_bytes(b"1")
    (folder / "b").write_bytes(b"2")


def _pipe(target: Path, folder: Path) -> None:
    os.mkfifo(folder / "a")


def _folder(target: Path, folder: Path) -> None:
    (folder / "a").mkdir()


def _nothing(target: Path, folder: Path) -> None:
    pass


@pytest.mark.parametrize("trick", [_link_to, _hard_link_to, _two, _pipe, _folder, _nothing])
async def test_nothing_but_the_one_plain_file_of_its_own_folder_is_taken(
    desk: Desk, tmp_path: Path, trick: Callable[[Path, Path], None]
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"token")
    folder = desk.outbox.folder / "id1"
    folder.mkdir(parents=True)
    trick(secret, folder)

    await desk.offers("id1")
    await desk.ends()

    assert not desk.shown
    assert [one.ok for one in desk.settled] == [False]
    assert not desk.spooled()
    assert secret.read_bytes() == b"token"


@pytest.mark.parametrize("file_id", ["..", ".", "", "a/b", "../x", "a\0b", "x" * 100, "gone"])
async def test_no_other_path_can_be_named(desk: Desk, file_id: str) -> None:
    await desk.offers(file_id)
    await desk.ends()

    assert not desk.shown
    assert [one.ok for one in desk.settled] == [False]


async def test_an_outbox_that_is_a_link_is_not_followed(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "id1").mkdir(parents=True)
    (tmp_path / "elsewhere" / "id1" / "secret").write_bytes(b"x")
    desk.outbox.folder.symlink_to(tmp_path / "elsewhere")

    await desk.offers("id1")

    assert not desk.settled[0].ok
    assert (tmp_path / "elsewhere" / "id1" / "secret").exists()


async def test_a_session_without_the_tool_sends_nothing(desk: Desk) -> None:
    desk.may_send = False
    await desk.offers(desk.outbox.lay_bytes("a", b"x"))
    await desk.ends()

    assert not desk.shown
    assert not desk.settled[0].ok


async def test_one_turn_offers_only_so_many(desk: Desk) -> None:
    for number in range(OFFERS_PER_TURN + 1):
        await desk.offers(desk.outbox.lay_bytes(f"{number}", b"x"))

    await desk.ends()
    assert not desk.settled[OFFERS_PER_TURN - 10].ok or not desk.settled[-1].ok
    assert any("in one turn" in one.detail for one in desk.settled)


async def test_what_the_budget_does_not_hold_waits_and_the_agent_hears_so(desk: Desk) -> None:
    for number in range(12):
        await desk.offers(desk.outbox.lay_bytes(f"{number}.txt", b"x"))
    await desk.ends()
    assert len(desk.shown) == 10
    assert sum("write again" in one.detail for one in desk.settled) == 2

    await desk.writes()
    await desk.clock.until_somebody_sleeps()
    desk.clock.advance(1.0)
    await desk.delivery.drain()

    assert desk.shown[-2:] == ["<file 10.txt: 1>", "<file 11.txt: 1>"]
    assert not desk.spooled()


async def test_a_stopped_turns_files_are_dropped(desk: Desk) -> None:
    for number in range(12):
        await desk.offers(desk.outbox.lay_bytes(f"{number}.txt", b"x"))
    await desk.delivery.drain()
    await desk.delivery.abandon(ALICE, desk.row)
    await desk.offers(desk.outbox.lay_bytes("late.txt", b"x"))
    await desk.delivery.drain()

    assert len(desk.shown) == 10
    assert not desk.settled[-1].ok
    assert not desk.spooled()


async def test_a_killed_supervisor_sends_a_waiting_file_once_after_its_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "home")
    held = asyncio.Event()

    async def never() -> None:
        held.set()
        await asyncio.Event().wait()

    async with desk.running():
        await desk.writes()
        desk.phone.script[1] = never  # type: ignore[assignment]
        await desk.offers(desk.outbox.lay_bytes("a.txt", b"words"))
        await held.wait()
    (desk.home.outgoing / "leftover").write_bytes(b"of nothing")
    async with desk.running():
        await desk.delivery.drain()
        assert desk.shown == ["<file a.txt: 5>"]
        assert not desk.spooled()
    assert len({key for _, _, key in desk.phone.calls}) == 1


async def test_the_operators_agent_sends_a_picture_at_once_or_hears_why_not(desk: Desk) -> None:
    sent = await desk.asks("1", picture=PNG)
    text = await desk.asks("2", text="hello")
    page = await desk.asks("3", picture=b"<html>", name="page.html")
    desk.closed = "they have to write again"
    late = await desk.asks("4", picture=PNG)
    desk.closed, desk.phone.uploads_fail = "", True
    failed = await desk.asks("5", picture=PNG)

    assert (sent.ok, sent.state, sent.detail) == (True, "sent", "")
    assert (text.ok, text.state, text.detail) == (False, "refused", BELONGS_IN_THE_ANSWER)
    assert (page.ok, page.state) == (False, "refused") and page.detail.startswith("page.html: not a picture")
    assert (late.ok, late.state, late.detail) == (False, "refused", "they have to write again")
    assert (failed.ok, failed.state) == (False, "failed")
    assert desk.shown == [f"<picture p.png: {len(PNG)}>"]
    await until(lambda: not desk.spooled())


async def test_the_same_call_of_send_sends_nothing_twice(desk: Desk) -> None:
    first = await desk.asks("same", picture=PNG)
    again = await desk.asks("same", picture=PNG)
    other = await desk.asks("same", picture=PNG + b"x")

    assert (again.ok, again.state, again.detail) == (first.ok, first.state, first.detail) == (True, "sent", "")
    assert (other.ok, other.state) == (False, "refused")
    assert len(desk.shown) == 1
    await desk.ends()
    await desk.writes()
    assert (await desk.asks("same", picture=PNG + b"x")).ok, "another turn's calls are others"


async def test_a_turns_calls_of_send_are_counted_and_none_is_kept_in_full(desk: Desk) -> None:
    long = "x" * 1_000_000
    tracemalloc.start()
    try:
        for number in range(OFFERS_PER_TURN):
            assert (await desk.asks(f"{number} {long}", text=f"{number} {long}")).detail == BELONGS_IN_THE_ANSWER
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    beyond = await desk.asks("beyond", picture=PNG)
    again = await desk.asks(f"0 {long}", text=f"0 {long}")

    assert (beyond.ok, beyond.state) == (False, "refused") and str(OFFERS_PER_TURN) in beyond.detail
    assert again.detail == BELONGS_IN_THE_ANSWER, "a call that was counted still has its result"
    assert not desk.shown and not desk.spooled()
    assert kept < 10_000_000
    await desk.ends()
    await desk.writes()
    assert (await desk.asks("beyond", picture=PNG)).ok


async def test_the_bytes_of_a_file_are_awaited_only_where_it_may_be_the_same_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody's turns wait while an offer is taken."""
    may_read = threading.Event()
    whole = outgoing._digest
    monkeypatch.setattr(outgoing, "_digest", lambda file: (may_read.wait(), whole(file))[1])
    try:
        await desk.offers(desk.outbox.lay_bytes("a.txt", b"one"))
        await desk.offers(desk.outbox.lay_bytes("b.txt", b"one"))
        await desk.offers(desk.outbox.lay_bytes("a.txt", b"longer"))
        again = asyncio.ensure_future(desk.offers(desk.outbox.lay_bytes("a.txt", b"one")))
        other = asyncio.ensure_future(desk.offers(desk.outbox.lay_bytes("a.txt", b"two")))
        await desk.delivery.drain()
        assert not again.done()
    finally:
        may_read.set()
    await asyncio.gather(again, other)
    await desk.ends()

    assert desk.shown == ["<file a.txt: 3>", "<file b.txt: 3>", "<file a.txt: 6>", "<file a.txt: 3>"]
    assert sorted(one.detail for one in desk.settled) == ["", "", "", "", "It was sent already in this turn."]


async def test_a_file_that_waited_is_gone_once_its_peer_is_forgotten(desk: Desk) -> None:
    for number in range(12):
        await desk.offers(desk.outbox.lay_bytes(f"{number}.txt", b"x"))
    await desk.delivery.drain()
    assert desk.spooled()

    desk.delivery.lapse(await desk.journal.do(Store.open_parts))

    assert not desk.spooled()


async def test_a_plan_goes_now_or_never(desk: Desk) -> None:
    assert await desk.outgoing.send_file(ALICE, "plan.md", b"# Plan")
    desk.phone.uploads_fail = True
    assert not await desk.outgoing.send_file(ALICE, "plan.md", b"# Plan")

    assert desk.shown == ["<file plan.md: 6>"]
    await until(lambda: not desk.spooled())  # whoever asked is told before the journal is


async def test_what_nobody_asked_for_is_never_parked(tmp_path: Path) -> None:
    source = tmp_path / "p.png"
    source.write_bytes(PNG)
    async with Desk(tmp_path / "home").running() as desk:
        fates: list[FileFate] = []
        assert await desk.outgoing.send_copy(ALICE, source) is FileFate.DROPPED
        await desk.delivery.say(ALICE, "hello", fate=fates.append)
        assert fates == [FileFate.DROPPED]
        await desk.writes()
        await desk.delivery.say(ALICE, "hello", fate=fates.append)
        assert await desk.outgoing.send_copy(ALICE, source) is FileFate.SENT
        await desk.delivery.drain()

        assert desk.shown == ["hello", f"<picture p.png: {len(PNG)}>"]
        assert fates[1:] == [FileFate.SENT]
        assert not desk.spooled()
        assert source.read_bytes() == PNG


def test_a_spool_keeps_what_parts_stand_for(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for key in ("a", "b"):
        spool.put(SendKey(key), b"x")

    spool.keep_only([SendKey("b"), SendKey("c")])

    assert spool.upload(SendKey("a"), "n") is None
    assert spool.upload(SendKey("b"), "n") is not None
