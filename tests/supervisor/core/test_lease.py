"""core/lease: what a worker may say in each state, and when it is overdue."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.errors import FailureKind
from protocol.ids import AccountId, DialogId, Generation, LeaseKey, PeerId, SessionId, TurnId
from protocol.to_supervisor import (
    VERSION,
    Asked,
    Boundary,
    DialogGone,
    DialogKind,
    DialogPurpose,
    FileOffered,
    FormBroken,
    Leaving,
    OpenedHow,
    OpenFailed,
    PieceMade,
    Pulse,
    Ready,
    Remarked,
    SendAsked,
    SessionOpened,
    ToolUsed,
    ToSupervisor,
    TurnEnded,
    TurnOutcome,
    UsageSeen,
    WorkerExited,
)
from supervisor.core.lease import MAY_SAY, Lease, LeaseState, Limits, Watch, Word

KEY = LeaseKey(AccountId("a"), PeerId("p"), Generation(1))
LIMITS = Limits(ready_s=20.0, open_s=60.0, hang_s=10.0, leave_s=5.0)
TURN = TurnId("7")
READY = Ready(VERSION, (), ())
OPENED = SessionOpened(SessionId("s"), OpenedHow.NEW, "echo", "1")
ENDED = TurnEnded(TURN, TurnOutcome.COMPLETED)


def words_of(turn: TurnId) -> list[ToSupervisor]:
    """One of each message that names a turn."""
    return [
        PieceMade(turn, 0, "x", Boundary.NONE),
        ToolUsed(turn, "c", "read", "done"),
        Asked(turn, DialogId("d"), DialogKind.CONFIRM, DialogPurpose.QUESTION, "t", "b"),
        DialogGone(turn, DialogId("d")),
        FileOffered(turn, "f", ""),
        SendAsked(turn, "f", "c", ""),
        UsageSeen(turn),
        TurnEnded(turn, TurnOutcome.COMPLETED),
    ]


EVERYTHING: list[ToSupervisor] = [
    READY,
    OPENED,
    OpenFailed(FailureKind.AUTH, ""),
    Pulse(),
    Remarked("warning", "x"),
    Leaving("x"),
    WorkerExited(0),
    FormBroken("x"),
    *words_of(TURN),
]


def lease_in(state: LeaseState, *, now: float = 0.0) -> Lease:
    """A lease that came to this state in the way that leads there."""
    lease = Lease(KEY, LIMITS, now=now, sends=True)
    if state is LeaseState.STARTING:
        return lease
    lease.hear(READY, now=now)
    if state is LeaseState.OPENING:
        return lease
    lease.hear(OPENED, now=now)
    if state is LeaseState.BUSY:
        lease.begin(TURN, now=now)
    elif state is LeaseState.LEAVING:
        lease.leave(now=now)
    elif state is LeaseState.GONE:
        lease.end()
    assert lease.state is state
    return lease


def test_a_send_breaks_the_lease_of_a_session_that_has_no_such_tool() -> None:
    lease = Lease(KEY, LIMITS, now=0.0)
    lease.hear(READY, now=0.0)
    lease.hear(OPENED, now=0.0)
    lease.begin(TURN, now=0.0)

    assert lease.hear(SendAsked(TURN, "f", "c", "hello"), now=1.0) is Word.BROKEN
    assert "without that tool" in lease.reason


@pytest.mark.parametrize("state", [state for state in LeaseState if state is not LeaseState.GONE])
@pytest.mark.parametrize("message", EVERYTHING, ids=lambda message: type(message).__name__)
def test_a_word_is_heard_where_the_table_allows_it_and_breaks_the_lease_elsewhere(
    state: LeaseState, message: ToSupervisor
) -> None:
    lease = lease_in(state)

    word = lease.hear(message, now=1.0)

    assert word is (Word.HEARD if type(message) in MAY_SAY[state] else Word.BROKEN)
    assert bool(lease.reason) is (word is Word.BROKEN)


@pytest.mark.parametrize("message", EVERYTHING, ids=lambda message: type(message).__name__)
def test_late_words_of_a_revoked_lease_are_dropped(message: ToSupervisor) -> None:
    assert lease_in(LeaseState.GONE).hear(message, now=1.0) is Word.DROPPED


@pytest.mark.parametrize("message", words_of(TurnId("8")), ids=lambda message: type(message).__name__)
def test_a_word_that_names_another_turn_breaks_the_lease(message: ToSupervisor) -> None:
    assert lease_in(LeaseState.BUSY).hear(message, now=1.0) is Word.BROKEN


def test_a_worker_of_another_protocol_version_is_not_heard() -> None:
    assert lease_in(LeaseState.STARTING).hear(Ready(VERSION + 1, (), ()), now=1.0) is Word.BROKEN


@pytest.mark.parametrize("numbers", [[1], [0, 0], [0, 2], [0, 1, 0]])
def test_pieces_come_in_order_without_gap_or_repetition(numbers: list[int]) -> None:
    lease = lease_in(LeaseState.BUSY)

    words = [lease.hear(PieceMade(TURN, number, "x", Boundary.NONE), now=1.0) for number in numbers]

    assert words == [Word.HEARD] * (len(numbers) - 1) + [Word.BROKEN]


def test_piece_numbers_start_again_with_every_turn() -> None:
    lease = lease_in(LeaseState.BUSY)
    lease.hear(PieceMade(TURN, 0, "x", Boundary.END), now=1.0)
    lease.hear(ENDED, now=1.0)
    lease.begin(TurnId("8"), now=2.0)

    assert lease.hear(PieceMade(TurnId("8"), 0, "x", Boundary.END), now=3.0) is Word.HEARD


def test_a_turn_ends_once() -> None:
    lease = lease_in(LeaseState.BUSY)

    assert [lease.hear(ENDED, now=1.0), lease.hear(ENDED, now=1.0)] == [Word.HEARD, Word.BROKEN]


@pytest.mark.parametrize("state", [state for state in LeaseState if state is not LeaseState.IDLE])
def test_only_an_idle_worker_is_given_a_turn_or_asked_to_leave(state: LeaseState) -> None:
    with pytest.raises(RuntimeError):
        lease_in(state).begin(TurnId("8"), now=1.0)
    with pytest.raises(RuntimeError):
        lease_in(state).leave(now=1.0)


@pytest.mark.parametrize(
    ("state", "at", "watch"),
    [
        (LeaseState.STARTING, 20.0, Watch.READY),
        (LeaseState.OPENING, 10.0, Watch.HANG),
        (LeaseState.BUSY, 10.0, Watch.HANG),
        (LeaseState.LEAVING, 5.0, Watch.LEAVE),
    ],
)
def test_each_state_has_its_watch(state: LeaseState, at: float, watch: Watch) -> None:
    lease = lease_in(state)

    assert lease.wake_at() == at
    assert lease.overdue(now=at - 0.01) is None
    assert lease.overdue(now=at) is watch


@pytest.mark.parametrize("state", [LeaseState.IDLE, LeaseState.GONE])
def test_an_idle_worker_may_be_silent_for_ever(state: LeaseState) -> None:
    assert lease_in(state).wake_at() is None
    assert lease_in(state).overdue(now=1e9) is None


def test_a_turn_given_after_a_long_rest_does_not_begin_overdue() -> None:
    lease = lease_in(LeaseState.IDLE)

    lease.begin(TURN, now=3600.0)

    assert lease.overdue(now=3609.0) is None
    assert lease.overdue(now=3610.0) is Watch.HANG


def test_a_pulse_keeps_a_busy_worker_alive_and_an_opening_one_only_until_its_time_is_up() -> None:
    busy, opening = lease_in(LeaseState.BUSY), lease_in(LeaseState.OPENING)

    for second in range(1, 60):
        busy.hear(Pulse(), now=float(second))
        opening.hear(Pulse(), now=float(second))

    assert (busy.overdue(now=60.0), opening.overdue(now=60.0)) == (None, Watch.OPEN)


def test_a_turn_told_to_end_has_its_time_whatever_it_says_meanwhile() -> None:
    lease = lease_in(LeaseState.BUSY)
    lease.abort(TURN, within_s=3.0, now=1.0)

    lease.abort(TURN, within_s=3.0, now=3.5)  # a second /stop gains it nothing
    lease.hear(Pulse(), now=3.9)

    assert lease.overdue(now=3.9) is None
    assert lease.overdue(now=4.0) is Watch.STOP


def test_a_turn_that_ended_in_time_takes_its_stop_with_it() -> None:
    lease = lease_in(LeaseState.BUSY)
    lease.abort(TURN, within_s=3.0, now=1.0)

    lease.hear(ENDED, now=2.0)
    lease.begin(TurnId("8"), now=2.0)

    assert lease.overdue(now=5.0) is None


def test_a_stop_for_another_turn_changes_nothing() -> None:
    lease = lease_in(LeaseState.BUSY)

    lease.abort(TurnId("6"), within_s=0.1, now=1.0)

    assert lease.wake_at() == 10.0


@pytest.mark.parametrize("state", list(LeaseState))
def test_a_supervisor_that_was_away_itself_starts_all_watches_anew(state: LeaseState) -> None:
    lease = lease_in(state)
    if state is LeaseState.BUSY:
        lease.abort(TURN, within_s=3.0, now=0.0)

    lease.rearm(now=1000.0)

    assert lease.overdue(now=1001.0) is None


class AnyLease(RuleBasedStateMachine):
    """Random words and orders at random times, against the promises above."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.lease = Lease(KEY, LIMITS, now=0.0)
        self.turns = 0
        self.spoken = 0.0

    @rule(seconds=st.floats(0, 30, allow_nan=False))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(message=st.sampled_from(EVERYTHING), of_this_turn=st.booleans())
    def says(self, message: Any, of_this_turn: bool) -> None:
        if of_this_turn and self.lease.turn is not None and hasattr(message, "turn_id"):
            message = next(word for word in words_of(self.lease.turn) if type(word) is type(message))
        before, turn = self.lease.state, self.lease.turn
        word = self.lease.hear(message, now=self.now)
        allowed = type(message) in MAY_SAY[before]
        if before is LeaseState.GONE:
            assert word is Word.DROPPED
        elif not allowed or getattr(message, "turn_id", turn) != turn:
            assert word is Word.BROKEN
        if word is Word.HEARD:
            self.spoken = self.now
        if word is Word.BROKEN:
            assert (self.lease.state, self.lease.turn) == (before, turn)
            self.lease.end()  # as pool.py does

    @precondition(lambda self: self.lease.state is LeaseState.IDLE)
    @rule()
    def begins(self) -> None:
        self.turns += 1
        self.lease.begin(TurnId(str(self.turns)), now=self.now)
        self.spoken = self.now

    @precondition(lambda self: self.lease.state is LeaseState.IDLE)
    @rule()
    def leaves(self) -> None:
        self.lease.leave(now=self.now)

    @precondition(lambda self: self.lease.turn is not None)
    @rule(within_s=st.floats(0.1, 20))
    def aborts(self, within_s: float) -> None:
        assert self.lease.turn is not None
        self.lease.abort(self.lease.turn, within_s=within_s, now=self.now)

    @rule()
    def was_away(self) -> None:
        self.lease.rearm(now=self.now)
        assert self.lease.overdue(now=self.now) is None
        self.spoken = self.now

    @invariant()
    def a_turn_runs_exactly_while_busy(self) -> None:
        assert (self.lease.turn is not None) is (self.lease.state is LeaseState.BUSY)

    @invariant()
    def overdue_is_what_wake_at_says(self) -> None:
        at = self.lease.wake_at()
        assert (self.lease.overdue(now=self.now) is not None) is (at is not None and self.now >= at)

    @invariant()
    def a_silent_worker_with_work_is_found_in_time(self) -> None:
        if self.lease.state in (LeaseState.OPENING, LeaseState.BUSY) and self.now >= self.spoken + LIMITS.hang_s:
            assert self.lease.overdue(now=self.now) is not None


TestAnyLease = AnyLease.TestCase
TestAnyLease.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
