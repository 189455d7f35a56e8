"""core/watch: growth, a disk that runs full, and idle workers that take too much memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import LeaseKey
from supervisor.core.watch import (
    GROWING_BYTES,
    LOOKS,
    MIB,
    Bounds,
    Count,
    HoldTurns,
    Kill,
    LetTurns,
    MachineWatch,
    Shed,
    Tree,
    Warm,
    too_warm,
)
from tests.fakes.workers import key

A, B = key("a"), key("b")
BOUNDS = Bounds(disk_bytes=100 * MIB, min_free_bytes=50 * MIB, warm_bytes=100 * MIB)
FREE = 1000 * MIB


def watch(*known: LeaseKey) -> MachineWatch:
    core = MachineWatch()
    core.is_due(FREE, known, BOUNDS)
    return core


def test_trees_are_asked_only_when_the_disk_loses_space_or_now_and_then() -> None:
    core = watch(A)

    assert not core.is_due(FREE - MIB, [A], BOUNDS)
    assert core.is_due(FREE - 10 * MIB, [A], BOUNDS)
    core.looked(FREE - 10 * MIB, [Tree(A, 0)], BOUNDS)
    assert not core.is_due(FREE - 11 * MIB, [A], BOUNDS)
    assert any(core.is_due(FREE, [A], BOUNDS) for _ in range(LOOKS))


def test_a_tree_is_counted_each_time_it_has_written_a_part_of_its_limit() -> None:
    core = watch(A, B)

    assert core.looked(FREE, [Tree(A, 13 * MIB), Tree(B, MIB)], BOUNDS) == (Count(A),)
    assert core.looked(FREE, [Tree(A, 20 * MIB), Tree(B, MIB)], BOUNDS) == ()
    assert core.looked(FREE, [Tree(A, 26 * MIB), Tree(B, 26 * MIB)], BOUNDS) == (Count(A), Count(B))


def test_folders_over_their_limit_end_their_tree() -> None:
    core = watch(A)

    assert core.counted(A, 100 * MIB, BOUNDS) is None
    assert core.counted(A, 101 * MIB, BOUNDS) == Kill(A, "101 MiB of 100")
    assert core.counted(B, 101 * MIB, BOUNDS) is None, "it has gone while it was counted"


def test_who_only_writes_the_same_again_is_no_offender() -> None:
    core = watch(A)

    assert core.looked(FREE, [Tree(A, 500 * MIB)], BOUNDS) == (Count(A),)


def test_what_has_no_name_in_any_folder_shows_in_what_was_written_and_lost() -> None:
    core = watch(A, B)

    effects = core.looked(FREE - 101 * MIB, [Tree(A, 101 * MIB), Tree(B, 1 * MIB)], BOUNDS)

    assert effects == (Kill(A, "101 MiB written of 100"),)


def test_a_tree_that_hides_what_it_writes_is_charged_for_what_the_disk_lost() -> None:
    core = watch(A)

    assert core.looked(FREE - 50 * MIB, [Tree(A, None)], BOUNDS) == (Count(A),)
    assert core.looked(FREE - 101 * MIB, [Tree(A, None)], BOUNDS) == (Kill(A, "101 MiB written of 100"),)


def test_below_the_reserve_no_turn_begins_and_what_still_writes_ends() -> None:
    core = watch(A, B)
    core.looked(60 * MIB, [Tree(A, 10 * MIB), Tree(B, 10 * MIB)], BOUNDS)

    full = core.looked(49 * MIB, [Tree(A, 10 * MIB + GROWING_BYTES), Tree(B, 10 * MIB)], BOUNDS)
    again = core.looked(49 * MIB, [Tree(B, 10 * MIB)], BOUNDS)

    assert full == (HoldTurns(49 * MIB), Kill(A, "49 MiB are free, and it writes"))
    assert again == ()
    assert core.holding


def test_turns_begin_again_once_there_is_clearly_room() -> None:
    core = watch()
    core.looked(49 * MIB, [], BOUNDS)

    assert core.looked(51 * MIB, [], BOUNDS) == ()
    assert core.is_due(51 * MIB, [], BOUNDS), "as long as turns are held, each look counts"
    assert core.looked(56 * MIB, [], BOUNDS) == (LetTurns(56 * MIB),)
    assert not core.holding


def test_an_earlier_workers_losses_are_not_the_next_ones() -> None:
    core = watch(A)
    core.looked(FREE - 90 * MIB, [Tree(A, 90 * MIB)], BOUNDS)
    later = key("a", 2)

    core.is_due(FREE - 90 * MIB, [later], BOUNDS)

    assert core.looked(FREE - 110 * MIB, [Tree(later, 12 * MIB)], BOUNDS) == ()


def test_the_longest_idle_go_first_until_the_others_fit() -> None:
    idle = [Warm(key("young"), 1.0, 60 * MIB), Warm(key("old"), 9.0, 30 * MIB), Warm(key("middle"), 5.0, 30 * MIB)]

    assert too_warm(idle, BOUNDS) == (Shed(key("old")),)
    assert too_warm(idle[1:], BOUNDS) == ()


@given(sizes=st.lists(st.integers(0, 80), max_size=12))
def test_what_stays_warm_fits_and_no_more_leave_than_must(sizes: list[int]) -> None:
    idle = [Warm(key(f"p{n}"), float(n), size * MIB) for n, size in enumerate(sizes)]

    gone = {shed.key for shed in too_warm(idle, BOUNDS)}

    stays = sum(warm.bytes for warm in idle if warm.key not in gone)
    assert stays <= BOUNDS.warm_bytes
    if gone:
        last = min((warm for warm in idle if warm.key in gone), key=lambda warm: warm.idle_s)
        assert stays + last.bytes > BOUNDS.warm_bytes or last.bytes == 0


@pytest.mark.parametrize("free", [0, 49 * MIB])
def test_a_full_disk_is_due_at_every_look(free: int) -> None:
    core = watch(A)

    assert all(core.is_due(free, [A], BOUNDS) for _ in range(5))
