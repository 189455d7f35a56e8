"""Peers are served in turn, each in the order of what it brought."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import AccountId, PeerId, PeerKey
from supervisor.core.turnwise import Turnwise

A, B, C = (PeerKey(AccountId("me"), PeerId(name)) for name in "abc")


def test_who_brings_much_waits_behind_himself_alone() -> None:
    queue: Turnwise[str] = Turnwise()
    for number in range(4):
        queue.put(A, f"a{number}")
    queue.put(B, "b0")

    assert [queue.take() for _ in range(2)] == ["a0", "b0"]
    queue.put(C, "c0")
    assert [queue.take() for _ in range(4)] == ["a1", "c0", "a2", "a3"]
    assert not queue and queue.next() is None


@given(st.lists(st.sampled_from([A, B, C, None])))
def test_nothing_is_lost_each_peers_order_stays_and_what_was_next_is_taken(steps: list[PeerKey | None]) -> None:
    """None takes one."""
    queue: Turnwise[tuple[PeerKey, int]] = Turnwise()
    taken: list[tuple[PeerKey, int]] = []
    for number, who in enumerate(steps):
        if who is not None:
            named = queue.next()
            queue.put(who, (who, number))
            assert named in (None, queue.next()), "the row that is marked next stays next"
        elif queue:
            named = queue.next()
            taken.append(queue.take())
            assert taken[-1] == named
    left = list(queue)

    everything = [*taken, *left]
    assert sorted(everything, key=lambda one: one[1]) == [(who, n) for n, who in enumerate(steps) if who is not None]
    for who in (A, B, C):
        mine = [number for of, number in everything if of == who]
        assert mine == sorted(mine)
