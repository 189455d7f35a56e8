from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.ids import MessageId, SendKey
from supervisor.core.bubbles import Size
from supervisor.core.delivery import (
    ATTEMPTS,
    FLEETING,
    PARKED_PAUSE_S,
    THROTTLED_GAPS,
    THROTTLED_S,
    Accepted,
    BackOnline,
    Enqueued,
    LoggedInAnew,
    Mark,
    Outbox,
    OutboxEffect,
    OutboxEvent,
    ParkedUnwanted,
    Part,
    PeerWrote,
    QuestionOver,
    Rejected,
    Rules,
    Send,
    SignedIn,
    SignedOut,
    TurnOpened,
    TurnStopped,
    Unanswered,
    Unconfirmed,
    Unsent,
    Woke,
)
from supervisor.core.states import PartKind, PartState

SIZE = Size(2000, 14 * 1024)
PROMPT = Rules(gap_s=0.0)
MORE = "More is waiting."
TAKEN = Accepted(MessageId("m"))


def outbox(rules: Rules = PROMPT, *, heard: bool = True) -> Outbox:
    box = Outbox(SIZE, rules)
    if heard:
        box.step(PeerWrote(0.0, MORE), now=0.0)
    return box


def reply(key: object, turn: int = 1) -> Part:
    return Part(SendKey(str(key)), PartKind.REPLY, f"text {key}", turn)


def line(key: object, kind: PartKind, turn: int | None = None) -> Part:
    return Part(SendKey(str(key)), kind, f"line {key}", turn)


def replies(*keys: object) -> Enqueued:
    return Enqueued(tuple(reply(key) for key in keys))


def sends(effects: Iterable[OutboxEffect]) -> list[str]:
    return [effect.key for effect in effects if isinstance(effect, Send)]


def marks(effects: Iterable[OutboxEffect], state: PartState) -> list[str]:
    return [effect.key for effect in effects if isinstance(effect, Mark) and effect.state is state]


def on_its_way(box: Outbox) -> bool:
    """Is the channel's answer awaited?"""
    return not box.at_rest() and box.wake_at() is None


def carry_out(box: Outbox, event: OutboxEvent, now: float) -> list[str]:
    """Feed an event, let the channel accept everything; the keys sent, in order."""
    effects = list(box.step(event, now))
    out = sends(effects)
    while out and on_its_way(box):
        out += sends(box.step(TAKEN, now))
    return out


# --- order, budget, parking


def test_parts_leave_one_after_the_other_in_order() -> None:
    box = outbox()

    first = box.step(replies(1, 2), now=1.0)
    second = box.step(TAKEN, now=1.1)

    assert first == (Send(SendKey("1"), "text 1", 1),)
    assert second == (
        Mark(SendKey("1"), PartState.ACCEPTED, message_id=MessageId("m")),
        Send(SendKey("2"), "text 2", 1),
    )


def test_what_exceeds_the_budget_is_parked_and_the_last_bubble_says_so() -> None:
    box = outbox(Rules(budget=3, reserve=1, gap_s=0.0))

    box.step(replies(1, 2, 3, 4, 5), now=1.0)
    box.step(TAKEN, now=1.0)
    last = box.step(TAKEN, now=1.0)

    assert Send(SendKey("3"), f"text 3\n\n{MORE}", 1) in last
    assert marks(last, PartState.PARKED) == ["4", "5"]
    assert sends(box.step(TAKEN, now=1.0)) == []
    assert (box.left, box.parked, box.at_rest()) == (0, 2, True)


def test_an_answer_that_just_fits_promises_no_more() -> None:
    box = outbox(Rules(budget=2, reserve=1, gap_s=0.0))
    box.step(TurnOpened(1), now=0.5)

    box.step(Enqueued((reply(1), reply(2)), ends=1), now=1.0)

    assert box.step(TAKEN, now=1.0)[-1] == Send(SendKey("2"), "text 2", 1)


def test_a_parked_rest_that_ends_with_the_budget_announces_the_answer_still_being_made() -> None:
    box = outbox(Rules(budget=1, reserve=0, gap_s=0.0))
    carry_out(box, replies(1, 2), now=1.0)

    box.step(PeerWrote(2.0, MORE), now=2.0)
    box.step(TurnOpened(2), now=2.1)
    effects = box.step(Woke(), now=2.0 + PARKED_PAUSE_S)

    assert effects == (Send(SendKey("2"), f"text 2\n\n{MORE}", 1),)


def test_after_a_new_login_nothing_is_sent_before_the_peer_has_written_to_it() -> None:
    """What goes to a bot's owner before they wrote to that bot is taken without an id and never shown."""
    box = outbox(Rules(gap_s=0.0))
    box.step(SignedOut(), now=1.0)
    box.step(replies(1), now=2.0)

    anew = box.step(LoggedInAnew(), now=3.0)
    freed = box.step(SignedIn(), now=3.0)
    later = box.step(replies(2), now=4.0)
    box.step(PeerWrote(5.0, MORE), now=5.0)

    assert sends(freed) == sends(later) == []
    assert marks(anew, PartState.PARKED) == ["1"]
    assert carry_out(box, Woke(), now=5.0 + PARKED_PAUSE_S) == ["1", "2"]


def test_a_parked_rest_comes_first_in_order_and_once_when_the_peer_writes() -> None:
    """B-002"""
    box = outbox(Rules(budget=3, reserve=1, gap_s=0.0))
    carry_out(box, replies(1, 2, 3, 4, 5), now=1.0)

    box.step(PeerWrote(10.0, MORE), now=10.0)
    box.step(replies(6), now=10.1)
    sent = carry_out(box, Woke(), now=11.0)
    box.step(PeerWrote(20.0, MORE), now=20.0)

    assert sent == ["4", "5", "6"]
    assert carry_out(box, Woke(), now=21.0) == []


def test_a_rest_longer_than_a_refill_goes_out_over_several_messages_each_saying_that_more_waits() -> None:
    box = outbox(Rules(budget=4, reserve=1, gap_s=0.0))
    carry_out(box, replies(*range(11)), now=1.0)
    sent = []

    for when in (10.0, 20.0):
        box.step(PeerWrote(when, MORE), now=when)
        effects = list(box.step(Woke(), now=when + 1))
        while on_its_way(box):
            effects += box.step(TAKEN, now=when + 1)
        sent.append([effect.text for effect in effects if isinstance(effect, Send)])

    assert sent == [
        ["text 4", "text 5", "text 6", f"text 7\n\n{MORE}"],
        ["text 8", "text 9", "text 10"],
    ]


def test_text_may_stream_only_above_the_reserve_but_an_answer_may_end_on_it() -> None:
    box = outbox(Rules(budget=10, reserve=2, gap_s=0.0))
    carry_out(box, replies(*range(7)), now=1.0)
    assert (box.room_to_stream(1.0), box.room(1.0)) == (1, 3)

    box.step(replies(7), now=1.0)

    assert (box.room_to_stream(1.0), box.room(1.0)) == (0, 2)


def test_nothing_goes_to_a_peer_who_never_wrote() -> None:
    box = outbox(heard=False)

    effects = box.step(Enqueued((reply(1), line(2, PartKind.COURTESY))), now=1.0)

    assert marks(effects, PartState.PARKED) == ["1"]
    assert marks(effects, PartState.DROPPED) == ["2"]
    assert box.wake_at() is None


def test_the_reply_window_closes_a_day_after_the_peer_wrote() -> None:
    box = outbox()

    before = box.step(replies(1), now=86_399.0)
    box.step(TAKEN, now=86_399.5)
    after = box.step(replies(2), now=86_400.0)

    assert sends(before) == ["1"]
    assert sends(after) == []
    assert marks(after, PartState.PARKED) == ["2"]


# --- kinds


def test_courtesy_lines_give_way_first() -> None:
    box = outbox(Rules(budget=10, reserve=2, gap_s=0.0))
    carry_out(box, replies(*range(5)), now=1.0)

    goes = box.step(Enqueued((line("a", PartKind.COURTESY),)), now=1.0)
    box.step(TAKEN, now=1.0)
    gives_way = box.step(Enqueued((line("b", PartKind.COURTESY),)), now=1.0)

    assert sends(goes) == ["a"]
    assert gives_way == (Mark(SendKey("b"), PartState.DROPPED),)


def test_an_outcome_line_may_use_the_reserve_and_parks_behind_its_answer() -> None:
    box = outbox(Rules(budget=2, reserve=2, gap_s=0.0))

    sent = carry_out(box, Enqueued((reply(1), line("out", PartKind.OUTCOME, 1))), now=1.0)
    later = box.step(Enqueued((reply(2), line("out2", PartKind.OUTCOME, 2))), now=2.0)

    assert sent == ["1", "out"]
    assert marks(later, PartState.PARKED) == ["2", "out2"]


def test_a_command_is_answered_before_the_parked_rest() -> None:
    box = outbox(Rules(budget=3, reserve=1, gap_s=0.0))
    carry_out(box, replies(1, 2, 3, 4), now=1.0)

    refill = box.step(PeerWrote(5.0, MORE), now=5.0)
    sent = carry_out(box, Enqueued((line("status", PartKind.COMMAND),)), now=5.1)

    assert refill == ()
    assert sent == ["status"]
    assert carry_out(box, Woke(), now=5.0 + PARKED_PAUSE_S) == ["4"]


def test_a_question_follows_the_text_of_its_own_turn() -> None:
    box = outbox()
    box.step(replies(1), now=1.0)
    box.step(replies(2), now=1.0)
    box.step(Enqueued((line("question", PartKind.QUESTION, 1),)), now=1.0)
    box.step(Enqueued((line("status", PartKind.COMMAND),)), now=1.0)

    sent = [sends(box.step(TAKEN, now=1.0)) for _ in range(3)]

    assert sent == [["status"], ["2"], ["question"]]


def test_a_question_may_use_the_reserve_and_goes_before_parked_parts() -> None:
    box = outbox(Rules(budget=3, reserve=2, gap_s=0.0))
    carry_out(box, Enqueued((reply(1),)), now=1.0)

    assert box.room_to_stream(1.0) == 0
    assert carry_out(box, Enqueued((line("question", PartKind.QUESTION, 1),)), now=1.0) == ["question"]


def test_a_question_that_cannot_be_sent_now_is_dropped_and_never_kept() -> None:
    """B-035: by a spent budget, a refusal, an outage, a login that is not taken any more."""
    asked = Enqueued((line("q", PartKind.QUESTION, 1),))
    dropped = Mark(SendKey("q"), PartState.DROPPED)
    spent, refused, offline, out, asked_out = (outbox(Rules(budget=1, gap_s=0.0)) for _ in range(5))

    carry_out(spent, Enqueued((reply(1),)), now=1.0)
    assert spent.step(asked, now=1.0) == (dropped,)

    refused.step(asked, now=1.0)
    assert refused.step(Rejected(), now=1.0) == (dropped,)

    offline.step(asked, now=1.0)
    assert offline.step(Unanswered(), now=1.0) == ()
    assert sends(offline.step(Woke(), now=2.0)) == ["q"], "one that was paid for is tried again, budget or not"
    offline.step(Unanswered(), now=2.0)
    offline.step(Woke(), now=4.0)
    assert offline.step(Unanswered(), now=4.0) == (dropped,)

    out.step(asked, now=1.0)
    assert out.step(Unsent(), now=1.0) == (dropped,)

    asked_out.step(SignedOut(), now=1.0)
    assert asked_out.step(asked, now=1.0) == (dropped,)

    for box in (spent, refused, offline, out, asked_out):
        assert box.parked == 0


def test_what_is_unsent_of_a_question_goes_no_more_once_it_is_over() -> None:
    box = outbox(Rules(budget=5, gap_s=0.0))
    box.step(Enqueued((line("q1", PartKind.QUESTION, 1), line("q2", PartKind.QUESTION, 1))), now=1.0)

    over = box.step(QuestionOver(), now=1.0)

    assert over == (Mark(SendKey("q2"), PartState.DROPPED),)
    assert box.step(Unanswered(), now=1.0) == (Mark(SendKey("q1"), PartState.DROPPED),), "not tried again"


def test_a_question_found_at_the_start_is_dropped_since_its_worker_is_gone() -> None:
    box = Outbox(SIZE, Rules())

    effects = box.restore(
        [(line("q", PartKind.QUESTION, 1), PartState.SENDING, 1)], spent=0, heard_at=0.0, more_line=MORE, now=1.0
    )

    assert effects == (Mark(SendKey("q"), PartState.DROPPED),)


def test_stop_drops_the_unsent_reply_of_its_turn_and_nothing_else() -> None:
    box = outbox()
    box.step(Enqueued((reply(1), reply(2), line("out", PartKind.OUTCOME, 1), reply(3, turn=2))), now=1.0)

    effects = box.step(TurnStopped(1), now=1.1)

    assert effects == (Mark(SendKey("2"), PartState.DROPPED),)
    assert carry_out(box, TAKEN, now=1.2) == ["out", "3"]


def test_a_refused_part_of_a_stopped_turn_is_not_parked() -> None:
    box = outbox()
    box.step(replies(1), now=1.0)

    box.step(TurnStopped(1), now=1.1)
    effects = box.step(Rejected(), now=1.2)

    assert marks(effects, PartState.DROPPED) == ["1"]
    assert box.parked == 0


def test_an_unwanted_parked_rest_is_dropped_before_any_of_it_leaves() -> None:
    box = outbox(Rules(budget=2, reserve=1, gap_s=0.0))
    carry_out(box, replies(1, 2, 3, 4), now=1.0)

    box.step(PeerWrote(5.0, MORE), now=5.0)
    effects = box.step(ParkedUnwanted(), now=5.1)

    assert marks(effects, PartState.DROPPED) == ["3", "4"]
    assert carry_out(box, Woke(), now=6.0) == []


# --- pace


def test_two_messages_leave_at_once_and_the_others_at_a_distance() -> None:
    box = outbox(Rules(gap_s=0.6))
    times = []

    effects = box.step(replies(*range(5)), now=10.0)
    now = 10.0
    for _ in range(5):
        assert sends(effects)
        times.append(round(now, 3))
        effects = box.step(TAKEN, now)
        if (at := box.wake_at()) is not None:
            now = at
            effects = box.step(Woke(), now)

    assert times == [10.0, 10.0, 10.6, 11.2, 11.8]


def test_after_a_refusal_with_budget_left_the_pace_is_slower_for_ten_minutes() -> None:
    box = outbox(Rules(gap_s=0.6))
    box.step(replies(1), now=10.0)
    box.step(Rejected(), now=10.0)
    assert box.throttled_until == 10.0 + THROTTLED_S

    box.step(PeerWrote(20.0, MORE), now=20.0)
    box.step(replies(2, 3), now=21.0)
    box.step(TAKEN, now=21.0)
    box.step(TAKEN, now=21.0)

    assert box.wake_at() == pytest.approx(21.0 + 0.6 * THROTTLED_GAPS)


# --- what the channel answers


def test_after_a_refusal_nothing_is_tried_until_the_peer_writes() -> None:
    box = outbox()
    box.step(replies(1, 2, 3, 4), now=1.0)
    box.step(TAKEN, now=1.0)
    box.step(TAKEN, now=1.0)

    refused = box.step(Rejected(), now=1.0)
    new = box.step(replies(5), now=2.0)

    assert refused == (
        Mark(SendKey("3"), PartState.PARKED, spend=7),
        Mark(SendKey("4"), PartState.PARKED),
    )
    assert sends(new) == []
    assert (box.left, box.parked, box.wake_at()) == (0, 3, None)

    box.step(PeerWrote(9.0, MORE), now=9.0)
    assert carry_out(box, Woke(), now=10.0) == ["3", "4", "5"]


def test_an_unconfirmed_part_is_never_sent_again_and_three_in_a_row_are_suspicious() -> None:
    box = outbox()
    box.step(replies(1, 2, 3), now=1.0)

    first = box.step(Unconfirmed(), now=1.0)
    box.step(Unconfirmed(), now=1.0)
    assert not box.suspicious
    box.step(Unconfirmed(), now=1.0)

    assert marks(first, PartState.UNCONFIRMED) == ["1"]
    assert box.suspicious
    assert (box.left, box.wake_at()) == (7, None)


def test_an_unknown_outcome_is_tried_three_times_with_one_key_and_paid_once() -> None:
    box = outbox()
    attempts = [effect for effect in box.step(replies(1, 2), now=0.0) if isinstance(effect, Send)]
    waits = []

    now = 0.0
    while (effects := box.step(Unanswered(), now)) is not None and (at := box.wake_at()) is not None:
        waits.append(at - now)
        now = at
        attempts += [effect for effect in box.step(Woke(), now) if isinstance(effect, Send)]

    assert [(attempt.key, attempt.spend) for attempt in attempts] == [("1", 1), ("1", 0), ("1", 0)]
    assert len(attempts) == ATTEMPTS
    assert waits == [1.0, 2.0]
    assert marks(effects, PartState.PARKED) == ["1", "2"]
    assert box.left == 9


def test_a_retry_waits_at_least_as_long_as_the_server_asks() -> None:
    box = outbox()
    box.step(replies(1), now=0.0)

    box.step(Unanswered(retry_after_s=30.0), now=0.0)

    assert box.wake_at() == 30.0


def test_what_an_outage_swallowed_is_sent_when_the_network_is_back() -> None:
    box = outbox()
    box.step(replies(1, 2), now=0.0)
    for now in (0.0, 1.0, 3.0):
        box.step(Unanswered(), now)
        box.step(Woke(), now + 2.0)
    assert box.parked == 2

    assert carry_out(box, BackOnline(), now=60.0) == ["1", "2"]
    assert box.left == 8


def test_a_part_tried_before_the_peer_wrote_counts_anew_afterwards() -> None:
    box = outbox()
    box.step(replies(1), now=0.0)
    for now in (0.0, 1.0, 3.0):
        box.step(Unanswered(), now)
        box.step(Woke(), now + 2.0)

    box.step(PeerWrote(60.0, MORE), now=60.0)
    carry_out(box, Woke(), now=61.0)

    assert box.left == 9


def test_a_signed_out_account_keeps_its_parts_for_the_next_login() -> None:
    box = outbox()
    box.step(Enqueued((reply(1), reply(2), line("wait", PartKind.COURTESY))), now=0.0)

    out = (*box.step(Unsent(), now=0.1), *box.step(SignedOut(), now=0.1))

    assert out == (Mark(SendKey("1"), PartState.PENDING), Mark(SendKey("wait"), PartState.DROPPED))
    assert (box.wake_at(), box.at_rest()) == (None, True)
    assert carry_out(box, SignedIn(), now=500.0) == ["1", "2"]
    assert box.left == 8


def test_a_part_that_is_on_its_way_when_the_account_signs_out_still_gets_its_answer() -> None:
    box = outbox()
    box.step(replies(1, 2), now=0.0)

    box.step(SignedOut(), now=0.1)
    effects = box.step(TAKEN, now=0.2)

    assert effects == (Mark(SendKey("1"), PartState.ACCEPTED, message_id=MessageId("m")),)


def test_an_answer_to_nothing_is_a_bug_and_tells_its_story() -> None:
    box = outbox()

    with pytest.raises(RuntimeError, match="PeerWrote"):
        box.step(TAKEN, now=1.0)


# --- restart


def test_after_a_restart_the_part_that_was_on_its_way_goes_first_with_its_own_key() -> None:
    box = Outbox(SIZE, PROMPT)

    effects = box.restore(
        [
            (reply("parked"), PartState.PARKED, 1),
            (line("wait", PartKind.COURTESY), PartState.PENDING, 0),
            (reply("flying"), PartState.SENDING, 1),
            (reply("pending"), PartState.PENDING, 0),
        ],
        spent=4,
        heard_at=-100.0,
        more_line=MORE,
        now=0.0,
    )
    sent = sends(effects) + carry_out(box, TAKEN, now=1.0)

    assert marks(effects, PartState.DROPPED) == ["wait"]
    assert effects[1] == Send(SendKey("flying"), "text flying", 0)
    assert sent == ["flying", "parked", "pending"]
    assert box.left == 4


def test_after_a_restart_a_spent_budget_stays_spent() -> None:
    box = Outbox(SIZE, PROMPT)

    effects = box.restore(
        [(reply(1), PartState.PARKED, 1), (reply(2), PartState.PENDING, 0)],
        spent=10,
        heard_at=-100.0,
        more_line=MORE,
        now=0.0,
    )

    assert effects == (Mark(SendKey("2"), PartState.PARKED),)
    assert box.at_rest()


# --- any script

answers = st.sampled_from(["accept", "accept", "accept", "unconfirmed", "reject", "unknown", "unsent"])
kinds = st.sampled_from(
    [PartKind.REPLY, PartKind.REPLY, PartKind.OUTCOME, PartKind.COMMAND, PartKind.COURTESY, PartKind.QUESTION]
)
moves = st.one_of(
    st.tuples(st.just("enqueue"), st.lists(st.tuples(kinds, st.integers(1, 3)), min_size=1, max_size=6)),
    st.tuples(st.just("answer"), answers),
    st.tuples(st.just("write"), st.none()),
    st.tuples(st.just("stop"), st.integers(1, 3)),
    st.tuples(st.just("over"), st.none()),
    st.tuples(st.just("out"), st.none()),
    st.tuples(st.just("in"), st.none()),
    st.tuples(st.just("online"), st.none()),
    st.tuples(st.just("time"), st.floats(min_value=0.0, max_value=40.0)),
)


@given(script=st.lists(moves, max_size=80), budget=st.integers(1, 6), reserve=st.integers(0, 2))
@settings(deadline=None, max_examples=300)
def test_under_any_script_nothing_is_lost_doubled_or_sent_beyond_the_budget(
    script: list[tuple[str, object]], budget: int, reserve: int
) -> None:
    box = Outbox(SIZE, Rules(budget=budget, reserve=reserve, gap_s=0.6))
    state: dict[str, PartState] = {}  # as the journal would have it
    kind: dict[str, PartKind] = {}
    turn: dict[str, int] = {}
    stopped: set[str] = set()
    fresh = count()
    now, flying = 0.0, ""
    used: set[str] = set()  # what the server has, or may have, been handed since the peer wrote
    tries: dict[str, int] = {}
    order: list[str] = []

    def take(event: OutboxEvent) -> None:
        nonlocal flying
        for effect in box.step(event, now):
            assert state[effect.key] in (PartState.PENDING, PartState.SENDING, PartState.PARKED)
            if isinstance(effect, Mark):
                state[effect.key] = effect.state
                if effect.state is PartState.DROPPED:
                    assert kind[effect.key] in FLEETING or effect.key in stopped
                if effect.state is PartState.PARKED:
                    assert kind[effect.key] not in FLEETING
            else:
                assert flying == ""
                assert effect.key not in stopped or state[effect.key] is PartState.SENDING
                flying = effect.key
                tries[flying] = tries.get(flying, 0) + 1
                assert tries[flying] <= ATTEMPTS
                state[flying] = PartState.SENDING
                used.add(flying)
                assert len(used) <= budget
                if kind[flying] is PartKind.REPLY and flying not in order:
                    order.append(flying)

    for move, value in script:
        if move == "enqueue":
            assert isinstance(value, list)
            parts = []
            for part_kind, part_turn in value:
                part = Part(SendKey(str(next(fresh))), part_kind, "text", part_turn)
                state[part.key], kind[part.key], turn[part.key] = PartState.PENDING, part_kind, part_turn
                parts.append(part)
            take(Enqueued(tuple(parts)))
        elif move == "answer" and flying:
            landed, flying = flying, ""
            if value == "accept":
                tries[landed] = 0
                take(Accepted(MessageId("m")))
            elif value == "unconfirmed":
                take(Unconfirmed())
            elif value == "reject":
                tries[landed] = 0
                take(Rejected())
                assert flying == ""
            elif value == "unsent":
                tries[landed] -= 1
                used.discard(landed)
                take(Unsent())
                assert flying == ""
            else:
                take(Unanswered())
        elif move == "write":
            used = {flying} if flying else set()
            tries = {flying: tries[flying]} if flying else {}
            take(PeerWrote(now, MORE))
        elif move == "stop":
            assert isinstance(value, int)
            stopped |= {k for k in state if turn[k] == value and kind[k] is PartKind.REPLY}
            take(TurnStopped(value))
        elif move == "over":
            take(QuestionOver())
        elif move == "out":
            take(SignedOut())
        elif move in ("in", "online"):
            tries = {flying: tries[flying]} if flying else {}
            take(SignedIn() if move == "in" else BackOnline())
        elif move == "time":
            assert isinstance(value, float)
            now += value
            take(Woke())

        assert bool(flying) == on_its_way(box)
        assert box.parked == sum(s is PartState.PARKED for s in state.values())
        at = box.wake_at()
        assert at is None or at > now

    # In the end, with a friendly server and a patient peer, everything that was not stopped arrives.
    take(SignedIn())
    for _ in range(len(state) + 2):
        now += 100.0
        used = {flying} if flying else set()
        tries = {}
        take(PeerWrote(now, MORE))
        for _ in range(budget + 2):
            if flying:
                flying = ""
                take(Accepted(MessageId("m")))
            now += 10.0
            take(Woke())
    final = {PartState.ACCEPTED, PartState.UNCONFIRMED, PartState.DROPPED}
    assert set(state.values()) <= final
    assert order == sorted(order, key=int)


def test_what_was_sent_after_the_peer_wrote_counts_against_the_new_budget_even_if_we_hear_of_it_later() -> None:
    """WeChat's count began when they wrote; their message waited while the bridge was down, or met ours on the way."""
    box = outbox()
    box.step(replies(*range(4)), now=1.0)
    for at in (2.0, 3.0, 4.0, 5.0):
        box.step(TAKEN, now=at)

    box.step(PeerWrote(9.0, MORE, written_at=3.5), now=9.0)

    assert box.left == PROMPT.budget - 2


def test_what_was_sent_before_the_peer_wrote_does_not() -> None:
    box = outbox()
    box.step(replies(*range(4)), now=1.0)
    for at in (2.0, 3.0, 4.0, 5.0):
        box.step(TAKEN, now=at)

    box.step(PeerWrote(9.0, MORE, written_at=8.0), now=9.0)

    assert box.left == PROMPT.budget


def test_what_was_sent_before_a_restart_counts_if_a_message_written_earlier_comes_after_it() -> None:
    box = Outbox(SIZE, PROMPT)
    box.restore([], spent=3, heard_at=0.0, more_line=MORE, now=10.0, landed_at=[2.0, 4.0, 6.0])

    box.step(PeerWrote(11.0, MORE, written_at=3.0), now=11.0)

    assert box.left == PROMPT.budget - 2


def test_who_wants_the_parked_rest_dropped_still_hears_how_the_turn_ended() -> None:
    box = outbox()
    box.step(Enqueued((reply("a"), reply("b"), line("failed", PartKind.OUTCOME, 1))), now=1.0)
    box.step(Rejected(), now=1.0)
    assert (box.parked, box.parked_rest) == (3, 2)

    box.step(PeerWrote(9.0, MORE), now=9.0)
    effects = box.step(ParkedUnwanted(), now=9.0)

    assert marks(effects, PartState.DROPPED) == ["a", "b"]
    assert sends(box.step(Woke(), now=9.0 + PARKED_PAUSE_S)) == ["failed"]
