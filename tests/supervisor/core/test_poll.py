"""The poll's decisions, event by event, and its promises under any script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BridgeError
from protocol.ids import Cursor
from supervisor.core.poll import (
    Announced,
    AnnounceStart,
    AnnounceStop,
    Arrival,
    Failed,
    Fetch,
    Fetched,
    GiveUp,
    NotRecorded,
    OutageBegan,
    OutageEnded,
    Over,
    Poll,
    PollEffect,
    PollEvent,
    PollLimits,
    PollState,
    Record,
    Recorded,
    Started,
    StopAsked,
    TokenRefused,
    Wait,
    Woke,
)

C1, C2 = Cursor("c1"), Cursor("c2")
DOWN = Failed("getupdates: HTTP 502", chance=1.0)
SILENCE = Fetched("", 0, None, None)
EXPIRED = TokenRefused("getupdates: -14")


def polling(cursor: Cursor = C1, *, now: float = 0.0, limits: PollLimits | None = None) -> Poll[str]:
    """A poll whose first fetch is on its way."""
    poll: Poll[str] = Poll(cursor, limits)
    poll.step(Started(), now)
    poll.step(Announced(), now)
    return poll


def batch(name: str = "b", *, count: int = 1, cursor: Cursor | None = C2, hold_s: float | None = None) -> Fetched[str]:
    return Fetched(name, count, cursor, hold_s)


def only(effects: tuple[PollEffect[str], ...]) -> PollEffect[str]:
    (effect,) = effects
    return effect


def waits(effects: tuple[PollEffect[str], ...], now: float) -> float:
    last = effects[-1]
    assert isinstance(last, Wait)
    return last.until - now


# --- the usual way --------------------------------------------------------------------------------------------


def test_polling_is_announced_and_begins_with_the_stored_cursor() -> None:
    poll: Poll[str] = Poll(C1)

    announce = poll.step(Started(), 0.0)
    fetch = poll.step(Announced(), 0.1)

    assert only(announce) == AnnounceStart()
    assert only(fetch) == Fetch(C1, hold_s=35.0, within_s=105.0)


def test_given_a_batch_when_it_arrives_then_it_is_recorded_before_the_cursor_moves() -> None:
    poll = polling()

    record = poll.step(batch("b"), 1.0)
    before = poll.cursor
    fetch = poll.step(Recorded(), 1.1)

    assert only(record) == Record("b", Arrival.BACKLOG)
    assert before == C1
    assert only(fetch) == Fetch(C2, hold_s=35.0, within_s=105.0)


def test_b052_the_very_next_poll_shows_the_new_cursor() -> None:
    poll = polling()
    poll.step(batch(), 1.0)

    fetch = only(poll.step(Recorded(), 1.1))

    assert isinstance(fetch, Fetch)
    assert fetch.cursor == C2


def test_only_what_the_first_answer_brings_is_backlog() -> None:
    first, quiet = polling(), polling()
    first.step(batch(), 1.0)
    first.step(Recorded(), 1.0)
    quiet.step(batch(count=0, cursor=C1), 30.0)

    assert only(first.step(batch("later"), 2.0)) == Record("later", Arrival.LIVE)
    assert only(quiet.step(batch("later"), 31.0)) == Record("later", Arrival.LIVE)


def test_an_answer_without_a_cursor_never_overwrites_the_old_one() -> None:
    poll = polling()
    poll.step(batch(cursor=None), 30.0)
    poll.step(Recorded(), 30.0)

    fetch = only(poll.step(batch(count=0, cursor=None), 60.0))

    assert isinstance(fetch, Fetch)
    assert fetch.cursor == poll.cursor == C1


def test_an_empty_answer_is_written_down_only_when_its_cursor_is_new() -> None:
    poll = polling()

    same = only(poll.step(batch(count=0, cursor=C1), 30.0))
    new = only(poll.step(batch("empty", count=0, cursor=C2), 60.0))

    assert isinstance(same, Fetch)
    assert new == Record("empty", Arrival.LIVE)


@pytest.mark.parametrize(
    ("hint_s", "hold_s"),
    [
        (40.0, 40.0),
        (0.05, 1.0),
        (500.0, 120.0),
        (0.0, 35.0),
        (-1.0, 35.0),
        (1e9, 35.0),
        (float("nan"), 35.0),
        (float("inf"), 35.0),
        (None, 35.0),
    ],
)
def test_b033_the_announced_hold_is_clamped_and_nonsense_falls_back(hint_s: float | None, hold_s: float) -> None:
    poll = polling()

    fetch = only(poll.step(batch(count=0, cursor=C1, hold_s=hint_s), 30.0))

    assert isinstance(fetch, Fetch)
    assert (fetch.hold_s, fetch.within_s) == (hold_s, hold_s + 70.0)


def test_b033_a_hold_announced_once_outlasts_a_silence() -> None:
    poll = polling()
    poll.step(batch(count=0, cursor=C1, hold_s=60.0), 30.0)

    fetch = only(poll.step(SILENCE, 100.0))

    assert isinstance(fetch, Fetch)
    assert fetch.hold_s == 60.0


# --- silence and spinning -------------------------------------------------------------------------------------


def test_b011_a_silent_poll_is_no_failure_and_the_next_one_goes_out_at_once() -> None:
    poll = polling()

    effects = poll.step(SILENCE, 45.0)

    assert isinstance(only(effects), Fetch)
    assert poll.view(45.0).poll_failures == 0
    assert poll.view(45.0).state is PollState.RUNNING


def test_two_silences_in_a_row_make_the_account_stale_until_the_next_answer() -> None:
    poll = polling()
    poll.step(SILENCE, 45.0)

    second = poll.step(SILENCE, 90.0)
    stale = poll.view(90.0)
    third = poll.step(SILENCE, 135.0)
    back = poll.step(batch(count=0, cursor=C1), 140.0)

    assert [type(effect) for effect in second] == [OutageBegan, Fetch]
    assert (stale.state, stale.poll_failures, stale.last_error) == (PollState.STALE, 0, "no answer for 90 s")
    assert isinstance(only(third), Fetch)
    assert back[0] == OutageEnded("poll", 50.0)
    assert poll.view(140.0).state is PollState.RUNNING
    assert poll.view(140.0).last_error is None


def test_a_server_that_never_holds_does_not_make_us_spin() -> None:
    poll = polling()
    now, gaps = 0.0, []
    for _ in range(6):
        gaps.append(waits(poll.step(batch(count=0, cursor=C1), now), now))
        now += gaps[-1]
        poll.step(Woke(), now)

    assert gaps == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0, 2.0])


def test_no_pause_follows_messages_nor_an_answer_that_was_held() -> None:
    poll = polling()
    poll.step(batch(count=0, cursor=C1), 0.0)
    poll.step(Woke(), 0.2)
    poll.step(batch(), 0.2)

    after_messages = only(poll.step(Recorded(), 0.2))
    after_a_hold = only(poll.step(batch(count=0), 20.0))

    assert isinstance(after_messages, Fetch)
    assert isinstance(after_a_hold, Fetch)


def test_an_empty_answer_with_a_new_cursor_is_recorded_and_still_does_not_spin() -> None:
    poll = polling()
    poll.step(batch(count=0), 0.0)

    assert waits(poll.step(Recorded(), 0.0), 0.0) == pytest.approx(0.2)


# --- failures -------------------------------------------------------------------------------------------------


def test_failures_wait_longer_each_time_and_the_outage_is_told_once_with_its_length() -> None:
    poll = polling()
    now, gaps, told = 0.0, [], []
    for _ in range(7):
        effects = poll.step(DOWN, now)
        told += [effect for effect in effects if not isinstance(effect, Wait)]
        gaps.append(waits(effects, now))
        now += gaps[-1]
        poll.step(Woke(), now)
    seen = poll.view(now)
    back = poll.step(batch(), now)

    assert gaps == pytest.approx([1, 2, 4, 8, 16, 30, 30])
    assert told == [OutageBegan("poll", "getupdates: HTTP 502")]
    assert (seen.poll_failures, seen.last_error) == (7, "getupdates: HTTP 502")
    assert back == (OutageEnded("poll", now), Record("b", Arrival.BACKLOG))
    assert (poll.failures, poll.last_error) == (0, None)


def test_the_cursor_stays_through_a_failure() -> None:
    poll = polling()
    poll.step(DOWN, 0.0)

    fetch = only(poll.step(Woke(), 1.0))

    assert isinstance(fetch, Fetch)
    assert fetch.cursor == C1


@given(chance=st.floats(0, 1), failures=st.integers(0, 100))
def test_the_backoff_is_shaken_but_bounded(chance: float, failures: int) -> None:
    poll = polling()
    poll.failures = failures

    waited_s = waits(poll.step(Failed("x", chance), 0.0), 0.0)

    assert 0.8 <= waited_s <= 30.0


def test_a_server_that_names_a_time_is_given_it() -> None:
    assert waits(polling().step(Failed("429", 0.0, retry_after_s=50.0), 0.0), 0.0) == 50.0


def test_an_outage_that_lasts_makes_the_account_stale() -> None:
    poll = polling()
    now = 0.0
    while now < 95.0:
        effects = poll.step(DOWN, now)
        now += waits(effects, now)
        poll.step(Woke(), now)

    assert poll.view(now).state is PollState.STALE


def test_b093_after_a_standstill_the_watch_starts_anew() -> None:
    poll = polling()
    poll.step(SILENCE, 45.0)

    effects = poll.step(SILENCE, 45.0 + 3 * 3600.0)

    assert isinstance(only(effects), Fetch)
    assert poll.view(45.0 + 3 * 3600.0).state is PollState.RUNNING


# --- the token ------------------------------------------------------------------------------------------------


def test_b010_a_refused_token_is_announced_once_tried_once_more_and_then_expired() -> None:
    poll = polling()

    revive = poll.step(EXPIRED, 1.0)
    retry = poll.step(Announced(), 1.1)
    over = poll.step(EXPIRED, 1.2)

    assert only(revive) == AnnounceStart()
    assert isinstance(only(retry), Fetch)
    assert only(over) == Over(PollState.EXPIRED, "getupdates: -14")
    assert (poll.view(2.0).state, poll.view(2.0).last_error) == (PollState.EXPIRED, "getupdates: -14")


def test_b047_an_expired_poll_asks_for_nothing_more() -> None:
    poll = polling()
    poll.step(EXPIRED, 1.0)
    poll.step(Announced(), 1.0)
    poll.step(EXPIRED, 1.0)

    for event in (Started(), Woke(), Announced(), batch(), StopAsked()):
        with pytest.raises(BridgeError):
            poll.step(event, 2.0)


def test_a_token_that_was_revived_may_be_revived_again_later() -> None:
    poll = polling()
    poll.step(EXPIRED, 1.0)
    poll.step(Announced(), 1.0)
    poll.step(batch(), 2.0)
    poll.step(Recorded(), 2.0)

    assert only(poll.step(EXPIRED, 3.0)) == AnnounceStart()


def test_a_failure_between_two_refusals_does_not_buy_a_third_try() -> None:
    poll = polling()
    poll.step(EXPIRED, 1.0)
    poll.step(Announced(), 1.0)
    poll.step(DOWN, 1.0)
    poll.step(Woke(), 2.0)

    assert poll.step(EXPIRED, 3.0)[-1] == Over(PollState.EXPIRED, "getupdates: -14")


# --- a disk that refuses --------------------------------------------------------------------------------------


def test_a_batch_that_cannot_be_recorded_is_tried_each_second_and_nothing_is_fetched_meanwhile() -> None:
    poll = polling()
    poll.step(batch("b"), 0.0)
    first = poll.step(NotRecorded("disk full"), 0.0)
    now, tries = 0.0, []
    for _ in range(5):
        now += 1.0
        tries.append(only(poll.step(Woke(), now)))
        waited = poll.step(NotRecorded("disk full"), now)
        assert waits(waited, now) == 1.0
    seen = poll.view(now)
    poll.step(Woke(), 6.0)
    back = poll.step(Recorded(), 6.0)

    assert first == (OutageBegan("journal", "disk full"), Wait(1.0))
    assert tries == [Record("b", Arrival.BACKLOG)] * 5
    assert seen.last_error == "disk full"
    assert back[0] == OutageEnded("journal", 6.0)
    assert isinstance(back[1], Fetch)
    assert (back[1].cursor, poll.last_error) == (C2, None)


def test_a_stop_gives_an_unrecorded_batch_five_seconds_and_then_names_it() -> None:
    poll = polling()
    poll.step(batch("b"), 0.0)
    poll.step(NotRecorded("disk full"), 0.0)

    now = 0.5
    effects = poll.step(StopAsked(), now)
    while isinstance(effects[-1], Record):
        effects = poll.step(NotRecorded("disk full"), now)
        if isinstance(effects[-1], Wait):
            now = effects[-1].until
            effects = poll.step(Woke(), now)

    assert now == pytest.approx(5.5)
    assert effects == (GiveUp("b"), AnnounceStop(), Over(PollState.STOPPED))


def test_a_stop_that_can_record_in_time_loses_nothing() -> None:
    poll = polling()
    poll.step(batch("b"), 0.0)
    poll.step(NotRecorded("disk full"), 0.0)
    poll.step(StopAsked(), 0.5)

    effects = poll.step(Recorded(), 0.6)

    assert effects == (OutageEnded("journal", pytest.approx(0.6)), AnnounceStop(), Over(PollState.STOPPED))
    assert poll.cursor == C2


# --- stopping -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [(), (Started(),), (Started(), Announced()), (Started(), Announced(), DOWN)])
def test_a_stop_is_announced_whatever_the_poll_was_doing(events: tuple[PollEvent[str], ...]) -> None:
    poll: Poll[str] = Poll(C1)
    for event in events:
        poll.step(event, 0.0)

    assert poll.step(StopAsked(), 0.0) == (AnnounceStop(), Over(PollState.STOPPED))
    assert poll.view(0.0).state is PollState.STOPPED


def test_an_event_that_cannot_come_now_is_a_bug_and_tells_the_story() -> None:
    with pytest.raises(BridgeError, match="Recorded while waiting for fetched; before: Started → AnnounceStart"):
        polling().step(Recorded(), 0.0)


# --- any script -----------------------------------------------------------------------------------------------

answers = st.one_of(
    st.builds(
        batch,
        st.text("abc", min_size=1, max_size=3),
        count=st.integers(0, 2),
        cursor=st.none() | st.sampled_from([C1, C2]),
        hold_s=st.none() | st.floats(),
    ),
    st.builds(Failed, st.just("down"), st.floats(0, 1)),
    st.just(EXPIRED),
    st.just(StopAsked()),
)


@given(
    answers=st.lists(answers, max_size=40),
    disk=st.lists(st.booleans(), max_size=40),
    took_s=st.lists(st.floats(0, 200), max_size=40),
)
def test_under_any_script_no_message_is_dropped_and_nothing_is_fetched_before_it_is_recorded(
    answers: list[PollEvent[str]], disk: list[bool], took_s: list[float]
) -> None:
    poll: Poll[str] = Poll(C1)
    now = 0.0
    in_hand: list[str] = []
    event: PollEvent[str] = Started()
    while True:
        effects = poll.step(event, now)
        for effect in effects:
            if isinstance(effect, GiveUp):
                in_hand.remove(effect.batch)
        last = effects[-1]
        if isinstance(last, Over):
            break
        now += took_s.pop() if took_s else 0.1
        if isinstance(last, Fetch):
            assert in_hand == []
            assert 1.0 <= last.hold_s <= 120.0
            event = answers.pop() if answers else StopAsked()
            if isinstance(event, Fetched) and event.count:
                in_hand = [event.batch]
        elif isinstance(last, Record):
            assert in_hand in ([], [last.batch])
            event = NotRecorded("full") if disk and not disk.pop() else Recorded()
            if event == Recorded():
                in_hand = []
        else:
            event = Woke() if isinstance(last, Wait) else Announced()

    assert in_hand == []
    assert poll.cursor in (C1, C2)
