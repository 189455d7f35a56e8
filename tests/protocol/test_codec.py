"""Frames and messages: whatever bytes come, they end as a message of the union or as a violation."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import FRAME_BYTES, HEADER, Codec, Unframer, encode, frame, from_worker, to_supervisor, to_worker
from protocol.ctl import Done, Failed, Reload, Stop, ctl_reply, ctl_request
from protocol.errors import ProtocolViolation
from protocol.spec import Preload

CODECS = {
    "from_worker": from_worker,
    "to_supervisor": to_supervisor,
    "to_worker": to_worker,
    "ctl_request": ctl_request,
    "ctl_reply": ctl_reply,
}


@given(peer=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_message_that_is_sent_is_the_message_that_arrives(peer: str) -> None:
    assert ctl_request.decode(encode(Stop(peer=peer))) == Stop(peer=peer)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(payload=st.binary(max_size=300))
def test_bytes_of_any_kind_are_a_message_or_a_violation(codec: Codec[Any], payload: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        codec.decode(payload)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_message_of_another_union_is_a_violation(codec: Codec[Any]) -> None:
    with pytest.raises(ProtocolViolation):
        codec.decode(encode(Preload(host="echo")))


def test_a_message_nested_beyond_reason_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation):
        ctl_request.decode(b"\x91" * 100_000)


def test_a_wrong_type_inside_a_known_message_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation):
        ctl_request.decode(msgspec.msgpack.encode({"type": "Stop", "peer": 7}))


def test_a_message_longer_than_a_frame_is_neither_sent_nor_read() -> None:
    with pytest.raises(ProtocolViolation, match="Done of "):
        encode(Done(lines=["x" * FRAME_BYTES]))
    with pytest.raises(ProtocolViolation, match="message of "):
        ctl_reply.decode(bytes(FRAME_BYTES + 1))


def test_a_message_as_long_as_a_frame_is_sent_and_read() -> None:
    overhead = len(encode(Failed(code=1, line="x" * 100_000))) - 100_000
    longest = Failed(code=1, line="x" * (FRAME_BYTES - overhead))

    payload = encode(longest)

    assert len(payload) == FRAME_BYTES
    assert ctl_reply.decode(payload) == longest


@given(payloads=st.lists(st.binary(max_size=50)), cuts=st.lists(st.integers(min_value=1, max_value=20), min_size=1))
def test_a_stream_yields_the_same_payloads_however_it_is_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    unframer = Unframer()
    heard: list[bytes] = []

    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        heard += unframer.feed(stream[at : at + size])
        at, turn = at + size, turn + 1

    assert heard == payloads


def test_a_frame_that_announces_too_much_is_a_violation_before_its_bytes_have_come() -> None:
    with pytest.raises(ProtocolViolation, match=f"frame of {FRAME_BYTES + 1} bytes"):
        Unframer().feed(HEADER.pack(FRAME_BYTES + 1))


def test_the_longest_frame_is_read() -> None:
    payload = bytes(FRAME_BYTES)

    assert Unframer().feed(frame(payload)) == [payload]


def test_requests_without_fields_are_told_apart() -> None:
    assert ctl_request.decode(encode(Reload())) == Reload()
