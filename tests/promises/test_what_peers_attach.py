"""Pictures, files, voice and video on their way in: from a phone through the CDN to the agent that reads them."""

import hashlib
import io
import json
import os
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pysilk
import pytest

from supervisor import notices
from supervisor.home import Home
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
PATIENT = "[timers]\nack_s = 600\nack_again_s = 1200\nstop_hint_s = 600\n"


def blocks(answer: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(answer)
    return loaded


def notes(answer: str) -> list[str]:
    return [block["text"] for block in blocks(answer) if block["type"] == "text"]


def kept(bridge: Stage, person: str = "") -> dict[str, bytes]:
    """What lies in a peer's media folder, by name."""
    folder = Home(bridge.bridge.home).media_dir(bridge.me, person or bridge.me)
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def test_a_picture_reaches_the_agent_as_a_picture_and_a_file_by_its_path(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings=PATIENT) as bridge:
        bridge.begin()
        bridge.wechat.attach(bridge.me, "image", PNG, text="BLOCKS")
        shown = blocks(bridge.answers(bridge.me, 1)[0])
        (image,) = [block for block in shown if block["type"] == "image"]
        assert image["mimeType"] == "image/png"

        bridge.wechat.attach(bridge.me, "file", b"col1,col2\n", name="../../etc/report.csv", text="BLOCKS")
        told = notes(bridge.answers(bridge.me, 2)[1])

        (name, other) = sorted(kept(bridge))
        assert name.endswith("-picture.png") and kept(bridge)[name] == PNG
        assert other.endswith("-report.csv") and kept(bridge)[other] == b"col1,col2\n"
        assert any(note.startswith("[bridge: attached: /") and note.endswith(f"{other}]") for note in told)
        assert bridge.bridge.status()["peers"][0]["media_bytes"] == len(PNG) + 10


def test_the_worker_can_read_what_was_sent_as_its_own_user(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings=PATIENT) as bridge:
        bridge.begin()
        bridge.wechat.attach(bridge.me, "file", b"for the agent", name="a.txt", text="SAY saved")
        bridge.answers(bridge.me, 1)
        (name,) = kept(bridge)
        path = Home(bridge.bridge.home).media_dir(bridge.me, bridge.me) / name

        bridge.say(bridge.me, f"READ {path}")

        assert bridge.answers(bridge.me, 2)[1] == "worked"
        if os.geteuid() == 0:
            assert path.stat().st_uid == path.parent.stat().st_uid != 0


@pytest.mark.parametrize(
    ("kind", "notice"), [("voice", notices.voice_without_words().en), ("video", notices.video_not_understood().en)]
)
def test_voice_without_words_and_video_start_no_turn_and_the_next_turn_is_told_where_they_are(
    stage: Stages, kind: str, notice: str
) -> None:
    with stage(agent=FAKE_AGENT, settings=PATIENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "SAY first")
        bridge.answers(bridge.me, 1)
        bridge.wechat.attach(bridge.me, kind, b"sound or moving pictures")
        assert bridge.answers(bridge.me, 2)[1] == notice
        bridge.bridge.wait_log(" media_saved ")

        bridge.say(bridge.me, "BLOCKS")
        told = notes(bridge.answers(bridge.me, 3)[2])

        (name,) = kept(bridge)
        assert any(note.startswith("[bridge: sent before") and name in note for note in told)
        bridge.say(bridge.me, "BLOCKS")
        assert not any(name in note for note in notes(bridge.answers(bridge.me, 4)[3])), "told once"
        assert bridge.counters()["turns_answered"] == 3


def test_a_voice_message_without_words_is_told_to_the_agent_as_a_sound_that_programs_can_read(stage: Stages) -> None:
    sound = io.BytesIO()
    pysilk.encode(io.BytesIO(bytes(24_000)), sound, 24_000, 24_000)
    with stage(agent=FAKE_AGENT, settings=PATIENT) as bridge:
        bridge.begin()
        bridge.wechat.attach(bridge.me, "voice", sound.getvalue())
        bridge.answers(bridge.me, 1)
        bridge.bridge.wait_log(" media_saved ")

        bridge.say(bridge.me, "BLOCKS")
        (note,) = [one for one in notes(bridge.answers(bridge.me, 2)[1]) if one.startswith("[bridge: sent before")]

        wav = Path(note.removesuffix("]").rpartition(" ")[2])
        with wave.open(str(wav)) as decoded:
            assert decoded.getnframes() > 10_000
        bridge.answer_to_is(bridge.me, f"READ {wav}", "worked")


def test_voice_with_words_is_a_prompt_and_its_sound_is_kept_too(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings=PATIENT) as bridge:
        bridge.begin()
        bridge.wechat.attach(bridge.me, "voice", b"#!SILK", transcript="SAY understood")

        assert bridge.answers(bridge.me, 1) == ["understood"]
        bridge.bridge.wait_log(" media_saved ")
        assert list(kept(bridge).values()) == [b"#!SILK"]


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ("wrong_key", {}),
        ("bad_padding", {}),
        ("short_download", {}),
        (None, {"address": "absent"}),
        (None, {"key_form": "absent"}),
        (None, {"data": b"x" * 5000}),  # over the limit below
    ],
)
def test_what_cannot_be_had_is_named_to_the_agent_and_to_the_peer_and_nothing_of_it_is_kept(
    stage: Stages, fault: str | None, parts: dict[str, Any]
) -> None:
    with stage(agent=FAKE_AGENT, settings=PATIENT, wechat_keys="max_media_bytes = 4000") as bridge:
        bridge.begin()
        if fault is not None:
            bridge.wechat.set_fault(fault)
        data = parts.pop("data", b"never seen")
        bridge.wechat.attach(bridge.me, "file", data, name="report.pdf", text="BLOCKS", **parts)

        answers = bridge.answers(bridge.me, 2)

        assert notices.attachment_unreadable(["report.pdf"]).en in answers
        (told,) = [answer for answer in answers if answer.startswith("[{")]
        assert any("not readable here: “report.pdf”" in note for note in notes(told))
        assert kept(bridge) == {}


def test_a_slow_cdn_holds_nobody_up_but_its_own_message(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings=f"{PATIENT}[workers]\nconcurrency = 1\n", guests=1) as bridge:
        bridge.begin()
        (guest,) = bridge.guests
        bridge.wechat.set_fault("late", path="cdn/download", delay_ms=3000)
        bridge.wechat.attach(bridge.me, "image", PNG, text="SAY mine")
        bridge.say(bridge.me, "SAY behind it")
        bridge.say(guest, "SAY theirs")

        assert bridge.answers(guest, 1) == ["theirs"]
        assert bridge.wechat.view().texts(bridge.me) == []
        assert bridge.answers(bridge.me, 2) == ["mine", "behind it"]


def test_killed_in_the_middle_of_a_download_it_is_fetched_again(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings=PATIENT) as bridge:
        bridge.begin()
        bridge.wechat.set_fault("never_answer", path="cdn/download", times=1)
        bridge.wechat.attach(bridge.me, "image", PNG, text="BLOCKS")
        bridge.bridge.wait_status(lambda status: bool(status["peers"]) and status["peers"][0]["queued"] == 1)

        bridge.bridge.kill()
        bridge.bridge.start()

        assert any(block["type"] == "image" for block in blocks(bridge.answers(bridge.me, 1)[0]))
        assert list(kept(bridge).values()) == [PNG]


def test_after_a_lost_journal_an_old_file_is_never_taken_for_a_new_one(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings=PATIENT) as bridge:
        bridge.begin()
        bridge.wechat.attach(bridge.me, "file", b"old", name="a.txt", text="SAY one")
        bridge.answers(bridge.me, 1)
        bridge.bridge.stop()
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (bridge.bridge.home / name).unlink(missing_ok=True)
        bridge.bridge.start()

        bridge.wechat.attach(bridge.me, "file", b"new", name="a.txt", text="SAY two")
        bridge.answers(bridge.me, 2)

        assert sorted(kept(bridge).values()) == [b"new", b"old"]


def test_the_oldest_attachments_go_when_a_peer_has_sent_too_much(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings=f"{PATIENT}[media]\nper_peer_mb = 1\n") as bridge:
        bridge.begin()
        for number in range(3):
            data = bytes([number]) * 400_000
            bridge.wechat.attach(bridge.me, "file", data, name=f"{number}.bin", text=f"SAY {number}")
            bridge.answers(bridge.me, number + 1)
        bridge.bridge.wait_log(" media_dropped ")

        assert [name[-5:] for name in sorted(kept(bridge))] == ["1.bin", "2.bin"]


def test_a_picture_and_its_caption_in_two_messages_are_two_turns_in_order(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings=PATIENT) as bridge:
        bridge.begin()
        bridge.wechat.attach(bridge.me, "image", PNG)
        bridge.say(bridge.me, "BLOCKS")

        bridge.answers(bridge.me, 2)
        assert bridge.counters()["turns_answered"] == 2
        assert hashlib.sha256(PNG).hexdigest() in {hashlib.sha256(data).hexdigest() for data in kept(bridge).values()}
