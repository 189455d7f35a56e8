"""attachments: fetched through the real channel from the simulated CDN, with every switch that the CDN has."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from protocol.content import Inbound
from protocol.ids import AccountId, Cursor, PeerId, PeerKey
from supervisor import attachments as module
from supervisor.attachments import Attachments, Saved, hold
from supervisor.channels.wechat import WeChatSettings
from supervisor.channels.wechat.cdn import Cdn
from supervisor.channels.wechat.client import WeChatChannel
from supervisor.channels.wechat.wire import WeChatReader
from supervisor.config import MediaKeeping, Settings
from tests.fakes.signed_in import sign_in
from tests.fakes.wechat import SimulatedWeChat

pytestmark = pytest.mark.anyio
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
MB = 1024 * 1024


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def wechat() -> Iterator[SimulatedWeChat]:
    with SimulatedWeChat(hold_s=0.5) as service:
        service.set_fault("strict_headers")
        yield service


@dataclass
class Desk:
    """One signed-in person, and a home for what they attach."""

    wechat: SimulatedWeChat
    person: str
    channel: WeChatChannel
    root: Path
    attachments: Attachments
    settings: Settings
    cursor: Cursor = Cursor("")
    rows: int = 0

    @property
    def who(self) -> PeerKey:
        return PeerKey(AccountId(self.person), PeerId(self.person))

    async def hears(self, kind: str, data: bytes, **parts: Any) -> tuple[int, Inbound]:
        """A message with an attachment, polled."""
        await asyncio.to_thread(self.wechat.attach, self.person, kind, data, **parts)
        while True:
            batch = await self.channel.fetch(self.cursor, hold_s=1.0)
            self.cursor = batch.cursor or self.cursor
            if batch.messages:
                inbound = WeChatReader().parse(batch.messages[0].raw)
                assert isinstance(inbound, Inbound)
                self.rows += 1
                return self.rows, inbound

    async def fetched(self, row: int, inbound: Inbound) -> tuple[Saved, ...]:
        done = asyncio.Event()

        async def over() -> None:
            done.set()

        self.attachments.fetch(self.who, row, inbound, over)
        async with asyncio.timeout(60):
            await done.wait()
        return self.attachments.saved(self.who, row, inbound)

    async def saved(self, kind: str, data: bytes, **parts: Any) -> Saved:
        (one,) = await self.fetched(*await self.hears(kind, data, **parts))
        return one

    def kept(self) -> list[str]:
        return sorted(path.name for path in (self.root / "peer").iterdir()) if (self.root / "peer").is_dir() else []


@asynccontextmanager
async def desk(wechat: SimulatedWeChat, folder: Path, **keep: int) -> AsyncIterator[Desk]:
    person = wechat.add_person()
    channel = await sign_in(wechat, person)
    place = folder / "peer"
    cdn = Cdn(WeChatSettings(base_url=wechat.base_url, cdn_base_url=wechat.cdn_url))

    async def make(who: PeerKey) -> Path:
        place.mkdir(exist_ok=True)
        return place

    try:
        async with asyncio.TaskGroup() as tasks:
            attachments = Attachments(
                source=cdn,
                folder=make,
                place=lambda who: place,
                root=folder,
                settings=lambda: made.settings,
                tasks=tasks,
            )
            made = Desk(wechat, person, channel, folder, attachments, Settings(media=MediaKeeping(**keep)))
            yield made
    finally:
        await cdn.aclose()
        await channel.aclose()


@pytest.mark.parametrize("key_form", ["hex", "raw"])
@pytest.mark.parametrize("address", ["full_url", "ticket"])
@pytest.mark.parametrize(
    ("kind", "data"), [("image", PNG), ("file", b""), ("voice", b"#!SILK"), ("video", b"x" * 5000)]
)
async def test_whatever_is_attached_is_saved_as_it_was(
    wechat: SimulatedWeChat, tmp_path: Path, kind: str, data: bytes, address: str, key_form: str
) -> None:
    async with desk(wechat, tmp_path) as here:
        saved = await here.saved(kind, data, address=address, key_form=key_form)

        assert saved.path is not None and saved.path.read_bytes() == data
        assert saved.is_picture is (kind == "image")


async def test_a_picture_without_any_key_lies_there_in_plain_and_a_file_without_one_is_lost(
    wechat: SimulatedWeChat, tmp_path: Path
) -> None:
    async with desk(wechat, tmp_path) as here:
        picture = await here.saved("image", PNG, key_form="absent")
        file = await here.saved("file", b"secret", key_form="absent")

        assert picture.path is not None and picture.path.read_bytes() == PNG
        assert file.path is None


@pytest.mark.parametrize("fault", ["bad_padding", "short_download", "wrong_key"])
async def test_bytes_that_do_not_fit_their_key_are_never_kept(
    wechat: SimulatedWeChat, tmp_path: Path, fault: str
) -> None:
    async with desk(wechat, tmp_path) as here:
        wechat.set_fault(fault)

        assert (await here.saved("file", b"x" * 100, name="a.pdf")).path is None
        assert here.kept() == []


@pytest.mark.parametrize(
    ("fault", "times", "saved"),
    [
        ({"name": "http_status", "status": 500}, 2, True),  # the third attempt
        ({"name": "http_status", "status": 500}, 9, False),
        ({"name": "http_status", "status": 404}, 1, False),  # no second attempt
        ({"name": "close_unanswered"}, 1, True),
        ({"name": "cut_body"}, 1, True),
        ({"name": "late", "delay_ms": 300}, 1, True),
    ],
)
async def test_b098_trouble_on_the_way_is_tried_twice_more_and_what_is_gone_is_not(
    wechat: SimulatedWeChat, tmp_path: Path, fault: dict[str, Any], times: int, saved: bool
) -> None:
    async with desk(wechat, tmp_path) as here:
        wechat.set_fault(fault.pop("name"), path="cdn/download", times=times, **fault)

        one = await here.saved("file", b"x" * 1000)

        assert (one.path is not None) is saved
        assert len(here.kept()) == saved


@pytest.mark.parametrize("size", [1001, 5000])
async def test_too_much_is_refused_announced_or_not(wechat: SimulatedWeChat, tmp_path: Path, size: int) -> None:
    async with desk(wechat, tmp_path) as here:
        here.settings = replace(here.settings, wechat=replace(here.settings.wechat, max_media_bytes=1000))
        row, inbound = await here.hears("file", b"x" * size)
        lying = replace(inbound, media=(replace(inbound.media[0], size_bytes=10),))

        assert (await here.fetched(row, inbound))[0].path is None
        assert (await here.fetched(row, lying))[0].path is None
        assert here.kept() == []
        fits = await here.saved("file", b"x" * 1000)
        assert fits.path is not None


async def test_a_download_that_hangs_ends_with_its_messages_time(
    wechat: SimulatedWeChat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MESSAGE_S", 1.0)
    async with desk(wechat, tmp_path) as here:
        wechat.set_fault("never_answer", path="cdn/download")

        assert (await here.saved("file", b"x")).path is None
        assert here.kept() == []


async def test_one_peers_hanging_downloads_keep_nobody_else_waiting(wechat: SimulatedWeChat, tmp_path: Path) -> None:
    async with desk(wechat, tmp_path) as here:
        row, inbound = await here.hears("file", b"x")
        other = PeerKey(AccountId("other"), PeerId("other"))
        wechat.set_fault("never_answer", path="cdn/download", times=2)
        for _ in range(4):
            here.attachments.fetch(PeerKey(AccountId("slow"), PeerId("slow")), row + 1, inbound, nothing)
        await asyncio.to_thread(hanging, wechat, 2)
        done = asyncio.Event()

        async def tell() -> None:
            done.set()

        async with asyncio.timeout(10):
            here.attachments.fetch(other, row + 2, inbound, tell)
            await done.wait()
        for task in asyncio.all_tasks():
            if task.get_name().startswith("media slow"):
                task.cancel()


async def nothing() -> None: ...


def hanging(wechat: SimulatedWeChat, count: int) -> None:
    end = time.monotonic() + 20
    while sum(fault["strikes"] for fault in wechat.faults()) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_what_is_there_is_not_fetched_again(wechat: SimulatedWeChat, tmp_path: Path) -> None:
    async with desk(wechat, tmp_path) as here:
        row, inbound = await here.hears("file", b"once")
        await here.fetched(row, inbound)
        wechat.set_fault("http_status", path="cdn/download", status=404)

        (again,) = await here.fetched(row, inbound)
        assert again.path is not None and again.path.read_bytes() == b"once"


async def test_the_oldest_of_a_peer_goes_first_and_the_newest_stays(wechat: SimulatedWeChat, tmp_path: Path) -> None:
    async with desk(wechat, tmp_path, per_peer_mb=1) as here:
        for number in range(3):
            saved = await here.saved("file", bytes(400_000), name=f"{number}.bin")
            assert saved.path is not None
            os.utime(saved.path, (number, number))
        whole = await here.saved("file", bytes(2 * MB), name="big.bin")

        assert whole.path is not None, "the newest stays, however large"
        assert [name[-7:] for name in here.kept()] == ["big.bin"]


async def test_all_peers_together_have_a_limit_too(wechat: SimulatedWeChat, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "000001-0-old.bin").write_bytes(bytes(900_000))
    os.utime(other / "000001-0-old.bin", (1, 1))
    async with desk(wechat, tmp_path, total_mb=1) as here:
        await here.saved("file", bytes(400_000))

        assert not list(other.iterdir())
        assert len(here.kept()) == 1


async def test_what_a_killed_bridge_left_unfinished_is_cleared(wechat: SimulatedWeChat, tmp_path: Path) -> None:
    async with desk(wechat, tmp_path) as here:
        await here.saved("file", b"whole")
        (tmp_path / "peer" / ".unfinished").write_bytes(b"half")

        here.attachments.tidy()

        assert len(here.kept()) == 1


async def test_twenty_megabytes_pass_through_without_being_held_in_memory(
    wechat: SimulatedWeChat, tmp_path: Path
) -> None:
    """The service runs in this process too: what it holds is taken before, and ours is what comes on top."""
    data = os.urandom(20 * MB - 16)
    async with desk(wechat, tmp_path) as here:
        row, inbound = await here.hears("file", data)
        most, over = 0, threading.Event()
        me = psutil.Process()
        before = me.memory_info().rss

        def watch() -> None:
            nonlocal most
            while not over.wait(0.005):
                most = max(most, me.memory_info().rss - before)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            (saved,) = await here.fetched(row, inbound)
        finally:
            over.set()
            watching.join()

        assert saved.path is not None and saved.path.read_bytes() == data
        assert most < 48 * MB, "the service's own answer takes two copies of it; a whole bridge: tests/promises"


def test_a_turn_waits_for_what_its_agent_is_to_see_and_for_nothing_else() -> None:
    from protocol.content import Media, MediaKind
    from protocol.ids import MessageId

    def inbound(kind: MediaKind, transcript: str = "") -> Inbound:
        media = Media(kind, "", transcript, None, b"{}")
        return Inbound(MessageId("1"), PeerId("p"), "", None, None, False, "", (media,))

    assert hold(inbound(MediaKind.IMAGE)) and hold(inbound(MediaKind.FILE))
    assert not hold(inbound(MediaKind.VOICE, "spoken words"))
    assert not hold(inbound(MediaKind.UNKNOWN))
