"""Serving one peer: from the Grant to the last word, with a link that the test holds the other end of."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.codec import encode
from protocol.content import Access, Prompt
from protocol.errors import FailureKind
from protocol.ids import DialogId, SessionId, TurnId
from protocol.to_supervisor import (
    PIECE_BYTES,
    Asked,
    DialogKind,
    DialogPurpose,
    FileOffered,
    FromWorker,
    Leaving,
    OpenedHow,
    OpenFailed,
    PieceMade,
    SessionOpened,
    ToolUsed,
    TurnEnded,
    TurnOutcome,
    UsageSeen,
)
from protocol.to_worker import AbortTurn, AgentSpec, AnswerDialog, Confirmed, Grant, Leave, RunTurn, ToWorker
from tests.fakes.hosts import agent, run
from worker import hosts, turn
from worker.hosts.base import (
    AgentEvent,
    DialogAsked,
    HostTraits,
    Opened,
    SessionSpec,
    TextDelta,
)
from worker.hosts.base import TurnEnded as HostTurnEnded
from worker.turn import Pace, serve
from worker.workspace import Outbox


class FakeLink:
    """The far end: what the worker says is kept, what it shall hear is put in."""

    def __init__(self) -> None:
        self.said: list[FromWorker] = []
        self.paces: list[Pace] = []
        self._heard: asyncio.Queue[ToWorker | None] = asyncio.Queue()
        self._news = asyncio.Condition()
        self.open_gate = asyncio.Event()
        self.open_gate.set()

    async def receive(self) -> ToWorker | None:
        return await self._heard.get()

    async def send(self, message: FromWorker) -> None:
        await self.open_gate.wait()
        encode(message)  # whatever is said must be sayable
        self.said.append(message)
        async with self._news:
            self._news.notify_all()

    def pace(self, pace: Pace) -> None:
        self.paces.append(pace)

    def tell(self, message: ToWorker | None) -> None:
        self._heard.put_nowait(message)

    async def until(self, seen: Callable[[FromWorker], bool]) -> FromWorker:
        async with self._news:
            await self._news.wait_for(lambda: any(seen(message) for message in self.said))
        return next(message for message in self.said if seen(message))

    async def until_a(self, kind: type[Any]) -> Any:
        return await self.until(lambda message: isinstance(message, kind))

    async def end_of(self, turn_id: str) -> TurnEnded:
        ended = await self.until(lambda message: isinstance(message, TurnEnded) and message.turn_id == turn_id)
        assert isinstance(ended, TurnEnded)
        return ended

    def pieces(self, turn_id: str) -> list[PieceMade]:
        return [message for message in self.said if isinstance(message, PieceMade) and message.turn_id == turn_id]

    def text(self, turn_id: str) -> str:
        return "".join(piece.text for piece in self.pieces(turn_id))


def grant(folder: Path, host: str = "echo", *flags: str, grace_s: float = 5.0) -> Grant:
    for name in ("session", "workspace", "media"):
        (folder / name).mkdir(exist_ok=True)
    return Grant(
        session_dir=str(folder / "session"),
        workspace=str(folder / "workspace"),
        media_dir=str(folder / "media"),
        session_id=None,
        access=Access.WORKSPACE,
        agent=AgentSpec(host, command=agent(*flags)),
        contract="",
        tools=None,
        stop_grace_s=grace_s,
    )


@asynccontextmanager
async def serving(words: Grant) -> AsyncIterator[FakeLink]:
    """A worker that is told to leave at the end, and must."""
    link = FakeLink()
    worker = asyncio.create_task(serve(link, words))
    try:
        yield link
    finally:
        link.open_gate.set()
        link.tell(Leave())
        await worker


def asks(turn_id: str, text: str) -> RunTurn:
    return RunTurn(TurnId(turn_id), Prompt(text=text))


def test_a_session_is_opened_and_each_prompt_answered_and_ended_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(grant(tmp_path)) as link:
            opened = await link.until_a(SessionOpened)
            for number in ("1", "2"):
                link.tell(asks(number, "**你好**, peer"))
                await link.end_of(number)

            assert opened.how is OpenedHow.NEW and opened.agent_name == "echo"
            for number in ("1", "2"):
                assert link.text(number) == "你好, peer"
                assert [piece.number for piece in link.pieces(number)] == list(range(len(link.pieces(number))))
            assert link.said[-1] == TurnEnded(TurnId("2"), TurnOutcome.COMPLETED)
            assert sum(isinstance(message, TurnEnded) for message in link.said) == 2

    run(scenario())


def test_a_file_that_a_dead_worker_offered_comes_with_nobody_elses_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        given = grant(tmp_path)
        Outbox(tmp_path / "session").lay_bytes("a.txt", b"of a turn that failed")
        async with serving(given) as link:
            link.tell(asks("1", "hello"))
            await link.end_of("1")

            assert link.text("1") == "hello"
            assert not [message for message in link.said if isinstance(message, FileOffered)]

    run(scenario())


def test_a_file_that_is_offered_between_two_turns_comes_with_neither(tmp_path: Path) -> None:
    """Something that a turn left running in its worker."""

    async def scenario() -> None:
        outbox = Outbox(tmp_path / "session")
        async with serving(grant(tmp_path)) as link:
            link.tell(asks("1", "hello"))
            await link.end_of("1")
            late = outbox.lay_bytes("late.txt", b"too late")
            link.tell(asks("2", "again"))
            await link.end_of("2")

            assert not [message for message in link.said if isinstance(message, FileOffered)]
            told = outbox.answer(late)
            assert told is not None and not told.ok

    run(scenario())


def test_pulses_are_asked_for_while_opening_and_while_a_turn_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(grant(tmp_path)) as link:
            await link.until_a(SessionOpened)
            link.tell(asks("1", "hi"))
            await link.end_of("1")
            link.tell(asks("2", "hi"))
            await link.end_of("2")

        assert link.paces[:5] == [Pace.BUSY, Pace.IDLE, Pace.BUSY, Pace.IDLE, Pace.BUSY]

    run(scenario())


def test_the_end_of_the_link_ends_the_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        link = FakeLink()
        link.tell(None)
        await serve(link, grant(tmp_path))

    run(scenario())


def test_a_host_that_does_not_exist_or_open_is_told_with_its_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        for words, kind in (
            (grant(tmp_path, "nobody"), FailureKind.NOT_CONFIGURED),
            (grant(tmp_path, "acp", "--auth"), FailureKind.AUTH),
            (grant(tmp_path, "acp", "--die-before-hello"), FailureKind.AGENT_DIED),
        ):
            link = FakeLink()
            await serve(link, words)

            assert [type(message) for message in link.said] == [OpenFailed]
            assert isinstance(link.said[0], OpenFailed) and link.said[0].kind is kind

    run(scenario())


def test_a_worker_can_leave_while_its_agent_opens(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(grant(tmp_path, "acp", "--deaf")) as link:
            pass

        assert link.said == []

    run(scenario())


def test_an_abort_ends_its_turn_and_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(grant(tmp_path, "acp")) as link:
            await link.until_a(SessionOpened)
            link.tell(AbortTurn(TurnId("1")))
            link.tell(asks("1", "SAY one\\n\nSLOW 1000"))
            await link.until_a(PieceMade)
            link.tell(AbortTurn(TurnId("7")))
            link.tell(AbortTurn(TurnId("1")))
            link.tell(AbortTurn(TurnId("1")))
            ended = await link.end_of("1")
            link.tell(AbortTurn(TurnId("1")))
            link.tell(asks("2", "MODE"))
            again = await link.end_of("2")

            assert ended.outcome is TurnOutcome.ABORTED
            assert again.outcome is TurnOutcome.COMPLETED
            assert "cancels=1" in link.text("2")

    run(scenario())


def test_an_abort_is_heard_while_the_supervisor_does_not_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(grant(tmp_path, "acp")) as link:
            await link.until_a(SessionOpened)
            link.open_gate.clear()
            link.tell(asks("1", "FLOOD 2000\nWAIT"))
            link.tell(AbortTurn(TurnId("1")))
            link.open_gate.set()

            assert (await link.end_of("1")).outcome is TurnOutcome.ABORTED

    run(scenario())


def test_a_flood_ends_in_order_with_few_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(grant(tmp_path, "acp")) as link:
            await link.until_a(SessionOpened)
            link.tell(asks("1", "FLOOD 10000\nTOOLS 600"))
            ended = await link.end_of("1")

            assert ended.outcome is TurnOutcome.COMPLETED
            assert link.text("1").split() == [str(number) for number in range(1, 10_000, 2)]
            assert [piece.number for piece in link.pieces("1")] == list(range(len(link.pieces("1"))))
            assert all(len(piece.text.encode()) <= PIECE_BYTES for piece in link.pieces("1"))
            assert len({message.call_id for message in link.said if isinstance(message, ToolUsed)}) <= 500

    run(scenario())


@pytest.mark.parametrize(("script", "text"), [("DIE", ""), ("SAY half\nEXIT 0", "half")])
def test_an_agent_that_dies_fails_its_turn_and_the_worker_leaves(script: str, text: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        link = FakeLink()
        worker = asyncio.create_task(serve(link, grant(tmp_path, "acp")))
        await link.until_a(SessionOpened)
        link.tell(asks("1", script))
        await worker

        assert link.text("1") == text
        assert [type(message) for message in link.said[-2:]] == [Leaving, TurnEnded]
        ended = link.said[-1]
        assert isinstance(ended, TurnEnded) and ended.kind is FailureKind.AGENT_DIED
        assert "exit code" in ended.detail

    run(scenario())


def test_an_agent_that_dies_between_turns_makes_the_worker_leave(tmp_path: Path) -> None:
    async def scenario() -> None:
        link = FakeLink()
        worker = asyncio.create_task(serve(link, grant(tmp_path, "acp")))
        await link.until_a(SessionOpened)
        link.tell(asks("1", "SAY ok\nDIE_SOON"))
        await worker

        assert (await link.end_of("1")).outcome is TurnOutcome.COMPLETED
        assert isinstance(link.said[-1], Leaving)

    run(scenario())


def test_an_agent_that_ignores_a_stop_is_ended_and_the_worker_leaves(tmp_path: Path) -> None:
    async def scenario() -> None:
        link = FakeLink()
        worker = asyncio.create_task(serve(link, grant(tmp_path, "acp", "--never-cancel", grace_s=0.2)))
        await link.until_a(SessionOpened)
        link.tell(asks("1", "SAY x\\n\nWAIT"))
        await link.until_a(PieceMade)
        link.tell(AbortTurn(TurnId("1")))
        await worker

        assert link.said[-2:] == [
            Leaving("the agent program has ended"),
            TurnEnded(TurnId("1"), TurnOutcome.ABORTED),
        ]

    run(scenario())


def test_usage_is_told_once_and_before_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(grant(tmp_path, "acp")) as link:
            await link.until_a(SessionOpened)
            link.tell(asks("1", "USAGE\nUSAGE\nSAY x"))
            await link.end_of("1")

            used = [message for message in link.said if isinstance(message, UsageSeen)]
            assert used == [UsageSeen(TurnId("1"), context_used=1000, context_size=128000)]
            assert link.said.index(used[0]) == len(link.said) - 2

    run(scenario())


# --- hosts that break their contract ----------------------------------------------------------------------------


class OddHost:
    """Does in its turns what it is given; ignores aborts."""

    def __init__(self, play: Callable[["OddHost"], AsyncIterator[AgentEvent]]) -> None:
        self.traits = HostTraits(name="odd \ud83d", version="1")
        self.gone = asyncio.Event()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self._play = play

    async def open(self, spec: SessionSpec) -> Opened:
        return Opened(SessionId("s"), OpenedHow.NEW)

    def turn(self, prompt: Prompt) -> AsyncIterator[AgentEvent]:
        return self._play(self)

    async def answer(self, dialog_id: DialogId, answer: Any) -> bool:
        await self.answers.put((dialog_id, answer))
        return True

    async def abort(self) -> None:
        pass

    async def close(self) -> None:
        pass


def odd(monkeypatch: pytest.MonkeyPatch, play: Callable[[OddHost], AsyncIterator[AgentEvent]]) -> None:
    monkeypatch.setattr(hosts, "make", lambda name: OddHost(play))


def test_a_host_that_raises_or_falls_silent_fails_its_turn_and_says_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def raises(host: OddHost) -> AsyncIterator[AgentEvent]:
        yield TextDelta("so far")
        raise RuntimeError("secret")

    async def stops(host: OddHost) -> AsyncIterator[AgentEvent]:
        yield TextDelta("so far")

    async def scenario(play: Callable[[OddHost], AsyncIterator[AgentEvent]]) -> None:
        odd(monkeypatch, play)
        link = FakeLink()
        link.tell(asks("1", "hi"))
        await serve(link, grant(tmp_path))

        assert link.text("1") == "so far"
        ended = link.said[-1]
        assert isinstance(ended, TurnEnded) and ended.outcome is TurnOutcome.FAILED
        assert "secret" not in ended.detail
        assert isinstance(link.said[-2], Leaving)

    run(scenario(raises))
    run(scenario(stops))


def test_a_host_that_never_ends_an_aborted_turn_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(host: OddHost) -> AsyncIterator[AgentEvent]:
        yield TextDelta("x\n")
        await asyncio.Event().wait()

    async def scenario() -> None:
        odd(monkeypatch, hangs)
        link = FakeLink()
        link.tell(asks("1", "hi"))
        worker = asyncio.create_task(serve(link, grant(tmp_path, grace_s=0.1)))
        await link.until_a(PieceMade)
        link.tell(AbortTurn(TurnId("1")))
        await worker

        assert link.said[-2:] == [Leaving("the agent did not stop"), TurnEnded(TurnId("1"), TurnOutcome.ABORTED)]

    run(scenario())


def test_a_dialog_is_asked_and_its_answer_reaches_the_host_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asks_once(host: OddHost) -> AsyncIterator[AgentEvent]:
        yield DialogAsked(DialogId("d"), DialogKind.CONFIRM, DialogPurpose.PERMISSION, "Run?", "ls")
        _, answer = await host.answers.get()
        yield TextDelta(f"{answer}")
        assert host.answers.empty()
        yield HostTurnEnded(TurnOutcome.COMPLETED)

    async def scenario() -> None:
        odd(monkeypatch, asks_once)
        async with serving(grant(tmp_path)) as link:
            link.tell(asks("1", "hi"))
            asked = await link.until_a(Asked)
            for _ in range(2):
                link.tell(AnswerDialog(TurnId("1"), asked.dialog_id, Confirmed(True)))
            await link.end_of("1")

            assert "yes=True" in link.text("1")

    run(scenario())


def test_the_grant_reaches_the_host_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = msgspec.structs.replace(
        grant(tmp_path), session_id=SessionId("kept"), contract="phone", tools=("read",), token="t", gateway_url="u"
    )

    spec = turn._session_spec(words)

    assert spec == replace(
        spec,
        session_dir=tmp_path / "session",
        workspace=tmp_path / "workspace",
        session_id=SessionId("kept"),
        contract="phone",
        tools=frozenset({"read"}),
        token="t",
        gateway_url="u",
        command=words.agent.command,
    )
