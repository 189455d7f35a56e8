"""Lines of JSON from an agent program, however its bytes arrive."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from worker.hosts.lines import lines, mended, read_object


def cut(chunks: list[bytes], limit_bytes: int = 1000) -> tuple[list[bytes], int]:
    """The lines, and how many were too long."""

    async def scenario() -> tuple[list[bytes], int]:
        reader = asyncio.StreamReader()
        for chunk in chunks:
            reader.feed_data(chunk)
        reader.feed_eof()
        dropped: list[None] = []
        found = [line async for line in lines(reader, lambda: dropped.append(None), limit_bytes=limit_bytes)]
        return found, len(dropped)

    return asyncio.run(scenario())


@given(st.lists(st.binary(max_size=30)), st.integers(1, 7))
def test_lines_are_what_stands_between_two_lf_wherever_the_bytes_are_torn(whole: list[bytes], size: int) -> None:
    data = b"\n".join(whole)

    found, dropped = cut([data[at : at + size] for at in range(0, len(data), size)])

    assert found == [line for line in data.split(b"\n") if line]
    assert dropped == 0


@given(st.lists(st.integers(0, 40), max_size=12))
def test_a_line_over_the_limit_costs_itself_and_no_other(sizes: list[int]) -> None:
    data = b"".join(b"x" * size + b"\n" for size in sizes)

    found, dropped = cut([data], limit_bytes=20)

    assert [len(line) for line in found] == [size for size in sizes if 0 < size <= 20]
    assert dropped == sum(size > 20 for size in sizes)


def test_a_line_of_megabytes_is_dropped_while_it_arrives_and_the_next_is_read() -> None:
    found, dropped = cut([b"y" * 3_000_000, b"y" * 3_000_000, b"\nz"])

    assert (found, dropped) == ([b"z"], 1)


def test_separators_of_unicode_and_carriage_returns_end_no_line() -> None:
    said = '{"a":"b\u2028c\u2029d\u0085e\\r"}\r'.encode()

    found, _ = cut([said + b"\n"])

    assert found == [said]
    assert read_object(found[0]) == {"a": "b\u2028c\u2029d\u0085e\r"}


def test_only_objects_are_read() -> None:
    for line in (b"", b"junk", b"[1]", b"7", b"null", b'"a"', b"{", b'{"a":1', b"[" * 100_000, b'{"a":"\xff"}'):
        assert read_object(line) is None


def test_half_a_surrogate_pair_costs_one_character() -> None:
    record = read_object(rb'{"a":["x\ud83d","\ud83d\ude00"],"\udc00":{"b":"\udfff"}}')

    assert record == {"a": ["x\ufffd", "😀"], "\ufffd": {"b": "\ufffd"}}
    assert mended(7) == 7
