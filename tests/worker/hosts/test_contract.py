"""The rules of worker/hosts/base.py, for every host of the table."""

from dataclasses import replace
from pathlib import Path

import pytest

from protocol.content import Prompt
from protocol.ids import DialogId
from protocol.to_supervisor import OpenedHow, TurnOutcome
from protocol.to_worker import Dismissed
from tests.fakes.hosts import end_of, events_of, opened, run, spec_for, words
from worker import hosts
from worker.hosts.base import AgentEvent, TextDelta, TurnEnded

every_host = pytest.mark.parametrize("host", sorted(hosts.HOSTS))


@every_host
def test_a_turn_ends_exactly_once_and_last(host: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(host, spec_for(host, tmp_path)) as session:
            for text in ("hello", "你好\n世界 😀", "/new", "x" * 20_000):
                events = await events_of(session, text)

                assert end_of(events) == TurnEnded(TurnOutcome.COMPLETED)
                assert text.split("\n")[0] in words(events)
                assert all(event.text for event in events if isinstance(event, TextDelta))

    run(scenario())


@every_host
def test_a_second_turn_while_one_runs_raises(host: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(host, spec_for(host, tmp_path)) as session:
            first = session.turn(Prompt(text="hello"))
            with pytest.raises(RuntimeError):
                session.turn(Prompt(text="again"))

            events = [event async for event in first]

            end_of(events)
            end_of(await events_of(session, "next"))

    run(scenario())


@every_host
def test_an_abort_before_the_first_byte_ends_the_turn_without_a_word(host: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(host, spec_for(host, tmp_path)) as session:
            turn = session.turn(Prompt(text="hello"))
            await session.abort()
            await session.abort()

            events = [event async for event in turn]

            assert end_of(events).outcome is TurnOutcome.ABORTED
            assert words(events) == ""
            assert "hello" in words(await events_of(session, "hello")), "the next turn is whole"

    run(scenario())


@every_host
def test_an_abort_in_the_middle_of_text_ends_the_turn(host: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(host, spec_for(host, tmp_path)) as session:
            events: list[AgentEvent] = []
            async for event in session.turn(Prompt(text="SLOW 1000\n" + "y" * 50_000)):
                events.append(event)
                await session.abort()

            assert end_of(events).outcome is TurnOutcome.ABORTED
            assert len(words(events)) < 50_000

    run(scenario())


@every_host
def test_an_abort_after_the_end_or_before_any_turn_does_nothing(host: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(host, spec_for(host, tmp_path)) as session:
            await session.abort()
            end_of(await events_of(session, "one"))
            await session.abort()

            events = await events_of(session, "two")

            assert end_of(events).outcome is TurnOutcome.COMPLETED
            assert "two" in words(events)

    run(scenario())


@every_host
def test_a_session_is_resumed_by_its_id(host: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = spec_for(host, tmp_path)
        first = hosts.make(host)
        made = await first.open(spec)
        await first.close()
        second = hosts.make(host)
        try:
            again = await second.open(replace(spec, session_id=made.session_id))

            assert made.how is OpenedHow.NEW
            assert (again.session_id, again.how) == (made.session_id, OpenedHow.RESUMED)
        finally:
            await second.close()

    run(scenario())


@every_host
def test_an_answer_nobody_waits_for_is_told_so(host: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(host, spec_for(host, tmp_path)) as session:
            assert await session.answer(DialogId("d1"), Dismissed()) is False

    run(scenario())


@every_host
def test_closing_is_idempotent_and_works_before_open(host: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        session = hosts.make(host)
        await session.close()
        await session.close()

    run(scenario())


@every_host
def test_notes_of_the_bridge_are_never_in_the_answer(host: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(host, spec_for(host, tmp_path)) as session:
            events = await events_of(session, "hello", notes=("[note: late]",), files=("/srv/media/a.txt",))

            assert "note" not in words(events) and "/srv" not in words(events)

    run(scenario())
