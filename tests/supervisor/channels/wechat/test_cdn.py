"""Media down and up against the simulated CDN over real HTTP, with its cipher and every fault it knows."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.content import Inbound, Media
from protocol.ids import AccountId, Cursor, PeerId, ReplyToken, SendKey
from supervisor.channels.base import (
    Credentials,
    MediaUnreadable,
    NotUploaded,
    ReceiptKind,
    Route,
    SignedOut,
    Unavailable,
    Upload,
)
from supervisor.channels.wechat import WeChatSettings, wire
from supervisor.channels.wechat.cdn import Cdn, CdnTiming
from supervisor.channels.wechat.client import WeChatChannel
from supervisor.channels.wechat.login import Confirmed, log_in
from supervisor.channels.wechat.wire import WeChatReader
from supervisor.clock import SystemClock
from tests.fakes.wechat import SimulatedWeChat

pytestmark = pytest.mark.anyio
DEADLINE_S = 30.0
MOST = 20 * 1024 * 1024
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4


@pytest.fixture
def wechat() -> Iterator[SimulatedWeChat]:
    with SimulatedWeChat(hold_s=0.2) as service:
        yield service


class Scanner:
    def __init__(self, wechat: SimulatedWeChat, person: str) -> None:
        self._wechat = wechat
        self._person = person

    async def show_qr(self, url: str, number: int, of: int) -> None:
        self.scanned = asyncio.ensure_future(asyncio.to_thread(self._wechat.scan, self._person))

    async def tell(self, line: str) -> None:
        pass

    async def ask_code(self, *, again: bool) -> str:
        raise AssertionError("no number was to be asked for")


class Desk:
    """One person, their bot's channel, and the CDN."""

    def __init__(
        self, wechat: SimulatedWeChat, person: str, credentials: Credentials, settings: WeChatSettings
    ) -> None:
        self.wechat = wechat
        self.person = person
        self.channel = WeChatChannel(credentials, settings)
        self.cdn = Cdn(settings, timing=CdnTiming(silence_s=0.5, transfer_s=2.0))
        self._cursor = Cursor("")
        self._reply_token: ReplyToken | None = None

    async def open(self) -> None:
        """The person writes first: before that a bot may send nothing."""
        await asyncio.to_thread(self.wechat.say, self.person, "hello")
        self._reply_token = (await self._next()).reply_token

    async def _next(self) -> Inbound:
        batch = await self.channel.fetch(self._cursor, hold_s=5.0)
        self._cursor = batch.cursor or self._cursor
        inbound = WeChatReader().parse(batch.messages[-1].raw)
        assert isinstance(inbound, Inbound)
        return inbound

    async def attached(self, kind: str, data: bytes, **parts: Any) -> Media:
        """What a bot is told of this attachment."""
        await asyncio.to_thread(self.wechat.attach, self.person, kind, data, **parts)
        return (await self._next()).media[0]

    async def fetched(self, media: Media, *, most: int = MOST) -> bytes:
        pieces: list[bytes] = []
        await self.cdn.download(media.wire, pieces.append, most_bytes=most)
        return b"".join(pieces)

    async def send(self, path: Path, *, key: str = "k", picture: bool = False) -> Any:
        route = Route(AccountId(self.person), PeerId(self.person), self._reply_token)
        return await self.channel.send_file(route, Upload(path, path.name, picture), SendKey(key))

    def shown(self) -> list[tuple[str, str, bytes]]:
        return [
            (one.kind, one.media["name"], self.wechat.media(one))
            for one in self.wechat.bubbles(self.person)
            if one.media is not None and not one.media["problem"]
        ]


@pytest.fixture
async def desk(wechat: SimulatedWeChat) -> AsyncIterator[Desk]:
    person = wechat.add_person()
    settings = WeChatSettings(base_url=wechat.base_url, cdn_base_url=wechat.cdn_url)
    scanner = Scanner(wechat, person)
    async with asyncio.timeout(DEADLINE_S):
        result = await log_in(settings, known_tokens=(), desk=scanner, clock=SystemClock())
        await scanner.scanned
        assert isinstance(result, Confirmed)
        desk = Desk(wechat, person, result.credentials, settings)
        await desk.open()
        yield desk
        await desk.channel.aclose()
        await desk.cdn.aclose()


# --- in -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["full_url", "ticket"])
@pytest.mark.parametrize("key_form", ["hex", "raw"])
async def test_each_form_of_key_and_address_opens_the_file(desk: Desk, key_form: str, address: str) -> None:
    media = await desk.attached("file", b"%PDF-" + b"x" * 100_000, name="a.pdf", key_form=key_form, address=address)

    assert await desk.fetched(media) == b"%PDF-" + b"x" * 100_000


@pytest.mark.parametrize("kind", ["image", "voice", "video"])
@pytest.mark.parametrize("data", [b"", b"x" * 15, b"x" * 16])
async def test_every_kind_and_length_comes_whole(desk: Desk, kind: str, data: bytes) -> None:
    assert await desk.fetched(await desk.attached(kind, data)) == data


async def test_a_picture_without_any_key_is_taken_as_it_lies(desk: Desk) -> None:
    assert await desk.fetched(await desk.attached("image", PNG, key_form="absent")) == PNG


async def test_b074_the_outer_key_of_a_picture_goes_first(desk: Desk) -> None:
    media = await desk.attached("image", PNG)
    item = wire.from_json(media.wire)
    assert isinstance(item, dict)
    item["image_item"]["media"]["aes_key"] = "AAAAAAAAAAAAAAAAAAAAAA=="

    pieces: list[bytes] = []
    await desk.cdn.download(wire.to_json(item), pieces.append, most_bytes=MOST)

    assert b"".join(pieces) == PNG


@pytest.mark.parametrize("parts", [{"key_form": "absent"}, {"address": "absent"}], ids=str)
async def test_b074_without_key_or_address_nothing_is_fetched(desk: Desk, parts: dict[str, Any]) -> None:
    media = await desk.attached("file", b"secret", name="a.txt", **parts)
    pieces: list[bytes] = []

    with pytest.raises(MediaUnreadable):
        await desk.cdn.download(media.wire, pieces.append, most_bytes=MOST)

    assert not pieces


@pytest.mark.parametrize("fault", ["bad_padding", "short_download"])
async def test_a_spoiled_object_is_noticed(desk: Desk, fault: str) -> None:
    media = await desk.attached("file", b"x" * 1000, name="a.txt")
    desk.wechat.set_fault(fault)

    with pytest.raises(MediaUnreadable):
        await desk.fetched(media)


async def test_another_files_key_is_noticed(desk: Desk) -> None:
    desk.wechat.set_fault("wrong_key")
    media = await desk.attached("file", b"x" * 1000, name="a.txt", address="ticket")

    with pytest.raises(MediaUnreadable):
        await desk.fetched(media)


async def test_what_is_larger_than_allowed_is_cut_off_while_it_streams(desk: Desk) -> None:
    media = await desk.attached("file", b"x" * 300_000, name="a.bin")
    taken: list[int] = []

    with pytest.raises(MediaUnreadable, match="larger"):
        await desk.cdn.download(media.wire, lambda piece: taken.append(len(piece)), most_bytes=100_000)

    assert sum(taken) <= 100_000
    assert len(await desk.fetched(media, most=300_000)) == 300_000


async def test_an_object_that_is_gone_is_not_asked_for_again(desk: Desk) -> None:
    media = await desk.attached("file", b"x", name="a")
    desk.wechat.set_fault("http_status", path="cdn/download", status=404)

    with pytest.raises(MediaUnreadable, match="404"):
        await desk.fetched(media)


@pytest.mark.parametrize(
    "fault",
    [("http_status", {"status": 500}), ("never_answer", {}), ("close_unanswered", {}), ("cut_body", {})],
    ids=lambda fault: str(fault[0]),
)
async def test_b098_trouble_that_may_pass_is_told_apart(desk: Desk, fault: tuple[str, dict[str, Any]]) -> None:
    media = await desk.attached("file", b"x" * 100_000, name="a")
    desk.wechat.set_fault(fault[0], path="cdn/download", times=1, **fault[1])

    with pytest.raises(Unavailable):
        await desk.fetched(media)
    assert await desk.fetched(media) == b"x" * 100_000


async def test_a_body_that_dribbles_is_given_up(desk: Desk) -> None:
    media = await desk.attached("file", b"x" * 10_000, name="a")
    desk.wechat.set_fault("dribbled_body", path="cdn/download", gap_ms=50)

    with pytest.raises(Unavailable):
        await desk.fetched(media)


# --- out ------------------------------------------------------------------------------------------------------


async def test_a_file_and_a_picture_arrive_and_open(desk: Desk, tmp_path: Path) -> None:
    report, picture, empty = tmp_path / "报告.pdf", tmp_path / "p.png", tmp_path / "empty.txt"
    report.write_bytes(b"%PDF-" + bytes(range(256)) * 1000)
    picture.write_bytes(PNG)
    empty.write_bytes(b"")

    receipts = [
        await desk.send(report, key="1"),
        await desk.send(picture, key="2", picture=True),
        await desk.send(empty, key="3"),
    ]

    assert [receipt.kind for receipt in receipts] == [ReceiptKind.ACCEPTED] * 3
    assert [(kind, data) for kind, _, data in desk.shown()] == [
        ("file", report.read_bytes()),
        ("image", PNG),
        ("file", b""),
    ]
    assert desk.shown()[0][1] == "报告.pdf"


async def test_the_next_try_of_a_send_uploads_nothing_again(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"words")
    desk.wechat.set_fault("http_status", path="sendmessage", when="after", status=502, times=1)

    with pytest.raises(Unavailable):
        await desk.send(file)
    receipt = await desk.send(file)

    assert receipt.kind is ReceiptKind.ACCEPTED
    assert len(desk.shown()) == 1
    assert len(desk.wechat.requests("getuploadurl")) == 1


@pytest.mark.parametrize("size", [12_000, 500_000])
async def test_b083_the_complete_address_goes_before_the_parameter(desk: Desk, tmp_path: Path, size: int) -> None:
    desk.wechat.set_fault("param_upload_fails")
    file = tmp_path / "a.bin"
    file.write_bytes(b"x" * size)

    await desk.send(file)

    assert len(desk.shown()[0][2]) == size


async def test_b083_the_parameter_alone_does(desk: Desk, tmp_path: Path) -> None:
    desk.wechat.set_fault("upload_param_only")
    file = tmp_path / "a.bin"
    file.write_bytes(b"x")

    await desk.send(file)

    assert desk.shown()[0][2] == b"x"


@pytest.mark.parametrize(
    "fault",
    [
        ("no_upload_url", {}),
        ("refuse_upload", {}),
        ("no_encrypted_param", {}),
        ("http_status", {"path": "cdn/upload", "status": 500}),
        ("http_status", {"path": "cdn/upload", "status": 403}),
    ],
    ids=str,
)
async def test_b092_a_failed_upload_sends_nothing(
    desk: Desk, tmp_path: Path, fault: tuple[str, dict[str, Any]]
) -> None:
    desk.wechat.set_fault(fault[0], **fault[1])
    file = tmp_path / "a.bin"
    file.write_bytes(b"x")

    with pytest.raises(NotUploaded):
        await desk.send(file)

    assert not desk.wechat.view().sends


@pytest.mark.parametrize(("status", "tries"), [(500, 3), (403, 1)])
async def test_server_trouble_is_tried_three_times_a_refusal_once(
    desk: Desk, tmp_path: Path, status: int, tries: int
) -> None:
    desk.wechat.set_fault("http_status", path="cdn/upload", status=status)
    file = tmp_path / "a.bin"
    file.write_bytes(b"x")

    with pytest.raises(NotUploaded):
        await desk.send(file)

    assert len(desk.wechat.requests("cdn/upload")) == tries


async def test_trouble_that_passes_costs_an_upload_nothing(desk: Desk, tmp_path: Path) -> None:
    desk.wechat.set_fault("http_status", path="cdn/upload", status=500, times=1)
    desk.wechat.set_fault("no_encrypted_param", times=1)
    file = tmp_path / "a.bin"
    file.write_bytes(b"x")

    assert (await desk.send(file)).kind is ReceiptKind.ACCEPTED


async def test_a_token_that_is_not_taken_any_more_is_no_failed_upload(desk: Desk, tmp_path: Path) -> None:
    desk.wechat.set_fault("stale_session", path="getuploadurl")
    file = tmp_path / "a.bin"
    file.write_bytes(b"x")

    with pytest.raises(SignedOut):
        await desk.send(file)


async def test_a_file_that_is_gone_or_a_link_is_not_uploaded(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_bytes(b"not this one")

    for name in ("gone", "link"):
        with pytest.raises(NotUploaded):
            await desk.send(tmp_path / name)
