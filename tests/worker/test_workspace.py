"""The outbox folder: what is offered is found once, answered once, and never more than one plain file."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from worker.workspace import NOBODY_SAID, Answer, NoFile, Offer, Outbox, path_of, picture_name, send_file

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    (tmp_path / "session").mkdir()
    return Outbox(tmp_path / "session")


def test_an_offer_is_a_copy_and_is_seen_once(outbox: Outbox, tmp_path: Path) -> None:
    source = tmp_path / "报告.pdf"
    source.write_bytes(b"words")

    file_id = outbox.lay(source, "look")
    source.write_bytes(b"other")

    assert outbox.look() == (Offer(file_id, "look"),)
    assert outbox.look() == ()
    assert (outbox.folder / file_id / "报告.pdf").read_bytes() == b"words"


def test_an_answer_is_told_once(outbox: Outbox) -> None:
    file_id = outbox.lay_bytes("a.txt", b"x")
    outbox.look()
    assert outbox.answer(file_id) is None

    outbox.settle(file_id, Answer(False, "too large"))

    assert outbox.answer(file_id) == Answer(False, "too large")
    assert outbox.answer(file_id) is None
    assert not (outbox.folder / f"{file_id}.json").exists()


@pytest.mark.parametrize("make", ["nothing", "folder", "pipe"])
def test_only_a_plain_file_is_offered(outbox: Outbox, tmp_path: Path, make: str) -> None:
    path = tmp_path / "thing"
    if make == "folder":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)

    with pytest.raises(NoFile):
        outbox.lay(path)
    assert outbox.look() == ()


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "x" * 300 + ".png", "报" * 200 + ".txt"])
def test_whatever_a_block_calls_itself_lies_in_its_own_folder(outbox: Outbox, name: str) -> None:
    file_id = outbox.lay_bytes(name, b"x")

    (found,) = (outbox.folder / file_id).iterdir()
    assert found.read_bytes() == b"x"
    assert found.suffix == Path(name).suffix if len(name) > 100 else True


def test_the_ids_and_notes_of_others_do_no_harm(outbox: Outbox) -> None:
    outbox.folder.mkdir()
    (outbox.folder / "..json").write_text("{}")
    (outbox.folder / "good.json").write_text("[1]")
    (outbox.folder / "bad id.json").write_text("{}")
    outbox.settle("../escape", Answer(True, ""))

    assert outbox.look() == (Offer("good", ""),)
    assert not (outbox.folder.parent / "escape.answer").exists()


def first_offers(outbox: Outbox) -> tuple[Offer, ...]:
    while not (offers := outbox.look()):
        time.sleep(0.01)
    return offers


async def test_the_tool_waits_for_its_answer(outbox: Outbox, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send_file(outbox, tmp_path / "a", "c"))
        (offer,) = await asyncio.to_thread(first_offers, outbox)
        outbox.settle(offer.file_id, Answer(True, ""))

    assert sending.result().in_words() == "The file was sent."
    assert (await send_file(outbox, tmp_path / "gone")).in_words() == (
        "The file was not sent: gone: No such file or directory"
    )
    assert await send_file(outbox, tmp_path / "a", answer_s=0) == Answer(False, NOBODY_SAID, "unknown")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a/b%20c.txt", "/a/b c.txt"),
        ("file://localhost/a", "/a"),
        ("file://elsewhere/a", None),
        ("https://x/a", None),
        ("file:a", None),
        ("file://[", None),
    ],
)
def test_only_addresses_of_files_here_are_paths(uri: str, path: str | None) -> None:
    assert path_of(uri) == (Path(path) if path else None)


def test_a_picture_block_gets_a_name() -> None:
    assert picture_name("image/jpeg") == "picture.jpg"
    assert picture_name("x/../y") == "picture"
