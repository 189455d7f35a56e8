"""core/starts: the crash-loop rule."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import AccountId, PeerId, PeerKey
from supervisor.core.starts import TRIAL, Refusal, Starts


def peer(name: str) -> PeerKey:
    return PeerKey(AccountId("a"), PeerId(name))


def test_two_deaths_before_ready_pause_nobody() -> None:
    starts = Starts()

    starts.died(peer("x"), now=0.0)
    starts.died(peer("x"), now=1.0)

    assert starts.refusal(peer("x"), now=2.0) is None


def test_the_third_death_in_a_minute_pauses_that_peer_for_a_minute_and_no_other() -> None:
    starts = Starts()
    for second in (0.0, 20.0, 40.0):
        starts.died(peer("x"), now=second)

    paused = starts.refusal(peer("x"), now=50.0)

    assert paused is not None
    assert paused.retry_in_s == 50.0
    assert starts.refusal(peer("y"), now=50.0) is None
    assert starts.refusal(peer("x"), now=100.0) is None


def test_three_deaths_spread_over_more_than_a_minute_pause_nobody() -> None:
    starts = Starts()
    for second in (0.0, 31.0, 62.0):
        starts.died(peer("x"), now=second)

    assert starts.refusal(peer("x"), now=63.0) is None


def test_deaths_of_three_different_peers_stop_every_start_until_reopened() -> None:
    starts = Starts()
    for name in ("x", "y", "z"):
        starts.died(peer(name), now=0.0)

    refused = starts.refusal(peer("w"), now=10_000.0)

    assert isinstance(refused, Refusal)
    assert refused.retry_in_s is None
    starts.reopen()
    assert starts.refusal(peer("w"), now=10_000.0) is None
    assert starts.refusal(peer("x"), now=10_000.0) is None


@given(st.lists(st.tuples(st.sampled_from("wxyz"), st.floats(0, 40)), max_size=60))
def test_the_rule_holds_after_any_series_of_deaths_and_keeps_no_more_than_a_window(
    deaths: list[tuple[str, float]],
) -> None:
    starts, now, history = Starts(), 0.0, []
    for name, gap in deaths:
        now += gap
        history.append((now, name))

        starts.died(peer(name), now=now)

        recent = [who for at, who in history if at > now - 60.0]
        assert len(starts._deaths) == len(recent)
        if len(set(recent)) >= 3:
            assert starts.stopped
        if not starts.stopped:
            assert (starts.refusal(peer(name), now=now) is not None) >= (recent.count(name) >= 3)


def test_a_trial_may_always_start_and_its_deaths_count_against_nobody() -> None:
    starts = Starts()
    for name in ("x", "y", "z"):
        starts.died(peer(name), now=0.0)
    assert starts.stopped

    assert starts.refusal(TRIAL, now=1.0) is None

    starts.reopen()
    for second in range(5):
        starts.died(TRIAL, now=float(second))
    assert starts.refusal(TRIAL, now=5.0) is None
    assert starts.paused(now=5.0) == {}


def test_who_is_paused_is_told_with_the_time_that_is_left() -> None:
    starts = Starts()
    for second in (0.0, 1.0, 2.0):
        starts.died(peer("x"), now=second)

    assert starts.paused(now=12.0) == {peer("x"): 50.0}
    assert starts.paused(now=62.0) == {}
