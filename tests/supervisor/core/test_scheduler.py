"""The scheduler core is called directly; the clock is a number."""

from collections import defaultdict

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.ids import AccountId, Generation, PeerId, PeerKey
from protocol.to_supervisor import TurnOutcome
from supervisor.core.lease import GoneWhy
from supervisor.core.scheduler import (
    Abort,
    AccountFreed,
    AccountHeld,
    BudgetSpent,
    Close,
    DialogClosed,
    DialogOpened,
    DiskFilled,
    DiskFreed,
    DrainBegan,
    EndTyping,
    FreshAsked,
    Give,
    GrantChanged,
    LeaveAsked,
    Line,
    MarkAsking,
    MarkRunning,
    PeerState,
    Queued,
    Removed,
    Scheduler,
    SchedulerEffect,
    SchedulerLimits,
    ShedAsked,
    ShowTyping,
    Start,
    StartRefused,
    StopAsked,
    Tell,
    Told,
    TurnCut,
    TurnReported,
    Woke,
    WorkerGone,
    WorkerLeaves,
    WorkerOpened,
)
from supervisor.core.states import MessageState

ACCOUNT = AccountId("owner@im.wechat")


def peer(name: str) -> PeerKey:
    return PeerKey(ACCOUNT, PeerId(f"{name}@im.wechat"))


A, B, C = peer("a"), peer("b"), peer("c")
G1 = Generation(1)


def without_typing(effects: tuple[SchedulerEffect, ...]) -> list[SchedulerEffect]:
    return [e for e in effects if not isinstance(e, ShowTyping | EndTyping)]


def running(scheduler: Scheduler, who: PeerKey, row: int, now: float = 0.0) -> None:
    """Bring a peer without a worker into its first turn."""
    scheduler.step(Queued(who, row), now)
    effects = scheduler.step(WorkerOpened(who, scheduler.generation_of(who)), now)
    assert any(isinstance(e, Give) and e.row == row for e in effects)


def test_a_first_message_starts_a_worker_and_is_given_to_it_when_it_opens() -> None:
    scheduler = Scheduler(SchedulerLimits())

    started = scheduler.step(Queued(A, 1), 0.0)
    given = scheduler.step(WorkerOpened(A, G1), 0.1)

    assert without_typing(started) == [Start(A, G1)]
    assert without_typing(given) == [Give(A, G1, 1)]
    assert scheduler.state_of(A) is PeerState.RUNNING


def test_two_turns_run_at_once_and_the_oldest_wait_takes_the_next_slot() -> None:
    scheduler = Scheduler(SchedulerLimits(concurrency=2))
    running(scheduler, A, 1)
    running(scheduler, B, 2)
    scheduler.step(Queued(C, 3), 1.0)
    scheduler.step(Queued(A, 4), 2.0)

    effects = scheduler.step(TurnReported(A, G1, TurnOutcome.COMPLETED, True), 3.0)

    assert Start(C, G1) in effects
    assert not any(isinstance(e, Give) for e in effects)
    assert scheduler.state_of(A) is PeerState.QUEUED


def test_a_second_message_waits_behind_the_first_of_its_peer_though_slots_are_free() -> None:
    scheduler = Scheduler(SchedulerLimits(concurrency=4))
    running(scheduler, A, 1)

    waiting = scheduler.step(Queued(A, 2), 0.5)
    after = scheduler.step(TurnReported(A, G1, TurnOutcome.COMPLETED, True), 1.0)

    assert not any(isinstance(e, Give) for e in waiting)
    assert Give(A, G1, 2) in after


def test_a_turn_that_waits_for_its_peer_holds_no_slot() -> None:
    scheduler = Scheduler(SchedulerLimits(concurrency=1))
    running(scheduler, A, 1)
    scheduler.step(Queued(B, 2), 0.5)

    effects = scheduler.step(DialogOpened(A), 1.0)
    scheduler.step(WorkerOpened(B, G1), 1.1)
    scheduler.step(DialogClosed(A), 1.2)
    scheduler.step(Queued(C, 3), 1.3)
    after_one_end = scheduler.step(TurnReported(B, G1, TurnOutcome.COMPLETED, True), 1.4)

    assert Start(B, G1) in effects
    assert not any(isinstance(e, Start) for e in after_one_end), "A counts again: no slot is free"


def test_waiting_is_acknowledged_once_at_four_seconds_and_once_more_at_a_minute() -> None:
    scheduler = Scheduler(SchedulerLimits(concurrency=1))
    running(scheduler, A, 1)
    scheduler.step(Queued(B, 2), 10.0)
    scheduler.step(Queued(B, 3), 11.0)

    told = []
    for now in (13.9, 14.0, 30.0, 69.9, 70.0, 200.0):
        told += [(now, e.line) for e in scheduler.step(Woke(), now) if isinstance(e, Tell) and e.who == B]

    assert told == [(14.0, Line.WAITING_OTHERS), (70.0, Line.WAITING_STILL_OTHERS)]


def test_a_cold_start_counts_as_waiting_and_is_not_called_other_peoples_chats() -> None:
    scheduler = Scheduler(SchedulerLimits())
    scheduler.step(Queued(A, 1), 0.0)

    first = scheduler.step(Woke(), 4.0)
    again = scheduler.step(Woke(), 60.0)

    assert [e for e in first if isinstance(e, Tell)] == [Tell(A, Line.WAITING_READY)]
    assert [e for e in again if isinstance(e, Tell)] == [Tell(A, Line.WAITING_STILL_READY)]
    assert scheduler.state_of(A) is PeerState.STARTING


def test_a_running_turn_names_stop_once_at_thirty_seconds_and_its_clock_stands_during_a_dialog() -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)

    scheduler.step(DialogOpened(A), 20.0)
    during = scheduler.step(Woke(), 100.0)
    scheduler.step(DialogClosed(A), 120.0)
    before = scheduler.step(Woke(), 129.9)
    at = scheduler.step(Woke(), 130.0)

    assert Tell(A, Line.STOP_HINT) not in during
    assert Tell(A, Line.STOP_HINT) not in before
    assert Tell(A, Line.STOP_HINT) in at


def test_stop_ends_the_turn_for_the_peer_at_once_and_the_next_one_waits_for_its_worker() -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)
    scheduler.step(Queued(A, 2), 1.0)

    stopped = scheduler.step(StopAsked(A), 2.0)
    state = scheduler.state_of(A)
    gone = scheduler.step(WorkerGone(A, G1, GoneWhy.STOPPED), 8.1)

    assert Abort(A, G1, 1) in stopped
    assert Close(A, 1, MessageState.STOPPED, Line.STOPPED, keep_text=False, still_waiting=1) in stopped
    assert not any(isinstance(e, Give) for e in stopped)
    assert state is PeerState.STOPPING
    assert not any(isinstance(e, Close) for e in gone)
    assert Start(A, Generation(2)) in gone


def test_stop_where_none_runs_takes_the_oldest_waiting_message() -> None:
    scheduler = Scheduler(SchedulerLimits(concurrency=1))
    running(scheduler, A, 1)
    scheduler.step(Queued(B, 2), 0.0)
    scheduler.step(Queued(B, 3), 0.0)

    effects = scheduler.step(StopAsked(B), 1.0)

    assert Close(B, 2, MessageState.STOPPED, Line.STOPPED, keep_text=False, still_waiting=1) in effects
    assert scheduler.waiting_of(B) == 1


@pytest.mark.parametrize(
    "end",
    [
        TurnReported(A, G1, TurnOutcome.ABORTED, had_text=True),
        TurnReported(A, G1, TurnOutcome.FAILED, had_text=False),
        TurnReported(A, G1, TurnOutcome.COMPLETED, had_text=True),  # with words about the refusal
        WorkerGone(A, G1, GoneWhy.STOPPED, had_text=True),
    ],
)
def test_a_spent_budget_has_the_turn_ended_at_once_and_its_line_comes_behind_what_was_said(
    end: TurnReported | WorkerGone,
) -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)

    spent = scheduler.step(BudgetSpent(A, G1), 2.0)
    again = scheduler.step(BudgetSpent(A, G1), 2.1)  # each further call of the agent finds it out anew
    ended = scheduler.step(end, 2.2)

    assert without_typing(spent) == [Abort(A, G1, 1)]
    assert without_typing(again) == []
    assert Close(A, 1, MessageState.LIMITED, Line.TOKEN_BUDGET, keep_text=True) in ended


def test_a_budget_that_an_earlier_worker_spent_or_that_no_turn_asks_for_ends_nothing() -> None:
    scheduler = Scheduler(SchedulerLimits())
    assert without_typing(scheduler.step(BudgetSpent(A, G1), 0.0)) == []
    running(scheduler, A, 1)

    assert without_typing(scheduler.step(BudgetSpent(A, Generation(7)), 1.0)) == []


def test_stop_with_nothing_to_stop_says_so() -> None:
    scheduler = Scheduler(SchedulerLimits())

    assert without_typing(scheduler.step(StopAsked(A), 0.0)) == [Tell(A, Line.NOTHING_RUNNING)]


def test_a_killed_worker_costs_only_its_own_peer() -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)
    running(scheduler, B, 2)

    effects = scheduler.step(WorkerGone(A, G1, GoneWhy.CRASHED, had_text=True), 1.0)

    assert Close(A, 1, MessageState.FAILED, Line.BROKE_OFF, keep_text=True) in effects
    assert scheduler.state_of(B) is PeerState.RUNNING


def test_a_worker_that_cannot_start_fails_the_message_it_was_started_for() -> None:
    scheduler = Scheduler(SchedulerLimits())
    scheduler.step(Queued(A, 1), 0.0)
    scheduler.step(Queued(A, 2), 0.0)

    effects = scheduler.step(StartRefused(A, G1), 0.1)

    assert Close(A, 1, MessageState.FAILED, Line.NOT_STARTED, keep_text=False) in effects
    assert Start(A, Generation(2)) in effects, "the second message gets a start of its own"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (StartRefused(A, G1), Line.NOT_STARTED),
        (StartRefused(A, G1, paused=True), Line.STARTS_PAUSED),
        (WorkerGone(A, G1, GoneWhy.START_FAILED), Line.NOT_STARTED),
        (WorkerGone(A, G1, GoneWhy.OPEN_FAILED), Line.NOT_STARTED),
        (WorkerGone(A, G1, GoneWhy.NOT_CONFIGURED), Line.NOT_CONFIGURED),
        (WorkerGone(A, G1, GoneWhy.LAYER_MISSING), Line.NOT_ISOLATED),
    ],
)
def test_why_a_worker_did_not_come_up_decides_what_its_peer_is_told(
    event: StartRefused | WorkerGone, line: Line
) -> None:
    scheduler = Scheduler(SchedulerLimits())
    scheduler.step(Queued(A, 1), 0.0)

    effects = scheduler.step(event, 0.1)

    assert Close(A, 1, MessageState.FAILED, line, keep_text=False) in effects


def test_late_news_of_an_old_generation_changes_nothing() -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)
    scheduler.step(WorkerGone(A, G1, GoneWhy.CRASHED), 1.0)
    scheduler.step(Queued(A, 2), 1.0)
    scheduler.step(WorkerOpened(A, Generation(2)), 1.1)

    assert without_typing(scheduler.step(TurnReported(A, G1, TurnOutcome.COMPLETED, True), 1.2)) == []
    assert without_typing(scheduler.step(WorkerGone(A, G1, GoneWhy.CRASHED), 1.3)) == []
    assert scheduler.state_of(A) is PeerState.RUNNING


def test_an_idle_worker_is_reaped_after_its_idle_minutes_and_not_before() -> None:
    scheduler = Scheduler(SchedulerLimits(idle_s=60.0))
    running(scheduler, A, 1)
    scheduler.step(TurnReported(A, G1, TurnOutcome.COMPLETED, True), 10.0)

    assert scheduler.wake_at() == 70.0
    assert LeaveAsked(A, G1) not in scheduler.step(Woke(), 69.9)
    assert LeaveAsked(A, G1) in scheduler.step(Woke(), 70.0)


def test_over_max_warm_the_longest_idle_worker_leaves_first() -> None:
    scheduler = Scheduler(SchedulerLimits(max_warm=1))
    running(scheduler, A, 1)
    running(scheduler, B, 2)
    scheduler.step(TurnReported(A, G1, TurnOutcome.COMPLETED, True), 1.0)

    effects = scheduler.step(TurnReported(B, G1, TurnOutcome.COMPLETED, True), 2.0)

    assert [e for e in effects if isinstance(e, LeaveAsked)] == [LeaveAsked(A, G1)]


def test_a_changed_grant_takes_hold_after_the_running_turn_and_at_once_when_idle() -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)

    during = scheduler.step(GrantChanged(A), 1.0)
    after = scheduler.step(TurnReported(A, G1, TurnOutcome.COMPLETED, True), 2.0)

    assert LeaveAsked(A, G1) not in during
    assert LeaveAsked(A, G1) in after


def test_a_worker_that_says_it_is_leaving_is_given_no_further_turn_and_the_next_one_gets_what_waits() -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)
    scheduler.step(Queued(A, 2), 1.0)

    scheduler.step(WorkerLeaves(A, G1), 2.0)
    reported = scheduler.step(TurnReported(A, G1, TurnOutcome.ABORTED, False), 2.0)
    gone = scheduler.step(WorkerGone(A, G1, GoneWhy.LEFT), 3.0)

    assert not any(isinstance(effect, Give) for effect in reported)
    assert Start(A, Generation(2)) in gone


def test_a_turn_that_was_cut_by_the_closing_bridge_has_its_outcome_whatever_becomes_of_its_worker() -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)

    scheduler.step(DrainBegan(), 1.0)
    scheduler.step(TurnCut(A), 1.0)
    gone = scheduler.step(WorkerGone(A, G1, GoneWhy.STOPPED), 1.1)

    assert scheduler.busy() == ()
    assert not any(isinstance(effect, Close | Tell) for effect in gone)


def test_a_held_account_keeps_its_waiting_messages_and_runs_them_when_freed() -> None:
    scheduler = Scheduler(SchedulerLimits())
    scheduler.step(AccountHeld(ACCOUNT), 0.0)

    held = scheduler.step(Queued(A, 1), 1.0)
    later = scheduler.step(Woke(), 100.0)
    freed = scheduler.step(AccountFreed(ACCOUNT), 200.0)

    assert held == ()
    assert later == ()
    assert Start(A, G1) in freed


@pytest.mark.parametrize(
    "end",
    [
        TurnReported(A, G1, TurnOutcome.ABORTED, had_text=True),
        TurnReported(A, G1, TurnOutcome.FAILED, had_text=False),
        WorkerGone(A, G1, GoneWhy.STOPPED, had_text=False),
    ],
)
def test_a_turn_over_its_time_is_told_to_end_and_fails_behind_what_it_said_until_then(
    end: TurnReported | WorkerGone,
) -> None:
    scheduler = Scheduler(SchedulerLimits(turn_timeout_s=100.0))
    running(scheduler, A, 1)

    asked = scheduler.step(Woke(), 100.0)
    again = scheduler.step(Woke(), 101.0)
    ended = scheduler.step(end, 102.0)

    assert Abort(A, G1, 1) in asked and not any(isinstance(e, Close) for e in asked)
    assert Abort(A, G1, 1) not in again
    assert Close(A, 1, MessageState.FAILED, Line.TIMED_OUT, keep_text=True) in ended


def test_a_turn_that_is_over_its_time_can_still_be_stopped_and_still_be_answered() -> None:
    for end, expected in (
        (StopAsked(A), Close(A, 1, MessageState.STOPPED, Line.STOPPED, keep_text=False)),
        (TurnReported(A, G1, TurnOutcome.COMPLETED, True), Close(A, 1, MessageState.ANSWERED, None, keep_text=True)),
    ):
        scheduler = Scheduler(SchedulerLimits(turn_timeout_s=100.0))
        running(scheduler, A, 1)
        scheduler.step(Woke(), 100.0)

        assert expected in scheduler.step(end, 101.0)


def test_no_new_turn_starts_once_the_drain_began() -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)
    scheduler.step(DrainBegan(), 1.0)
    scheduler.step(Queued(A, 2), 2.0)
    scheduler.step(Queued(B, 3), 2.0)

    after = scheduler.step(TurnReported(A, G1, TurnOutcome.COMPLETED, True), 3.0)

    assert not any(isinstance(e, Give | Start) for e in after)
    assert scheduler.at_rest()


def test_typing_is_shown_from_pick_up_every_five_seconds_until_the_turn_ends() -> None:
    scheduler = Scheduler(SchedulerLimits(typing_s=5.0))

    shown = ShowTyping(A) in scheduler.step(Queued(A, 1), 0.0)
    scheduler.step(WorkerOpened(A, G1), 0.1)
    again = [now for now in (4.9, 5.0, 9.9, 10.0) if ShowTyping(A) in scheduler.step(Woke(), now)]
    ended = scheduler.step(TurnReported(A, G1, TurnOutcome.COMPLETED, True), 11.0)

    assert shown
    assert again == [5.0, 10.0]
    assert EndTyping(A) in ended


@pytest.mark.parametrize(
    ("outcome", "had_text", "state", "line"),
    [
        (TurnOutcome.COMPLETED, True, MessageState.ANSWERED, None),
        (TurnOutcome.COMPLETED, False, MessageState.EMPTY, Line.EMPTY),
        (TurnOutcome.ABORTED, True, MessageState.STOPPED, Line.STOPPED),
        (TurnOutcome.DECLINED, False, MessageState.DECLINED, Line.DECLINED),
        (TurnOutcome.LIMIT, True, MessageState.LIMITED, Line.LIMITED),
        (TurnOutcome.FAILED, False, MessageState.FAILED, Line.FAILED),
        (TurnOutcome.FAILED, True, MessageState.FAILED, Line.BROKE_OFF),
    ],
)
def test_every_turn_ends_in_exactly_one_outcome(
    outcome: TurnOutcome, had_text: bool, state: MessageState, line: Line | None
) -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)

    effects = scheduler.step(TurnReported(A, G1, outcome, had_text), 1.0)

    assert [e for e in effects if isinstance(e, Close)] == [Close(A, 1, state, line, keep_text=True)]


PEERS = [peer(name) for name in "abcde"]


def lines(effects: tuple[SchedulerEffect, ...]) -> list[Line]:
    return [effect.line for effect in effects if isinstance(effect, Tell)]


def asking(now: float, limits: SchedulerLimits) -> Scheduler:
    """A's turn began at 0.1 and asks its peer."""
    scheduler = Scheduler(limits)
    scheduler.step(Queued(A, 1), 0.0)
    scheduler.step(WorkerOpened(A, G1), 0.1)
    assert scheduler.step(DialogOpened(A), now)[0] == MarkAsking(A, 1)
    return scheduler


def test_a_turns_clocks_stand_while_it_waits_for_its_peer() -> None:
    scheduler = asking(10.1, SchedulerLimits(turn_timeout_s=60.0, stop_hint_s=30.0))

    assert lines(scheduler.step(Woke(), 1000.1)) == []
    assert MarkRunning(A, 1) in scheduler.step(DialogClosed(A), 1000.1)
    assert lines(scheduler.step(Woke(), 1020.0)) == []
    assert lines(scheduler.step(Woke(), 1020.2)) == [Line.STOP_HINT]
    assert Abort(A, G1, 1) not in scheduler.step(Woke(), 1050.0)
    assert Abort(A, G1, 1) in scheduler.step(Woke(), 1050.2)


def test_a_turn_that_was_told_to_end_asks_nobody() -> None:
    scheduler = asking(1.0, SchedulerLimits(turn_timeout_s=60.0))
    assert scheduler.may_ask(A, 1) and not scheduler.may_ask(A, 2) and not scheduler.may_ask(B, 1)
    scheduler.step(DialogClosed(A), 2.0)

    scheduler.step(Woke(), 100.0)

    assert not scheduler.may_ask(A, 1)
    assert scheduler.step(DialogOpened(A), 101.0) == ()


def test_typing_shows_again_as_soon_as_the_peer_has_answered() -> None:
    scheduler = asking(1.0, SchedulerLimits())

    assert ShowTyping(A) not in scheduler.step(Woke(), 7.0)
    assert ShowTyping(A) in scheduler.step(DialogClosed(A), 7.5)


def test_a_message_whose_peer_knows_that_it_waits_is_not_acknowledged_again() -> None:
    scheduler = asking(1.0, SchedulerLimits())

    scheduler.step(Queued(A, 2, Told.YES), 2.0)

    assert lines(scheduler.step(Woke(), 7.0)) == []
    assert lines(scheduler.step(Woke(), 62.5)) == [Line.WAITING_STILL_OWN]


class SchedulerWorld(RuleBasedStateMachine):
    """A world that obeys the effects, in any order of events; the promises are checked after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = SchedulerLimits(concurrency=2, idle_s=50.0, turn_timeout_s=300.0, max_warm=3)
        self.scheduler = Scheduler(self.limits)
        self.now = 0.0
        self.rows = 0
        self.order: dict[PeerKey, list[int]] = defaultdict(list)
        self.given: dict[PeerKey, list[int]] = defaultdict(list)
        self.closed: dict[int, MessageState] = {}
        self.worker: dict[PeerKey, tuple[Generation, str]] = {}  # starting | idle | busy | leaving
        self.turn: dict[PeerKey, int] = {}
        self.asking: set[PeerKey] = set()
        self.returned: set[PeerKey] = set()  # asked, and counts again: one more than slots may run until it has ended
        self.begun_at_full = False

    def _no_longer_asks(self, who: PeerKey) -> None:
        if who in self.asking:
            self.asking.discard(who)
            self.returned.add(who)

    def do(self, event: object) -> None:
        asking_before = set(self.asking)
        for effect in self.scheduler.step(event, self.now):  # type: ignore[arg-type]
            match effect:
                case Start(who, generation):
                    assert who not in self.worker, "one worker per peer"
                    self.worker[who] = (generation, "starting")
                case Give(who, generation, row):
                    assert self.worker[who] == (generation, "idle")
                    self.worker[who] = (generation, "busy")
                    self.given[who].append(row)
                    self.turn[who] = row
                    self.returned &= self.turn.keys() - {who}
                    counted = len(self.turn.keys() - asking_before - self.returned)
                    assert counted <= self.limits.concurrency, "no more turns at once than slots"
                case LeaveAsked(who, generation):
                    assert self.worker[who] == (generation, "idle")
                    self.worker[who] = (generation, "leaving")
                case Close(who, row, state, _, _, _):
                    assert row not in self.closed, "exactly one outcome"
                    self.closed[row] = state
                    self._no_longer_asks(who)
                case Abort(who, generation, row):
                    assert self.turn[who] == row and self.worker[who][0] == generation
                case _:
                    pass

    @rule(who=st.sampled_from(PEERS))
    def message(self, who: PeerKey) -> None:
        self.rows += 1
        self.order[who].append(self.rows)
        self.do(Queued(who, self.rows))

    @rule(seconds=st.sampled_from([0.1, 3.0, 10.0, 60.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.do(Woke())

    @rule(who=st.sampled_from(PEERS), event=st.sampled_from([StopAsked, GrantChanged, Removed]))
    def order_comes(self, who: PeerKey, event: type[StopAsked] | type[GrantChanged] | type[Removed]) -> None:
        self.do(event(who))

    @rule(who=st.sampled_from(PEERS))
    def fresh(self, who: PeerKey) -> None:
        if self.scheduler.turn_of(who) is None:
            self.do(FreshAsked(who))

    @precondition(lambda self: self.worker)
    @rule(data=st.data())
    def worker_moves(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.worker)))
        generation, phase = self.worker[who]
        fate = data.draw(st.sampled_from(["well", "well", "well", "crash", "ask"]))
        if fate == "crash" or phase == "leaving":
            del self.worker[who]
            self.turn.pop(who, None)
            self.asking.discard(who)
            why = GoneWhy.LEFT if phase == "leaving" else GoneWhy.CRASHED
            self.do(WorkerGone(who, generation, why, had_text=data.draw(st.booleans())))
        elif phase == "starting":
            self.worker[who] = (generation, "idle")
            self.do(WorkerOpened(who, generation))
        elif phase == "busy" and fate == "ask" and self.turn[who] not in self.closed:
            opened = who not in self.asking
            if opened:
                self.asking.add(who)
                self.returned.discard(who)
            else:
                self._no_longer_asks(who)
            self.do(DialogOpened(who) if opened else DialogClosed(who))
        elif phase == "busy":
            self.worker[who] = (generation, "idle")
            del self.turn[who]
            self.asking.discard(who)
            outcome = data.draw(st.sampled_from(list(TurnOutcome)))
            self.do(TurnReported(who, generation, outcome, data.draw(st.booleans())))

    @invariant()
    def order_per_peer_is_kept(self) -> None:
        for rows in self.given.values():
            assert rows == sorted(rows)
            assert len(rows) == len(set(rows)), "no prompt reaches an agent twice"

    @invariant()
    def nothing_starves(self) -> None:
        if not self.turn and not any(phase in ("starting", "leaving") for _, phase in self.worker.values()):
            assert not self.scheduler.queued(), self.scheduler.story()

    @invariant()
    def every_message_waits_runs_or_is_closed(self) -> None:
        for who, rows in self.order.items():
            still_open = [row for row in rows if row not in self.closed]
            running_now = [row for row in still_open if self.turn.get(who) == row]
            assert len(still_open) == len(running_now) + self.scheduler.waiting_of(who)


SchedulerWorld.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSchedulerWorld = SchedulerWorld.TestCase


@pytest.mark.parametrize(("had_text", "line"), [(False, Line.TOOK_TOO_MUCH), (True, Line.BROKE_OFF)])
def test_a_turn_that_took_too_much_of_the_machine_fails_with_a_line_of_its_own(had_text: bool, line: Line) -> None:
    scheduler = Scheduler(SchedulerLimits())
    scheduler.step(Queued(A, 1), 0.0)
    scheduler.step(WorkerOpened(A, G1), 0.1)

    effects = scheduler.step(WorkerGone(A, G1, GoneWhy.LIMIT, had_text), 1.0)

    assert Close(A, 1, MessageState.FAILED, line, keep_text=True) in effects


def test_while_the_disk_is_full_no_turn_begins_and_one_line_says_why() -> None:
    scheduler = Scheduler(SchedulerLimits())
    scheduler.step(DiskFilled(), 0.0)

    assert without_typing(scheduler.step(Queued(A, 1), 1.0)) == []
    assert without_typing(scheduler.step(Woke(), 5.0)) == [Tell(A, Line.WAITING_ROOM)]
    assert without_typing(scheduler.step(Woke(), 70.0)) == []
    assert without_typing(scheduler.step(DiskFreed(), 71.0)) == [Start(A, G1)]


def test_an_idle_worker_that_is_to_be_shed_leaves_unless_something_waits_for_it() -> None:
    scheduler = Scheduler(SchedulerLimits())
    running(scheduler, A, 1)

    assert without_typing(scheduler.step(ShedAsked(A, G1), 1.0)) == [], "it runs a turn"
    scheduler.step(TurnReported(A, G1, TurnOutcome.COMPLETED, True), 2.0)
    assert without_typing(scheduler.step(ShedAsked(A, Generation(2)), 3.0)) == [], "another one is meant"
    assert without_typing(scheduler.step(ShedAsked(A, G1), 3.0)) == [LeaveAsked(A, G1)]
