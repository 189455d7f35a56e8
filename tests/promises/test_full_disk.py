"""A full disk stops the polling, says why, and goes on by itself: nothing that was handed over is lost."""

from collections.abc import Callable
from pathlib import Path

from tests.fakes.stage import Stage

Stages = Callable[..., Stage]


def fill(place: Path) -> Path:
    """Take every last byte."""
    padding = place / "padding"
    with padding.open("wb", buffering=0) as file:
        block = 1 << 20
        while block:
            try:
                file.write(b"\0" * block)
            except OSError:
                block //= 2
    return padding


def test_a_batch_that_cannot_be_recorded_is_kept_and_recorded_once_there_is_room(
    stage: Stages, small_disk: Path
) -> None:
    """B-067"""
    with stage(home=small_disk / "home", settings="[workers]\nmin_free_mb = 0") as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "before")
        padding = fill(small_disk)

        words = [f"{number} while full: " + "x" * 1500 for number in range(6)]
        bridge.say_at_once(*((bridge.me, word) for word in words[:3]))
        bridge.bridge.wait_log("journal_unavailable|disk|unrecorded|record", timeout_s=30)
        bridge.wechat.wait_for(lambda view: view.polls_in_flight() == 0)
        bridge.say_at_once(*((bridge.me, word) for word in words[3:]))
        (account,) = bridge.bridge.wait_status(lambda status: bool(status["accounts"][0]["last_error"]))["accounts"]
        assert "full" in account["last_error"] or "disk" in account["last_error"] or "record" in account["last_error"]
        padding.unlink()

        assert bridge.hears(bridge.me, words[-1]) == ["before", *words]
        assert bridge.wechat.view().polls_in_flight() <= 1
        counters = bridge.counters()
        assert (counters["received"], counters["turns_answered"]) == (7, 7)
        assert bridge.bridge.status()["accounts"][0]["last_error"] is None
