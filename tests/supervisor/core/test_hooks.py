"""hooks: which event calls which, and when a failing poll is an outage."""

import pytest

from supervisor.core.hooks import OUTAGE_S, Hook, Hooks, Run, Told


def told(event: str, account: str = "me", **data: object) -> Told:
    return Told(event, 1.0, account, data=data)


@pytest.mark.parametrize(
    ("event", "hook"),
    [
        ("account_expired", Hook.EXPIRED),
        ("crash_loop_began", Hook.CRASH_LOOP),
        ("message_dead", Hook.DEAD_LETTER),
        ("parts_dead", Hook.DEAD_LETTER),
    ],
)
def test_an_event_calls_its_hook(event: str, hook: Hook) -> None:
    one = told(event)

    assert Hooks().step(one, 0.0) == (Run(hook, one),)


def test_other_events_call_none() -> None:
    hooks = Hooks()

    assert hooks.step(told("turn_started"), 0.0) == ()
    assert hooks.wake_at() is None


def test_ten_minutes_without_a_good_poll_are_told_once_and_their_end_with_its_length() -> None:
    hooks, began, ended = Hooks(), told("poll_outage_began"), told("poll_outage_ended", after_s=700.0)
    hooks.step(began, 100.0)

    assert hooks.wake_at() == 100.0 + OUTAGE_S
    assert hooks.step(None, 100.0 + OUTAGE_S - 0.1) == ()
    assert hooks.step(None, 100.0 + OUTAGE_S) == (Run(Hook.OUTAGE, began),)
    assert hooks.wake_at() is None
    assert hooks.step(None, 100.0 + 2 * OUTAGE_S) == ()
    assert hooks.step(ended, 800.0) == (Run(Hook.OUTAGE, ended),)


def test_a_shorter_outage_is_nobodys_business() -> None:
    hooks = Hooks()
    hooks.step(told("poll_outage_began"), 0.0)

    assert hooks.step(told("poll_outage_ended", after_s=60.0), 60.0) == ()
    assert hooks.wake_at() is None
    assert hooks.step(None, 2 * OUTAGE_S) == ()


def test_each_account_has_an_outage_of_its_own() -> None:
    hooks = Hooks()
    hooks.step(told("poll_outage_began", "a"), 0.0)
    hooks.step(told("poll_outage_began", "b"), 10.0)

    assert [run.told.account for run in hooks.step(None, OUTAGE_S)] == ["a"]
    assert [run.told.account for run in hooks.step(None, OUTAGE_S + 10)] == ["b"]
