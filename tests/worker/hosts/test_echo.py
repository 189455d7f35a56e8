"""The host without an agent."""

from dataclasses import replace
from pathlib import Path

from protocol.ids import SessionId
from protocol.to_supervisor import OpenedHow
from tests.fakes.hosts import events_of, opened, run, spec_in, words
from worker.hosts.base import Opened, TextDelta, ToolControl
from worker.hosts.echo import EchoSession


def test_it_answers_with_the_very_words_of_the_peer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("echo", spec_in(tmp_path)) as session:
            for text in ("hello", "", "line\nline", "\0 \ud83d 😀", "z" * 100_000):
                assert words(await events_of(session, text)) == text

    run(scenario())


def test_a_short_text_is_a_single_delta(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("echo", spec_in(tmp_path)) as session:
            events = await events_of(session, "hello")

            assert events[:-1] == [TextDelta("hello")]

    run(scenario())


def test_it_takes_any_session_and_any_list_of_tools(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = EchoSession()
        spec = replace(spec_in(tmp_path), session_id=SessionId("kept"), tools=frozenset({"read"}))

        assert await session.open(spec) == Opened(SessionId("kept"), OpenedHow.RESUMED)
        assert session.traits.tool_control is ToolControl.EXACT

    run(scenario())


def test_two_new_sessions_have_two_ids(tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = spec_in(tmp_path)

        assert (await EchoSession().open(spec)).session_id != (await EchoSession().open(spec)).session_id

    run(scenario())
