"""Messages have the shape of the captured sample."""

from typing import Any

import pytest

from supervisor.demo import inbound
from supervisor.demo.inbound import Attachment, Filed, QuoteOf

FILED = Filed("TICKET", "http://127.0.0.1/c2c/download?x", bytes(range(16)), 20, "0" * 32)
SAMPLE_KINDS = {"text": 0, "image": 1, "voice": 2, "file": 3, "video": 4}


def sample_item(vectors: dict[str, Any], kind: str) -> dict[str, Any]:
    return dict(vectors["sample_getupdates_response"]["msgs"][SAMPLE_KINDS[kind]]["item_list"][0])


def test_a_message_has_every_member_of_the_captured_one(vectors: dict[str, Any]) -> None:
    envelope = inbound.Envelope(101, 2**60, "a@im.wechat", "b@im.bot", "token", 1)

    made = inbound.message(envelope, [inbound.text_item("hi", 1)], group_id="")

    sample = vectors["sample_getupdates_response"]["msgs"][0]
    assert made.keys() == sample.keys()
    assert made["item_list"][0].keys() == sample["item_list"][0].keys()


@pytest.mark.parametrize("kind", ["image", "voice", "file", "video"])
def test_an_attachment_has_the_captured_members_but_for_thumbnails(vectors: dict[str, Any], kind: Any) -> None:
    attachment = Attachment(kind=kind, data=b"x", name="a.pdf", transcript="words")

    made = inbound.media_item(attachment, FILED, 1)

    sample = sample_item(vectors, kind)
    assert made["type"] == sample["type"]
    expected = {name for name in sample[f"{kind}_item"] if "thumb" not in name}
    assert made[f"{kind}_item"].keys() == expected
    assert sample[f"{kind}_item"]["media"].keys() <= made[f"{kind}_item"]["media"].keys()


def test_a_voice_without_transcript_has_no_text_member() -> None:
    item = inbound.media_item(Attachment(kind="voice"), FILED, 1)

    assert "text" not in item["voice_item"]


def test_key_and_address_can_be_left_out() -> None:
    bare = Attachment(kind="image", key_form="absent", address="absent")

    body = inbound.media_item(bare, FILED, 1)["image_item"]

    assert body["media"] == {}
    assert "aeskey" not in body


def test_a_quote_comes_full_or_as_an_id_alone() -> None:
    partial = {"start": "a", "end": "b", "startindex": 0, "endindex": 0}

    full = inbound.quote_reference(QuoteOf(message_id="9007199254740993"), "before")
    bare = inbound.quote_reference(QuoteOf(message_id="9007199254740993", form="id_only", partial=partial), "before")

    assert full["svr_id"] == 9007199254740993
    assert full["message_item"]["text_item"] == {"text": "before"}
    assert bare == {"svr_id": 9007199254740993, "partial_text": partial}


def test_id_only_strips_a_full_quote_and_leaves_the_rest() -> None:
    item = {"type": 1, "ref_msg": {"svr_id": 5, "title": "t", "message_item": {}}}

    assert inbound.id_only(item) == {"type": 1, "ref_msg": {"svr_id": 5}}
    assert inbound.id_only({"type": 1}) == {"type": 1}
