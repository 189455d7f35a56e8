"""Whatever was open when the supervisor died has exactly one thing happen to it, and the same after a second death."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import AccountId, MessageId, PeerId, PeerKey, SendKey
from supervisor.core.recovery import Handle, Interrupt, Order, RunAgain, SetAside, recover
from supervisor.core.states import (
    OPEN_MESSAGES,
    OPEN_PARTS,
    MessageRow,
    MessageState,
    PartKind,
    PartRow,
    PartState,
)

ALICE = PeerKey(AccountId("owner"), PeerId("alice"))
BOB = PeerKey(AccountId("owner"), PeerId("bob"))


def message(row: int, state: MessageState, *, who: PeerKey = ALICE, handled: int = 1, text: str = "hi") -> MessageRow:
    return MessageRow(
        row=row,
        who=who,
        message_id=MessageId(str(row)),
        created_at_ms=None,
        received_at=1.0,
        raw=b"{}",
        state=state,
        handled=handled,
        text=text,
        late=False,
        generation=None,
    )


def part(
    row: int | None, kind: PartKind, state: PartState = PartState.PENDING, *, key: str = "k", who: PeerKey = ALICE
) -> PartRow:
    return PartRow(
        send_key=SendKey(key),
        who=who,
        message_row=row,
        order=1,
        kind=kind,
        text="x",
        state=state,
        attempts=0,
        message_id=None,
    )


@pytest.mark.parametrize(
    ("state", "handled", "order"),
    [
        (MessageState.RECEIVED, 0, Handle(1)),
        (MessageState.RECEIVED, 1, Handle(1)),
        (MessageState.RECEIVED, 2, SetAside(1, ALICE)),
        (MessageState.RECEIVED, 3, SetAside(1, ALICE)),
        (MessageState.QUEUED, 1, RunAgain(1, ALICE)),
        (MessageState.QUEUED, 5, RunAgain(1, ALICE)),
        (MessageState.RUNNING, 1, Interrupt(1, ALICE, told=False, earlier="hi")),
        (MessageState.ASKING, 1, Interrupt(1, ALICE, told=False, earlier="hi")),
    ],
)
def test_each_open_state_has_one_order(state: MessageState, handled: int, order: Order) -> None:
    assert recover([message(1, state, handled=handled)], []) == (order,)


@pytest.mark.parametrize("state", [state for state in MessageState if state not in OPEN_MESSAGES])
def test_a_closed_message_is_not_recovered(state: MessageState) -> None:
    with pytest.raises(ValueError, match=f"message 1 is {state}"):
        recover([message(1, state)], [])


@pytest.mark.parametrize(("kind", "state"), list(product(PartKind, OPEN_PARTS)))
def test_a_peer_with_an_outcome_line_on_its_way_is_not_told_twice(kind: PartKind, state: PartState) -> None:
    parts = [part(1, kind, state), part(None, PartKind.OUTCOME, state, key="other")]

    orders = recover([message(1, MessageState.RUNNING), message(2, MessageState.RUNNING, who=BOB)], parts)

    assert orders == (
        Interrupt(1, ALICE, told=kind is PartKind.OUTCOME, earlier="hi"),
        Interrupt(2, BOB, told=False, earlier="hi"),
    )


def test_lines_come_before_what_runs_next_and_order_is_kept() -> None:
    orders = recover(
        [
            message(7, MessageState.RECEIVED, handled=0),
            message(5, MessageState.QUEUED),
            message(6, MessageState.RECEIVED, handled=2),
            message(4, MessageState.QUEUED, who=BOB),
            message(3, MessageState.RUNNING),
        ],
        [],
    )

    assert orders == (
        Interrupt(3, ALICE, told=False, earlier="hi"),
        SetAside(6, ALICE),
        RunAgain(4, BOB),
        RunAgain(5, ALICE),
        Handle(7),
    )


def carried_out(found: list[MessageRow], orders: tuple[Order, ...], dies_after: int) -> list[MessageRow]:
    """The journal after the first orders were carried out and the supervisor died again."""
    rows = {row.row: row for row in found}
    for order in orders[:dies_after]:
        match order:
            case Interrupt(row=row):
                rows[row] = replace(rows[row], state=MessageState.INTERRUPTED)
            case SetAside(row=row):
                rows[row] = replace(rows[row], state=MessageState.DEAD)
            case Handle(row=row):
                rows[row] = replace(rows[row], handled=rows[row].handled + 1)
            case RunAgain():
                pass  # waits in memory only
    return [row for row in rows.values() if row.state in OPEN_MESSAGES]


journals = st.lists(
    st.builds(
        message,
        row=st.integers(1, 40),
        state=st.sampled_from(OPEN_MESSAGES),
        who=st.sampled_from([ALICE, BOB]),
        handled=st.integers(0, 3),
    ),
    max_size=12,
    unique_by=lambda row: row.row,
)


@given(found=journals)
def test_every_open_message_gets_exactly_one_order(found: list[MessageRow]) -> None:
    orders = recover(found, [])

    assert sorted(order.row for order in orders) == sorted(row.row for row in found)


@given(found=journals)
def test_each_peers_waiting_messages_keep_their_order(found: list[MessageRow]) -> None:
    for kind in (RunAgain, Handle, Interrupt):
        rows = [order.row for order in recover(found, []) if isinstance(order, kind)]

        assert rows == sorted(rows)


@given(found=journals, dies_after=st.integers(0, 12))
def test_b036_a_death_while_recovering_tells_nobody_twice_and_forgets_nobody(
    found: list[MessageRow], dies_after: int
) -> None:
    first = recover(found, [])
    left = carried_out(found, first, dies_after)

    second = recover(left, [])

    lines = [order.row for order in (*first[:dies_after], *second) if isinstance(order, Interrupt | SetAside)]
    assert len(lines) == len(set(lines))
    assert {order.row for order in first[dies_after:]} <= {order.row for order in second}


@given(found=journals)
def test_a_message_that_kills_its_supervisor_is_set_aside_after_two_deaths(found: list[MessageRow]) -> None:
    """Whatever it was, nothing is handled for ever."""
    deaths = 0
    while handled := [order for order in recover(found, []) if isinstance(order, Handle)]:
        deaths += 1
        orders = recover(found, [])
        found = carried_out(found, orders, orders.index(handled[0]) + 1)
        assert deaths <= 2 * 12 + 1
