"""Markdown as agents stream it → plain chat text in pieces."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.to_supervisor import PIECE_BYTES, Boundary
from worker.core.reply import Piece, Reply

WORDS = st.sampled_from(["重点", "注意：", "a", "load_user_rows", "42", "“好”", "文档。", "Ünï", "😀", "한국어", "x2"])


def pieces_of(*deltas: str) -> tuple[Piece, ...]:
    reply = Reply()
    pieces: list[Piece] = []
    for delta in deltas:
        pieces += reply.write(delta)
    return (*pieces, *reply.finish())


def flat(*deltas: str) -> str:
    return "".join(piece.text for piece in pieces_of(*deltas))


def kept(pieces: tuple[Piece, ...]) -> list[str]:
    return [piece.text[start:end] for piece in pieces for start, end in piece.keep]


def survivors(text: str) -> str:
    return "".join(char for char in text if char.isalnum())


# --- tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("# Title #\ntext", "Title\ntext"),
        ("###### 标题\n", "标题\n"),
        ("Title\n=====\ntext", "Title\ntext"),
        ("a\n\n---\n\nb", "a\n\nb"),
        ("a\n* * *\nb", "a\n\nb"),
        ("* one\n  * two\n    - three\n1. n\n2) m", "• one\n  • two\n    • three\n1. n\n2) m"),
        ("- [ ] todo\n- [x] done", "☐ todo\n☑ done"),
        ("> quote **b**\n>> deeper\nafter", "quote b\ndeeper\nafter"),
        ("| a | b |\n|---|:-:|\n| **1** | 2 |\n| x\\|y | |\nafter", "a | b\n1 | 2\nx|y\nafter"),
        ("a | b\n--- | ---\n1 | 2\n\n| no", "a | b\n1 | 2\n\n| no"),
        ("one<br>two <b>three</b>", "one\ntwo three"),
        ("&lt;b&gt; AT&amp;T&nbsp;x &#20013; &#x1F600;", "<b> AT&T x 中 😀"),
        ("a\r\nb\r\n\r\n\r\n\r\nc", "a\nb\n\nc"),
        ("\n\n\nfirst", "first"),
    ],
)
def test_structure_stays_readable_without_its_marks(written: str, shown: str) -> None:
    assert flat(written) == shown


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("```py\n  x = __a__ ** 2\n\n\n\ty\n```\nz", "  x = __a__ ** 2\n\n\n\ty\nz"),
        ("~~~~\n```\n**a**\n~~~\n~~~~\nend", "```\n**a**\n~~~\nend"),
        ("```\nunclosed *a*\n", "unclosed *a*\n"),
        ("````md\n```\ninner\n```\n````", "```\ninner\n```\n"),
        ("- item\n  ```sh\n  ls *\n  ```\n- next", "• item\n  ls *\n• next"),
        ("> ```\n> code *x*\n> ```\nafter", "code *x*\nafter"),
        ("    indented *code*\n\n    more\n\ntext", "    indented *code*\n\n    more\n\ntext"),
        ("```inline```", "inline"),
        ("use ``a`b`` and `` ` ``", "use a`b and `"),
    ],
)
def test_code_keeps_its_body_and_loses_its_fence(written: str, shown: str) -> None:
    """B-103"""
    assert flat(written) == shown


# --- streaming --------------------------------------------------------------------------------------------------


def test_a_paragraph_leaves_before_the_answer_is_done() -> None:
    reply = Reply()

    assert reply.write("The first") == ()
    assert reply.write(" line.\nsecond") == (Piece("The first line.\n", Boundary.LINE),)
    assert reply.write(" line.\n\nthi") == (Piece("second line.\n\n", Boundary.PARAGRAPH),)
    assert reply.finish() == (Piece("thi", Boundary.END),)


def test_a_tool_lets_out_what_was_held_and_the_next_words_begin_a_line() -> None:
    reply = Reply()
    reply.write("Let me **look")

    assert reply.pause(Boundary.TOOL) == (Piece("Let me **look", Boundary.TOOL),)
    assert reply.pause(Boundary.TOOL) == ()
    assert reply.write("# Found\n") == (Piece("\nFound\n", Boundary.LINE),)
    assert reply.pause(Boundary.TOOL) == (Piece("", Boundary.TOOL),)
    assert reply.write("more\n") == (Piece("more\n", Boundary.LINE),)


def test_a_tool_in_the_middle_of_code_does_not_break_the_line() -> None:
    reply = Reply()
    texts = [*reply.write("```\nx = [1,"), *reply.pause(Boundary.TOOL), *reply.write(" 2]\n```\n*y*"), *reply.finish()]

    assert "".join(piece.text for piece in texts) == "x = [1, 2]\ny"


def test_another_message_is_another_paragraph_and_no_part_of_an_open_fence() -> None:
    reply = Reply()
    texts = [*reply.write("```\ncode"), *reply.pause(Boundary.PARAGRAPH), *reply.write("**prose**"), *reply.finish()]

    assert "".join(piece.text for piece in texts) == "code\n\nprose"


def test_a_very_long_line_is_passed_on_in_stretches() -> None:
    reply = Reply()
    sentence = "字 word " * 100_000

    early = reply.write(sentence)

    assert sum(len(piece.text) for piece in early) > 0.9 * len(sentence)
    assert "".join(piece.text for piece in (*early, *reply.finish())) == sentence


def test_half_characters_are_joined_or_replaced_and_nul_is_dropped() -> None:
    assert flat("ok \ud83d done") == "ok \ufffd done"
    assert flat("\ud83d", "\ude00 \udc00", "\0x", "\ud83d") == "😀 \ufffdx\ufffd"


def test_code_lines_and_addresses_are_marked_as_one() -> None:
    pieces = pieces_of("see [x](https://e.example/a) **or** https://e.example/b.\n```\na b\n  c\n```\n")

    assert kept(pieces) == ["https://e.example/a", "https://e.example/b", "a b", "  c"]


# --- properties -------------------------------------------------------------------------------------------------

FRAGMENTS = st.sampled_from(
    [
        "**",
        "*",
        "_",
        "__",
        "~~",
        "`",
        "```",
        "~~~",
        "\n",
        "\n\n",
        " ",
        "# ",
        "> ",
        "- ",
        "1. ",
        "|",
        "|-|",
        "[",
        "](",
        ")",
    ]
    + [
        "https://e.example/x_y",
        "&amp;",
        "<br>",
        "\\",
        "    ",
        "\r\n",
        "---",
        "===",
        "\t",
        "!",
        "\ud83d",
        "\ude00",
        "\0",
    ]
)
MARKDOWN = st.lists(FRAGMENTS | WORDS, max_size=60).map("".join)


@given(text=MARKDOWN, cuts=st.lists(st.integers(min_value=0, max_value=400), max_size=20))
@settings(max_examples=400, deadline=None)
def test_how_the_text_is_cut_into_deltas_never_shows(text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    deltas = [text[start:end] for start, end in zip(edges, edges[1:], strict=False)]

    assert flat(*deltas) == flat(text)
    assert kept(pieces_of(*deltas)) == kept(pieces_of(text))


@given(text=MARKDOWN)
@settings(max_examples=200, deadline=None)
def test_one_character_at_a_time_gives_the_same_text(text: str) -> None:
    assert flat(*text) == flat(text)


@given(text=st.text(alphabet="ab1重：“ *_#>-|[]!\n\\.é", max_size=300))
@settings(max_examples=400, deadline=None)
def test_every_letter_and_digit_survives_in_order(text: str) -> None:
    assert survivors(flat(text)) == survivors(text)


@given(
    words=st.lists(
        st.tuples(
            WORDS,
            st.sampled_from(
                ["{}", "**{}**", "*{}*", "`{}`", "~~{}~~", "[{}](https://e.example/p)", "# {}", "- {}", "> {}", "1. {}"]
                + ["| {} | {} |\n|---|---|", "**{}：**后文", "***{}***", "```\n{}\n```"]
            ),
        ),
        max_size=20,
    )
)
@settings(deadline=None)
def test_every_visible_word_survives_every_mark(words: list[tuple[str, str]]) -> None:
    """B-043"""
    shown = flat("\n".join(shape.format(word, word) for word, shape in words))

    position = 0
    for word, _ in words:
        position = shown.index(word, position) + len(word)


@given(lines=st.lists(st.text(alphabet="ab1 重*_~|#>[]()\t\\&;<", max_size=30), max_size=30))
@settings(deadline=None)
def test_code_lines_come_out_as_they_went_in(lines: list[str]) -> None:
    pieces = pieces_of("Look:\n```py\n" + "".join(line + "\n" for line in lines) + "```\nDone.")

    assert "".join(piece.text for piece in pieces).split("\n") == ["Look:", *lines, "Done."]
    assert kept(pieces) == [line for line in lines if line]


@given(text=st.text(alphabet="a字😀 \n*`|", max_size=200), times=st.integers(min_value=1, max_value=400))
@settings(max_examples=60, deadline=None)
def test_every_piece_fits_its_message_and_keeps_only_what_it_holds(text: str, times: int) -> None:
    for piece in pieces_of(text * times):
        assert len(piece.text.encode()) <= PIECE_BYTES
        assert all(0 <= start < end <= len(piece.text) for start, end in piece.keep)
        assert "\n" not in "".join(piece.text[start:end] for start, end in piece.keep)


@pytest.mark.parametrize(
    "shape",
    [
        "The **brown** `fox` [x](https://a.b/c).\n",
        "a*b ",
        "*a **b ",
        "[](",
        "](",
        "[",
        "` `` ``` ",
        "https://a)))",
        "<a@",
    ]
    + ["|a", "_a __b_ ", ">", "\n", "**a** ", "*1 ", "&amp", "\\", "- ", "x", "字", "a\n**b\n", "|-|\n"],
)
def test_a_megabyte_of_anything_takes_linear_time(shape: str) -> None:
    text = shape * (1_000_000 // len(shape))
    started = time.perf_counter()

    flat(text)

    assert time.perf_counter() - started < 20.0  # about one second alone; quadratic would be minutes
