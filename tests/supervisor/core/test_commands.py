"""Exact on the first token, in any case; everything else that begins with a slash is the agent's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.commands import (
    COMMANDS,
    Command,
    Help,
    History,
    Media,
    New,
    Snippet,
    Status,
    Stop,
    parse,
)

SNIPPETS = {"standup": "Summarise what changed.", "Stop": "never reached", "周报": "写一份周报"}


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", New()),
        ("/stop", Stop()),
        ("/status", Status()),
        ("/help", Help()),
        ("/history", History(8)),
        ("/STOP", Stop()),
        ("/StOp", Stop()),
        ("  \n/stop \t", Stop()),
        ("\u3000/stop\u3000", Stop()),
        ("／stop", Stop()),
        ("／ｓｔｏｐ", Stop()),
        ("/ＮＥＷ", New()),
        ("/stop please", Stop()),
        ("/stop\nand then", Stop()),
        ("/new 换个话题", New()),
    ],
)
def test_a_command_is_its_first_token(text: str, command: Command) -> None:
    assert parse(text, Media.NONE, {}) == command


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "/",
        "／",
        "stop",
        "/usr/bin",
        "/new/foo",
        "/stop.",
        "/stop,",
        "/stopp",
        "/sto",
        "//stop",
        "/ stop",
        "please /stop",
        "\\stop",
        "⁄stop",
        "/compact",
        "/ſtop",
        "/stop\u200b",
        "/停",
    ],
)
def test_anything_else_goes_to_the_agent(text: str) -> None:
    assert parse(text, Media.NONE, {}) is None


@pytest.mark.parametrize("text", ["/new", "／stop", "/standup", "/history 3"])
def test_a_message_with_media_is_never_a_command(text: str) -> None:
    assert parse(text, Media.SOME, SNIPPETS) is None


@pytest.mark.parametrize(
    ("argument", "count"),
    [
        ("1", 1),
        ("15", 15),
        ("20", 20),
        ("21", 20),
        ("99999999999999999999", 20),
        ("9" * 5000, 20),
        ("0", 1),
        ("０", 1),
        ("１５", 15),
        ("٣", 3),
        ("-3", 8),
        ("1.5", 8),
        ("abc", 8),
        ("²", 8),
        ("5 6", 5),
        ("", 8),
    ],
)
def test_history_takes_a_number_up_to_twenty(argument: str, count: int) -> None:
    assert parse(f"/history {argument}", Media.NONE, {}) == History(count)


def test_a_snippet_stands_for_its_prompt_and_takes_what_follows() -> None:
    assert parse("/standup", Media.NONE, SNIPPETS) == Snippet("Summarise what changed.")
    assert parse(" ／STANDUP  since\n Monday ", Media.NONE, SNIPPETS) == Snippet(
        "Summarise what changed.\n\nsince\n Monday"
    )
    assert parse("/周报", Media.NONE, SNIPPETS) == Snippet("写一份周报")
    assert parse("/standups", Media.NONE, SNIPPETS) is None


def test_a_command_of_ours_wins_over_a_snippet_of_its_name() -> None:
    assert parse("/stop", Media.NONE, SNIPPETS) == Stop()


@given(text=st.text(st.characters(exclude_categories=())))
def test_no_text_breaks_the_reading(text: str) -> None:
    for prefix in ("", "/", "/history ", "/stop"):
        parse(prefix + text, Media.NONE, SNIPPETS)


@given(word=st.sampled_from(sorted(COMMANDS)), data=st.data())
def test_case_and_blanks_never_matter(word: str, data: st.DataObject) -> None:
    cased = "".join(data.draw(st.sampled_from([c.lower(), c.upper()])) for c in word)
    blanks = data.draw(st.text(st.sampled_from(" \t\n\u3000"), max_size=4))

    assert parse(blanks + cased + blanks, Media.NONE, {}) == parse(word, Media.NONE, {})
