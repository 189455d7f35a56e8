"""supervisor/core/metering.py: what an answer costs in each dialect, and a key kept out of bytes in any pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.metering import IMAGE_TOKENS, Meter, Scrubber, Usage, estimate, with_usage


def events(*values: object) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


STREAMS = {
    "chat": events({"choices": [{"delta": {"content": "a"}}]}, {"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 7}})
    + b"data: [DONE]\n\n",
    "chat, a running count": events(
        {"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 1}},
        {"choices": [], "usage": None},
        {"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 7}},
    ),
    "responses": events(
        {"type": "response.created", "response": {"usage": None}},
        {"type": "response.completed", "response": {"usage": {"input_tokens": 90, "output_tokens": 7}}},
    ),
    "messages": events(
        {"type": "message_start", "message": {"usage": {"input_tokens": 60, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 10, "output_tokens": 1}}},
        {"type": "content_block_delta", "delta": {"text": "x"}},
        {"type": "message_delta", "usage": {"output_tokens": 7}},
    ),
    "google": events(
        {"usageMetadata": {"promptTokenCount": 90, "candidatesTokenCount": 1}},
        {"usageMetadata": {"promptTokenCount": 90, "candidatesTokenCount": 4, "thoughtsTokenCount": 3}},
    ),
    "google with line ends of its own": events({"usageMetadata": {"promptTokenCount": 90, "candidatesTokenCount": 7}}).replace(b"\n", b"\r\n"),
}  # fmt: skip
WHOLES = {
    "chat": {"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 7}},
    "responses": {"output": [], "usage": {"input_tokens": 90, "output_tokens": 7}},
    "messages": {"content": [], "usage": {"input_tokens": 80, "cache_read_input_tokens": 10, "output_tokens": 7}},
    "google": {"usageMetadata": {"promptTokenCount": 90, "candidatesTokenCount": 7}},
    "google, a list": [{"candidates": []}, {"usageMetadata": {"promptTokenCount": 90, "candidatesTokenCount": 7}}],
}


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_a_streams_usage_is_read_whatever_pieces_it_comes_in(name: str, cuts: list[int]) -> None:
    stream, meter = STREAMS[name], Meter(streamed=True)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    for start, end in zip(places, places[1:], strict=False):
        meter.feed(stream[start:end])

    assert meter.settle(estimated_input=1, whole=True) == Usage(90, 7)


@pytest.mark.parametrize("name", WHOLES)
def test_the_usage_of_an_answer_in_one_piece_is_read(name: str) -> None:
    meter = Meter(streamed=False)

    meter.feed(json.dumps(WHOLES[name], indent=1).encode())

    assert meter.settle(estimated_input=1, whole=True) == Usage(90, 7)


def test_who_hangs_up_before_the_count_pays_an_estimate() -> None:
    meter = Meter(streamed=True)
    for _ in range(50):
        meter.feed(events({"choices": [{"delta": {"content": "word"}}]}))

    assert meter.settle(estimated_input=300, whole=False) == Usage(300, 50)


def test_who_hangs_up_between_two_counts_pays_for_what_came_since() -> None:
    meter = Meter(streamed=True)
    meter.feed(events({"type": "message_start", "message": {"usage": {"input_tokens": 90, "output_tokens": 1}}}))
    for _ in range(40):
        meter.feed(events({"type": "content_block_delta", "delta": {"text": "x"}}))

    assert meter.settle(estimated_input=1, whole=False) == Usage(90, 41)


def test_a_server_that_never_counts_costs_an_estimate_too() -> None:
    meter = Meter(streamed=False)
    meter.feed(b'{"choices": [{"message": {"content": "' + b"x" * 400 + b'"}}]}')

    assert meter.settle(estimated_input=20, whole=True) == Usage(20, 110)


def test_what_the_model_writes_about_usage_is_not_the_usage() -> None:
    meter = Meter(streamed=True)
    text = '{"usage": {"prompt_tokens": 0, "completion_tokens": 0}}'
    meter.feed(events({"choices": [{"delta": {"content": text}, "usage": {"prompt_tokens": 0}}]}))

    assert meter.settle(estimated_input=300, whole=True) == Usage(300, 1)


@given(chunks=st.lists(st.binary(max_size=200), max_size=10), streamed=st.booleans(), whole=st.booleans())
def test_no_bytes_upset_the_meter_or_cost_less_than_nothing(chunks: list[bytes], streamed: bool, whole: bool) -> None:
    meter = Meter(streamed=streamed)
    for chunk in chunks:
        meter.feed(chunk)

    usage = meter.settle(estimated_input=5, whole=whole)

    assert usage.input_tokens >= 0 and usage.output_tokens >= 0


def test_negative_and_odd_counts_are_no_refund() -> None:
    meter = Meter(streamed=False)
    meter.feed(b'{"usage": {"prompt_tokens": -100000, "completion_tokens": true}}')

    assert meter.settle(estimated_input=5, whole=True).tokens >= 0


def test_an_event_without_end_is_passed_by_and_not_kept() -> None:
    meter = Meter(streamed=True)
    for _ in range(40):
        meter.feed(b"data: " + b"x" * 1_000_000)
    assert len(meter._buffer) <= 8 * 1024 * 1024
    meter.feed(b"\n\n" + STREAMS["chat"])

    assert meter.settle(estimated_input=1, whole=True) == Usage(90, 7)


def test_a_request_is_estimated_by_its_texts_and_pictures() -> None:
    words = {"messages": [{"role": "user", "content": "four " * 400}]}
    picture = {
        "messages": [{"role": "user", "content": [{"image_url": {"url": "data:image/png;base64," + "A" * 500_000}}]}]
    }

    assert 500 <= estimate(words) <= 520
    assert IMAGE_TOKENS <= estimate(picture) <= IMAGE_TOKENS + 20


def test_a_stream_is_asked_for_its_usage_whatever_the_worker_wished() -> None:
    for options in ({}, {"stream_options": {"include_usage": False, "x": 1}}, {"stream_options": None}):
        changed = with_usage({"model": "m", "stream": True, **options})
        assert changed is not None
        assert json.loads(changed)["stream_options"]["include_usage"] is True
    assert with_usage({"stream": True, "stream_options": {"include_usage": True}}) is None
    assert with_usage({"stream": False}) is None


@given(
    before=st.text("ks-12 ", max_size=30), after=st.text("ks-12 ", max_size=30), cuts=st.lists(st.integers(0, 80), max_size=6)
)  # fmt: skip
def test_the_secret_never_passes_and_nothing_else_is_lost(before: str, after: str, cuts: list[int]) -> None:
    secret = b"sk-12k"
    text = before.encode() + secret + after.encode()
    scrubber, passed = Scrubber(secret), b""
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})

    for start, end in zip(places, places[1:], strict=False):
        passed += scrubber.feed(text[start:end])
    passed += scrubber.rest()

    assert passed == text.replace(secret, Scrubber.STANDS_IN)


def test_what_cannot_be_the_secret_is_passed_at_once() -> None:
    scrubber = Scrubber(b"sk-secret")

    assert scrubber.feed(b"data: hello\n\n") == b"data: hello\n\n"
    assert scrubber.feed(b"data: sk") == b"data: "
    assert scrubber.feed(b"y") == b"sky"
    assert Scrubber(b"").feed(b"x") == b"x"
