"""Cuts fall between what a reader sees as characters, in time that grows with the text and no faster."""

import time
import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.graphemes import Boundaries, boundaries, cut

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
GERMANY = "\U0001f1e9\U0001f1ea"
THUMB_DARK = "\U0001f44d\U0001f3ff"
HEART_RED = "\u2764\ufe0f"
KEYCAP = "1\ufe0f\u20e3"
WALES = "\U0001f3f4" + "".join(chr(0xE0000 + ord(c)) for c in "gbwls") + "\U000e007f"

# What cuts are asked about most: marks, joiners, selectors, flags, skin tones, Hangul in all its forms, CJK, breaks.
TRICKY = st.text(
    st.sampled_from(
        "ab 1\r\n中文，é\u0301\u0308\u200d\ufe0f\u20e3\u1100\u1161\u11a8\uac00\uac01\u0903\u0600\u0e33\x00\u2028"
        + FAMILY
        + GERMANY
        + THUMB_DARK
        + HEART_RED
    ),
    max_size=60,
)


def clusters(text: str) -> list[str]:
    ends = list(boundaries(text))
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    "whole",
    [FAMILY, GERMANY, THUMB_DARK, HEART_RED, KEYCAP, WALES, "e\u0301", "각", "\u1100\u1161\u11a8", "กำ", "\r\n", "का"],
)
def test_what_looks_like_one_character_is_one(whole: str) -> None:
    assert clusters(f"中{whole}b") == ["中", whole, "b"]


def test_flags_are_taken_two_by_two() -> None:
    assert clusters(GERMANY * 3 + "\U0001f1e9") == [GERMANY] * 3 + ["\U0001f1e9"]


def test_a_lone_surrogate_and_a_lone_mark_are_characters_too() -> None:
    assert clusters("\ud83d\u0301") == ["\ud83d\u0301"]
    assert clusters("\u0301a") == ["\u0301", "a"]


@given(text=TRICKY | st.text(max_size=60))
def test_asked_place_by_place_the_answer_is_the_same(text: str) -> None:
    places = Boundaries(text)

    assert [at for at in range(-1, len(text) + 2) if at in places] == list(boundaries(text))


@given(text=TRICKY | st.text(max_size=60))
def test_the_clusters_joined_are_the_text_and_none_is_empty(text: str) -> None:
    found = clusters(text)

    assert "".join(found) == text
    assert all(found)


@given(text=TRICKY)
def test_the_clusters_are_those_of_the_library(text: str) -> None:
    assert clusters(text) == regex.findall(r"\X", text)


@given(text=TRICKY, limit=st.integers(min_value=0, max_value=70))
def test_a_cut_is_the_last_boundary_that_fits(text: str, limit: int) -> None:
    at = cut(text, limit)

    fitting = [end for end in boundaries(text) if end <= limit]
    assert at <= limit or at == len(text)
    assert at == (len(text) if len(text) <= limit else (fitting[-1] if fitting else limit))


def test_a_character_longer_than_the_limit_is_cut_between_code_points() -> None:
    assert cut("e" + "\u0301" * 100, 40) == 40


def test_a_negative_limit_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="-1"):
        cut("a", -1)


@pytest.mark.parametrize(
    "unit",
    ["a", "中", "\u0301", "e\u0301", "\U0001f1e9", "\U0001f468\u200d", "\u200d", "\u0600", "\u1100", "\uac00", "\r\n"],
    ids=lambda unit: unicodedata.name(unit[0], "CONTROL").split()[0] + str(len(unit)),
)
def test_a_million_of_any_hostile_character_is_measured_in_seconds(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))

    started = time.process_time()
    ends = list(boundaries(text))

    assert ends[-1] == len(text)
    assert time.process_time() - started < 8.0
