from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.to_supervisor import Boundary
from supervisor.core import graphemes
from supervisor.core.bubbles import SILENCE_S, Composer, Size, fits, json_bytes, mended, numbered, split, utf16_units
from supervisor.core.policy import InterimText

WECHAT = Size(units=2000, json_bytes=14 * 1024)
ANSWER_CHARS = 200_000

letters = st.sampled_from(
    ["a", "b ", " ", "\n", "\n\n", "。", ". ", "测", "👨‍👩‍👧", "🇩🇪", "e\u0301", '"', "\\", "\t", "\x01", "🦀"]
)
texts = st.lists(letters, max_size=120).map("".join)


def without_breaks(text: str) -> str:
    return text.replace("\n", "").replace("\r", "")


def unnumbered(bubble: str) -> str:
    return bubble.split("] ", 1)[1] if bubble.startswith("[") else bubble


def composer(size: Size = WECHAT, interim: InterimText = InterimText.JOIN, longest: int = ANSWER_CHARS) -> Composer:
    return Composer(size, max_answer_chars=longest, interim=interim)


def cut_places(text: str, bubbles: Iterable[str]) -> list[int]:
    """Where each bubble ends in the text."""
    places, at = [], 0
    for bubble in bubbles:
        at = text.index(bubble, at) + len(bubble)
        places.append(at)
    return places


# --- cutting


@given(text=st.text(), limit=st.integers(min_value=2, max_value=40))
@settings(deadline=None)
def test_splitting_a_reply_loses_only_line_breaks_and_respects_the_limit(text: str, limit: int) -> None:
    bubbles = split(text, size=Size(limit, 10_000))

    assert all(0 < utf16_units(bubble) <= limit for bubble in bubbles)
    assert "".join("".join(bubbles).split()) == "".join(mended(text).split())


@given(text=texts, limit=st.integers(min_value=2, max_value=50))
@settings(deadline=None)
def test_between_two_bubbles_only_line_breaks_are_lost_or_blanks_that_nobody_could_see(text: str, limit: int) -> None:
    bubbles = split(text, size=Size(limit, 10_000))

    at = 0
    for bubble in bubbles:
        start = text.index(bubble, at)
        assert text[at:start].strip() == ""
        at = start + len(bubble)
    assert text[at:].strip() == ""


@given(
    text=texts.map(lambda text: text.replace(" ", "").replace("\t", "")), limit=st.integers(min_value=2, max_value=50)
)
@settings(deadline=None)
def test_a_bubble_loses_only_line_breaks_at_its_ends(text: str, limit: int) -> None:
    bubbles = split(text, size=Size(limit, 10_000))

    assert without_breaks("".join(bubbles)) == without_breaks(text)
    assert all(bubble == bubble.strip("\n") for bubble in bubbles)


@given(text=texts, limit=st.integers(min_value=6, max_value=120))
@settings(deadline=None)
def test_no_bubble_is_longer_than_the_limit_in_encoded_bytes(text: str, limit: int) -> None:
    bubbles = split(text, size=Size(2000, limit))

    assert all(json_bytes(bubble) <= limit for bubble in bubbles)


@given(text=texts, limit=st.integers(min_value=8, max_value=50))
@settings(deadline=None)
def test_no_cut_parts_a_character_that_fits_into_a_bubble(text: str, limit: int) -> None:
    """B-071"""
    bubbles = split(text, size=Size(limit, 10_000))

    ends = set(graphemes.boundaries(text))
    clusters = [text[a:b] for a, b in pairwise([0, *sorted(ends)])]
    if all(utf16_units(cluster) <= limit for cluster in clusters):
        assert all(place in ends for place in cut_places(text, bubbles))


def test_a_character_longer_than_a_bubble_is_cut_between_code_points() -> None:
    tower = "e" + "\u0301" * 30

    bubbles = split(tower, size=Size(10, 10_000))

    assert "".join(bubbles) == tower
    assert [utf16_units(bubble) for bubble in bubbles] == [10, 10, 10, 1]


@given(
    words=st.lists(st.sampled_from(["kurz", "你好，世界。", "plain words here", "\n", "end.\n\n"]), max_size=20),
    urls=st.lists(st.integers(min_value=1, max_value=35), max_size=8),
    limit=st.integers(min_value=30, max_value=80),
)
@settings(deadline=None)
def test_a_url_that_fits_into_a_bubble_is_never_cut(words: list[str], urls: list[int], limit: int) -> None:
    text, keep = "", []
    for index, word in enumerate(words):
        text += word + " "
        if index < len(urls):
            url = "http://" + "x" * urls[index]
            keep.append((len(text), len(text) + len(url)))
            text += url + "，"

    bubbles = split(text, size=Size(limit, 10_000), keep=keep)

    for place in cut_places(text, bubbles):
        inside = [end - start for start, end in keep if start < place < end]
        assert all(length > limit for length in inside)


def test_a_code_block_is_cut_between_its_lines() -> None:
    """B-103"""
    lines = [f"    value_{n} = compute({n}, deep=True)" for n in range(40)]
    text, keep = "", []
    for line in lines:
        keep.append((len(text), len(text) + len(line)))
        text += line + "\n"

    bubbles = split(text, size=Size(300, 10_000), keep=keep)

    assert [line for bubble in bubbles for line in bubble.split("\n")] == lines


def test_a_paragraph_is_a_better_end_than_a_sentence_and_a_sentence_better_than_a_word() -> None:
    size = Size(20, 10_000)

    assert split("one two thr\n\nfour five six.", size=size)[0] == "one two thr"
    assert split("one two three. four five", size=size)[0] == "one two three."
    assert split("one two three four five", size=size)[0] == "one two three four "
    assert (
        split("一二三四五六七八九十一二三四五六七八九十一", size=size)[0] == "一二三四五六七八九十一二三四五六七八九十"
    )


@pytest.mark.parametrize(("length", "sizes"), [(1999, [1999]), (2000, [2000]), (2001, [2000, 1])])
def test_the_limit_itself_still_fits(length: int, sizes: list[int]) -> None:
    """B-008"""
    assert [len(bubble) for bubble in split("测" * length, size=WECHAT)] == sizes
    assert [len(bubble) for bubble in split("\n" + "测" * length + "\n\n", size=WECHAT)] == sizes


def test_halves_of_surrogate_pairs_are_joined_or_replaced() -> None:
    """B-071"""
    assert split("ok \ud83d done", size=WECHAT) == ("ok \ufffd done",)
    assert split("\ud83c\udfa9", size=WECHAT) == ("🎩",)


def test_headings_a_table_and_a_list_become_few_bubbles() -> None:
    """B-030"""
    text = "".join(f"{n}. Eine Zeile einer langen Liste, die niemand einzeln lesen will\n" for n in range(300))

    bubbles = split(text, size=WECHAT)

    assert len(bubbles) <= -(-len(text) // 2000) + 1


# --- numbering


def test_a_part_of_several_bubbles_is_numbered_inside_the_limit() -> None:
    bubbles = numbered("测" * 5000, size=WECHAT)

    assert [bubble[:6] for bubble in bubbles] == ["[1/3] ", "[2/3] ", "[3/3] "]
    assert all(fits(bubble, WECHAT) for bubble in bubbles)
    assert "".join(unnumbered(bubble) for bubble in bubbles) == "测" * 5000


def test_one_bubble_alone_is_not_numbered() -> None:
    assert numbered("测" * 2000, size=WECHAT) == ("测" * 2000,)


@given(text=texts, limit=st.integers(min_value=24, max_value=60))
@settings(deadline=None)
def test_numbers_count_to_the_end_and_stay_inside_the_limit(text: str, limit: int) -> None:
    bubbles = numbered(text, size=Size(limit, 10_000))

    assert all(utf16_units(bubble) <= limit for bubble in bubbles)
    assert "".join("".join(map(unnumbered, bubbles)).split()) == "".join(text.split())
    if len(bubbles) > 1:
        assert [b.split("]")[0] for b in bubbles] == [f"[{n}/{len(bubbles)}" for n in range(1, len(bubbles) + 1)]


# --- what leaves when


def test_the_first_bubble_leaves_at_the_end_of_a_paragraph() -> None:
    turn = composer()

    turn.piece("第一句。", Boundary.SENTENCE, (), now=0.0)
    assert turn.leaving(8, now=0.1) == ()
    turn.piece("第二句。\n\n", Boundary.PARAGRAPH, (), now=0.2)

    assert turn.leaving(8, now=0.2) == ("第一句。第二句。",)


def test_the_first_bubble_leaves_after_two_silent_seconds() -> None:
    turn = composer()
    turn.piece("一句话", Boundary.NONE, (), now=10.0)

    assert turn.wake_at() == 10.0 + SILENCE_S
    assert turn.leaving(8, now=11.9) == ()
    assert turn.leaving(8, now=12.0) == ("一句话",)
    assert turn.wake_at() is None


def test_later_bubbles_leave_only_once_they_have_grown() -> None:
    turn = composer()
    paragraph = "x" * 150 + "\n\n"
    sizes = []

    for n in range(60):
        turn.piece(paragraph, Boundary.PARAGRAPH, (), now=float(n))
        sizes += [len(bubble) for bubble in turn.leaving(99, now=float(n))]

    assert sizes[0] == 150
    assert all(size >= min(400 * n, 1600) for n, size in enumerate(sizes))
    assert all(size <= 2000 for size in sizes)


def test_silence_does_not_let_a_bubble_go_before_it_has_grown() -> None:
    turn = composer()
    turn.piece("first\n\n", Boundary.PARAGRAPH, (), now=0.0)
    turn.leaving(8, now=0.0)

    turn.piece("x" * 399, Boundary.NONE, (), now=1.0)
    assert turn.wake_at() is None
    assert turn.leaving(8, now=60.0) == ()
    turn.piece("y", Boundary.NONE, (), now=61.0)

    assert turn.leaving(8, now=63.0) == ("x" * 399 + "y",)


def test_short_text_right_before_a_tool_joins_the_text_behind_it() -> None:
    turn = composer()
    turn.piece("Let me look.", Boundary.TOOL, (), now=0.0)
    turn.tool_started(now=0.1)

    assert turn.wake_at() is None
    assert turn.leaving(8, now=30.0) == ()
    turn.piece("It is there.\n\n", Boundary.PARAGRAPH, (), now=31.0)

    assert turn.leaving(8, now=31.0) == ("Let me look.\n\nIt is there.",)


def test_short_text_before_a_tool_can_be_dropped_instead() -> None:
    turn = composer(interim=InterimText.DROP)
    turn.piece("Let me look.", Boundary.TOOL, (), now=0.0)

    assert not turn.has_text
    turn.piece("It is there.", Boundary.END, (), now=31.0)

    assert turn.rest(8) == ("It is there.",)


def test_a_longer_text_leaves_at_once_when_a_tool_starts() -> None:
    turn = composer()
    turn.piece("x" * 200, Boundary.NONE, (), now=0.0)
    turn.tool_started(now=0.1)

    assert turn.leaving(8, now=0.1) == ("x" * 200,)


def test_a_hundred_tool_calls_with_short_comments_make_one_bubble() -> None:
    """B-017"""
    turn = composer()
    sent: list[str] = []
    for n in range(120):
        turn.piece(f"Step {n}.", Boundary.TOOL, (), now=n * 5.0)
        sent += turn.leaving(8, now=n * 5.0 + 4.0)
    turn.piece("All done.", Boundary.END, (), now=700.0)
    sent += turn.rest(8)

    assert len(sent) <= 5
    assert sent[-1].endswith("All done.")


def test_text_between_tools_is_said_once_and_in_order() -> None:
    turn = composer()
    sent: list[str] = []
    for n, text in enumerate(["A" * 300, "B" * 500, "C" * 100]):
        turn.piece(text, Boundary.TOOL, (), now=float(n))
        sent += turn.leaving(8, now=float(n))
    sent += turn.rest(8)

    assert without_breaks("".join(sent)) == "A" * 300 + "B" * 500 + "C" * 100


def test_one_long_paragraph_is_numbered_while_the_turn_goes_on() -> None:
    turn = composer()
    turn.piece("测" * 5000 + "\n\n", Boundary.PARAGRAPH, (), now=0.0)

    bubbles = turn.leaving(8, now=0.0)

    assert [bubble[:6] for bubble in bubbles] == ["[1/3] ", "[2/3] ", "[3/3] "]


def test_without_room_text_is_held_and_leaves_unnumbered_when_it_will_not_all_fit() -> None:
    turn = composer()
    turn.piece("测" * 5000, Boundary.PARAGRAPH, (), now=0.0)
    assert turn.leaving(0, now=0.0) == ()

    first = turn.leaving(2, now=0.0)
    rest = turn.rest(0)

    assert len(first) == 2
    assert not any(bubble.startswith("[") for bubble in (*first, *rest))
    assert "".join((*first, *rest)) == "测" * 5000


def test_every_bubble_of_a_cut_text_has_room_for_one_more_line() -> None:
    turn = composer()
    turn.piece("测" * 25_000, Boundary.END, (), now=0.0)

    bubbles = turn.rest(10)

    assert len(bubbles) == 13
    assert all(utf16_units(bubble) <= 2000 - 48 for bubble in bubbles)


def test_an_answer_ends_at_its_longest() -> None:
    turn = composer(longest=100)
    turn.piece("x" * 60, Boundary.NONE, (), now=0.0)
    assert not turn.cut_off
    turn.piece("y" * 39 + "👨‍👩‍👧", Boundary.NONE, (), now=0.0)
    turn.piece("z", Boundary.NONE, (), now=0.0)

    assert turn.cut_off
    assert turn.rest(8) == ("x" * 60 + "y" * 39,)


def test_pieces_without_their_line_breaks_are_joined_by_their_boundaries() -> None:
    turn = composer()
    turn.piece("Title", Boundary.LINE, (), now=0.0)
    turn.piece("text", Boundary.PARAGRAPH, (), now=0.0)
    turn.piece("more", Boundary.NONE, (), now=0.0)
    turn.piece(" of it", Boundary.END, (), now=0.0)

    assert turn.rest(8) == ("Title\ntext\n\nmore of it",)


def test_silence_in_the_middle_of_a_url_lets_only_the_text_before_it_go() -> None:
    turn = composer()
    turn.piece("See https://exam", Boundary.NONE, ((4, 16),), now=0.0)

    assert turn.leaving(8, now=2.0) == ("See ",)
    turn.piece("ple.com", Boundary.END, (), now=3.0)

    assert turn.rest(8) == ("https://example.com",)


def test_a_question_is_preceded_by_what_led_to_it() -> None:
    turn = composer()
    turn.piece("Two ways are open.", Boundary.TOOL, (), now=0.0)

    assert turn.before_question(0) == ()
    assert turn.before_question(3) == ("Two ways are open.",)


def test_nothing_but_blanks_is_no_text() -> None:
    turn = composer()
    turn.piece(" \n\n", Boundary.PARAGRAPH, (), now=0.0)

    assert not turn.has_text
    assert turn.leaving(8, now=5.0) == ()
    assert turn.rest(8) == ()


@given(
    pieces=st.lists(
        st.tuples(
            st.lists(letters.filter(lambda s: s.strip(" \t")), min_size=1, max_size=30).map("".join),
            st.sampled_from(Boundary),
            st.lists(st.tuples(st.integers(-5, 40), st.integers(-5, 40)), max_size=3),
            st.integers(min_value=0, max_value=3),
            st.floats(min_value=0, max_value=3),
        ),
        max_size=25,
    ),
    limit=st.integers(min_value=8, max_value=400),
)
@settings(deadline=None)
def test_whatever_a_worker_streams_arrives_once_in_order_and_inside_the_limit(
    pieces: list[tuple[str, Boundary, list[tuple[int, int]], int, float]], limit: int
) -> None:
    size = Size(limit, 6 * limit)
    turn = composer(size)
    sent: list[str] = []
    now = 0.0

    for text, boundary, keep, room, pause in pieces:
        turn.piece(text, boundary, keep, now)
        now += pause
        out = turn.leaving(room, now)
        assert len(out) <= room
        sent += out
    sent += turn.rest(3)

    assert all(fits(bubble, size) and bubble.strip() for bubble in sent)
    said = "".join("".join(text for text, *_ in pieces).split())
    assert "".join("".join(map(unnumbered, sent)).split()) == said
    assert turn.has_text == bool(said)


def test_a_long_answer_in_small_pieces_is_composed_in_a_moment() -> None:
    turn = composer()
    for n in range(20_000):
        turn.piece("ten chars ", Boundary.NONE, (), now=n / 1000)
        assert turn.leaving(0, now=n / 1000) == ()

    assert without_breaks("".join(turn.rest(0))) == "ten chars " * 20_000
