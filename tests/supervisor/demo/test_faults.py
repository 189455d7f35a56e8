"""The panel: which switch strikes when."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.demo import faults
from supervisor.demo.faults import Known, Panel


@given(after=st.integers(0, 5), times=st.none() | st.integers(0, 5), chances=st.integers(0, 15))
def test_a_switch_lets_some_go_by_and_then_strikes_so_many(after: int, times: int | None, chances: int) -> None:
    panel = Panel()
    panel.set(faults.RejectSend(after=after, times=times))

    struck = [panel.strike(faults.RejectSend, "b") is not None for _ in range(chances)]

    due = [at >= after and (times is None or at < after + times) for at in range(chances)]
    assert struck == due


def test_a_switch_for_one_bot_leaves_the_others_alone() -> None:
    panel = Panel()
    panel.set(faults.RetZero(bot="a"))

    assert panel.strike(faults.RetZero, "b") is None
    assert panel.on(faults.RetZero, "a") is not None


def test_a_wire_switch_strikes_its_own_path_only() -> None:
    panel = Panel()
    panel.set(faults.HttpStatus(path="sendmessage", status=502))

    assert panel.strike(faults.WireSwitch, "a", path="getupdates") is None
    assert panel.strike(faults.WireSwitch, "a", path="sendmessage") == faults.HttpStatus(path="sendmessage", status=502)


def test_switches_are_cleared_by_number_by_name_and_all() -> None:
    panel = Panel()
    first = panel.set(faults.RetZero())
    panel.set(faults.RetZero())
    panel.set(faults.NoHold())

    assert panel.clear(number=first) == 1
    assert panel.clear(name="ret_zero") == 1
    assert [row["switch"]["name"] for row in panel.listing()] == ["no_hold"]
    assert panel.clear() == 1


def test_notifystart_revives_only_a_bot_that_was_struck() -> None:
    panel = Panel()
    panel.set(faults.StaleSession(until="notifystart"))
    panel.revive("a")
    assert panel.strike(faults.StaleSession, "a", path="getupdates") is not None

    panel.revive("a")

    assert panel.strike(faults.StaleSession, "a", path="getupdates") is None
    assert panel.strike(faults.StaleSession, "b", path="getupdates") is not None


@pytest.mark.parametrize("kind", get_args(Known), ids=lambda kind: kind.__struct_config__.tag)
def test_every_switch_can_be_set_by_its_name_alone(kind: type[faults.Switch]) -> None:
    name = kind.__struct_config__.tag

    assert msgspec.convert({"name": name}, Known) == kind()
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": name, "no_such_parameter": 1}, Known)
