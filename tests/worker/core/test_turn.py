"""One turn's states, and the promise of exactly one end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import FailureKind
from protocol.ids import DialogId, TurnId
from protocol.to_supervisor import (
    Asked,
    Boundary,
    DialogGone,
    DialogKind,
    DialogPurpose,
    FileOffered,
    PieceMade,
    Remarked,
    ToolUsed,
    TurnEnded,
    TurnOutcome,
    UsageSeen,
)
from protocol.to_worker import Confirmed, Dismissed
from worker.core.turn import (
    REMARKS,
    REPORT_S,
    TOOL_CALLS,
    AbortAsked,
    AbortHost,
    Answered,
    AnswerHost,
    HostEnded,
    LeaveHost,
    Paused,
    Send,
    Told,
    Turn,
    TurnEffect,
    TurnEvent,
    TurnState,
    Woke,
    Wrote,
)

T = TurnId("7")
D = DialogId("d")
DONE = HostEnded(TurnOutcome.COMPLETED)
ENDED = Send(TurnEnded(T, TurnOutcome.COMPLETED))
ABORTED = Send(TurnEnded(T, TurnOutcome.ABORTED))
QUESTION = Told(Asked(T, D, DialogKind.CONFIRM, DialogPurpose.PERMISSION, "Run?", ""))


def turn() -> Turn:
    return Turn(T, stop_grace_s=5.0)


def played(core: Turn, *events: TurnEvent, now: float = 0.0) -> list[TurnEffect]:
    return [effect for event in events for effect in core.step(event, now)]


def test_pieces_are_numbered_from_zero_and_the_end_comes_last() -> None:
    effects = played(turn(), Wrote("one\n\ntwo"), Paused(Boundary.TOOL), Wrote("three"), DONE)

    assert effects == [
        Send(PieceMade(T, 0, "one\n\n", Boundary.PARAGRAPH)),
        Send(PieceMade(T, 1, "two", Boundary.TOOL)),
        Send(PieceMade(T, 2, "\nthree", Boundary.END)),
        ENDED,
    ]


def test_a_failed_turn_lets_out_its_text_first() -> None:
    effects = played(turn(), Wrote("half"), HostEnded(TurnOutcome.FAILED, FailureKind.AGENT_DIED, "exit code 1"))

    assert effects == [
        Send(PieceMade(T, 0, "half", Boundary.END)),
        Send(TurnEnded(T, TurnOutcome.FAILED, FailureKind.AGENT_DIED, "exit code 1")),
    ]


def test_words_behind_the_end_are_dropped() -> None:
    core = turn()
    played(core, DONE)

    assert played(core, Wrote("late\n"), QUESTION, AbortAsked(), Answered(D, Dismissed()), DONE, Woke()) == []


def test_an_abort_dismisses_dialogs_before_the_host_is_told() -> None:
    core = turn()
    played(core, QUESTION)
    assert core.state is TurnState.ASKING

    effects = played(core, AbortAsked(), AbortAsked())

    assert effects == [AnswerHost(D, Dismissed()), AbortHost()]
    assert core.state is TurnState.CANCELLING


def test_between_abort_and_end_nothing_is_said_and_a_new_question_is_dismissed() -> None:
    core = turn()
    played(core, AbortAsked())

    assert played(core, Wrote("late\n"), Told(ToolUsed(T, "c", "x", "done")), Paused(Boundary.TOOL)) == []
    assert played(core, QUESTION) == [AnswerHost(D, Dismissed())]
    assert played(core, DONE) == [ABORTED]


def test_what_was_held_back_when_the_abort_came_is_told_with_the_end() -> None:
    core = turn()
    played(core, Wrote("half a line"), AbortAsked(), Wrote(" and late words"))

    assert played(core, DONE) == [Send(PieceMade(T, 0, "half a line", Boundary.END)), ABORTED]


def test_whatever_the_host_calls_the_end_of_an_aborted_turn_it_is_aborted() -> None:
    for outcome in TurnOutcome:
        core = turn()
        played(core, Wrote("x\n"), AbortAsked())

        assert played(core, HostEnded(outcome, FailureKind.OTHER, "x")) == [ABORTED]


def test_a_host_that_does_not_report_after_the_grace_is_left() -> None:
    core = turn()
    assert core.wake_at() is None
    played(core, AbortAsked(), now=10.0)

    assert core.wake_at() == 10.0 + 5.0 + REPORT_S
    assert played(core, Woke(), now=15.0) == []
    assert played(core, Woke(), now=15.0 + REPORT_S) == [LeaveHost(), ABORTED]
    assert core.wake_at() is None


def test_what_was_said_before_a_question_leaves_before_it() -> None:
    core = Turn(T, stop_grace_s=5.0)

    messages = [
        effect.message for effect in played(core, Wrote("Two files match"), QUESTION) if isinstance(effect, Send)
    ]

    assert isinstance(messages[0], PieceMade) and messages[0].text == "Two files match"
    assert messages[-1] == QUESTION.message


def test_an_answer_reaches_the_host_once_and_only_while_it_waits() -> None:
    core = turn()
    assert played(core, Answered(D, Confirmed(True))) == []
    played(core, QUESTION)

    effects = played(core, Answered(D, Confirmed(True)), Answered(D, Confirmed(True)))

    assert effects == [AnswerHost(D, Confirmed(True))]
    assert core.state is TurnState.RUNNING


def test_a_question_that_the_agent_takes_back_is_gone_once() -> None:
    core = turn()
    gone = Told(DialogGone(T, D))
    assert played(core, gone) == []
    played(core, QUESTION)

    assert played(core, gone, gone) == [Send(DialogGone(T, D))]
    assert played(core, Answered(D, Confirmed(True))) == []


def test_usage_is_told_once_with_its_last_value() -> None:
    first, last = UsageSeen(T, context_used=1), UsageSeen(T, context_used=2)

    assert played(turn(), Told(first), Told(last), DONE) == [Send(last), ENDED]


def test_a_tool_is_told_when_its_status_changes_and_not_without_end() -> None:
    core = turn()
    statuses = ["started", "running", "running", "running", "done"]

    told = played(core, *(Told(ToolUsed(T, "c", "x", status)) for status in statuses))
    many = played(core, *(Told(ToolUsed(T, f"c{number}", "x", "started")) for number in range(2 * TOOL_CALLS)))

    assert told == [Send(ToolUsed(T, "c", "x", status)) for status in ("started", "running", "done")]
    assert len(many) == TOOL_CALLS - 1


def test_remarks_are_told_up_to_a_number() -> None:
    assert len(played(turn(), *(Told(Remarked("warning", "x")) for _ in range(100)))) == REMARKS


EVENTS = st.one_of(
    st.text(alphabet="ab*\n`字", max_size=20).map(Wrote),
    st.sampled_from([Boundary.TOOL, Boundary.PARAGRAPH]).map(Paused),
    st.sampled_from(
        [
            QUESTION,
            Told(DialogGone(T, D)),
            Told(ToolUsed(T, "c", "x", "done")),
            Told(FileOffered(T, "f", "")),
            Told(UsageSeen(T)),
            Answered(D, Dismissed()),
            AbortAsked(),
            Woke(),
            DONE,
            HostEnded(TurnOutcome.FAILED, FailureKind.OTHER, "x"),
        ]
    ),
)


@given(events=st.lists(EVENTS, max_size=40), step_s=st.floats(min_value=0, max_value=3))
@settings(deadline=None)
def test_under_any_script_there_is_one_end_and_nothing_after_it(events: list[TurnEvent], step_s: float) -> None:
    core = turn()
    effects: list[TurnEffect] = []
    for number, event in enumerate([*events, DONE]):
        effects += core.step(event, number * step_s)

    said = [effect.message for effect in effects if isinstance(effect, Send)]
    assert sum(isinstance(message, TurnEnded) for message in said) == 1
    assert isinstance(said[-1], TurnEnded) and effects[-1] == Send(said[-1])
    pieces = [message for message in said if isinstance(message, PieceMade)]
    assert [piece.number for piece in pieces] == list(range(len(pieces)))
    assert effects.count(AbortHost()) <= 1
    assert core.state is TurnState.ENDED
