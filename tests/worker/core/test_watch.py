"""core/watch: when a tree has gone too far, and how often it is looked at."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.to_supervisor import Limit
from worker.core.watch import (
    IDLE_S,
    LEFT_S,
    MIB,
    MOVING_S,
    SESSIONS,
    SLACK_TASKS,
    STILL_S,
    Bounds,
    Demote,
    Overrun,
    Reap,
    Seen,
    Watch,
    Weigh,
)

WORKER = 100
BOUNDS = Bounds(memory_bytes=100 * MIB, tasks=10)


def watch() -> Watch:
    return Watch(WORKER, BOUNDS, now=0.0)


def one(
    pid: int = WORKER, *, session: int = WORKER, tasks: int = 1, mib: int = 1, cpu_s: float = 0.0, started: int = 1
) -> Seen:
    return Seen(pid, started, session, tasks, mib * MIB, cpu_s)


def test_an_ordinary_tree_is_left_alone() -> None:
    assert watch().looked([one(), one(101)], took_s=0.0, now=1.0) == ()


def test_threads_count_like_processes() -> None:
    at_most = BOUNDS.tasks + SLACK_TASKS

    assert watch().looked([one(tasks=at_most)], took_s=0.0, now=1.0) == ()
    assert watch().looked([one(), one(101, tasks=at_most)], took_s=0.0, now=1.0) == (
        Overrun(Limit.PROCESSES, f"{at_most + 1} of {BOUNDS.tasks}"),
    )


def test_a_tree_of_too_many_sessions_ends() -> None:
    tree = [one(), *(one(200 + n, session=200 + n, tasks=0) for n in range(SESSIONS))]

    assert watch().looked(tree[:-1], took_s=0.0, now=1.0)[0] == Demote(200, 200)
    assert watch().looked(tree, took_s=0.0, now=1.0) == (Overrun(Limit.PROCESSES, f"{SESSIONS + 1} sessions of 16"),)


def test_memory_is_weighed_before_it_is_judged() -> None:
    core = watch()

    assert core.looked([one(mib=60), one(101, mib=40)], took_s=0.0, now=1.0) == ()
    assert core.looked([one(mib=60), one(101, mib=41)], took_s=0.0, now=2.0) == (Weigh((WORKER, 101)),)
    assert core.weighed(100 * MIB) is None
    assert core.weighed(101 * MIB) == Overrun(Limit.MEMORY, "101 MiB of 100")


def test_a_new_session_is_demoted_until_that_worked_and_the_workers_own_never() -> None:
    core = watch()
    tree = [one(), one(101, session=101)]

    assert core.looked(tree, took_s=0.0, now=1.0) == (Demote(101, 101),)
    assert core.looked(tree, took_s=0.0, now=2.0) == (Demote(101, 101),)
    core.demoted(101)
    assert core.looked(tree, took_s=0.0, now=3.0) == ()
    assert core.looked([one()], took_s=0.0, now=4.0) == ()
    assert core.looked(tree, took_s=0.0, now=5.0) == (Demote(101, 101),)  # another session with the same number


def test_what_a_turn_left_behind_may_stay_unless_it_goes_on_using_the_processor() -> None:
    core = watch()
    core.looked([one(), one(101), one(102)], took_s=0.0, now=0.0)

    effects = core.looked([one(), one(101, cpu_s=6.1), one(102, cpu_s=5.9)], took_s=0.0, now=LEFT_S)

    assert effects == (Reap(101),)


def test_a_worker_that_spins_without_a_turn_is_ended() -> None:
    core = watch()
    core.looked([one()], took_s=0.0, now=0.0)

    assert core.looked([one(cpu_s=60.0)], took_s=0.0, now=LEFT_S) == (
        Overrun(Limit.CPU, "100% of a core without a turn"),
    )


def test_while_a_turn_runs_the_processor_is_its_own_and_the_time_after_it_counts_anew() -> None:
    core = watch()
    core.turn_began(now=0.0)
    core.looked([one(), one(101)], took_s=0.0, now=0.0)
    assert core.looked([one(), one(101, cpu_s=600.0)], took_s=0.0, now=600.0) == ()

    core.turn_ended(now=600.0)
    core.looked([one(), one(101, cpu_s=600.0)], took_s=0.0, now=600.1)

    assert core.looked([one(), one(101, cpu_s=605.0)], took_s=0.0, now=600.0 + LEFT_S) == ()


def test_another_process_with_the_same_pid_is_not_charged_for_the_first_one() -> None:
    core = watch()
    core.looked([one(), one(101, cpu_s=0.0)], took_s=0.0, now=0.0)

    assert core.looked([one(), one(101, started=2, cpu_s=50.0)], took_s=0.0, now=LEFT_S) == ()


def test_a_tree_is_looked_at_more_often_the_more_it_does() -> None:
    core = watch()

    core.looked([one()], took_s=0.0, now=10.0)
    assert core.wake_at() == 10.0 + IDLE_S
    core.looked([one(cpu_s=0.5)], took_s=0.0, now=11.0)
    assert core.wake_at() == 11.0 + MOVING_S
    core.turn_began(now=12.0)
    core.looked([one(cpu_s=0.5)], took_s=0.0, now=13.0)
    assert core.wake_at() == 13.0 + STILL_S


def test_a_turn_that_begins_is_looked_at_soon() -> None:
    core = watch()
    core.looked([one()], took_s=0.0, now=10.0)

    core.turn_began(now=10.1)

    assert core.wake_at() == 10.1 + MOVING_S


@given(took_s=st.floats(0.0, 10.0))
def test_looking_never_takes_more_than_its_share(took_s: float) -> None:
    core = watch()

    core.looked([one(cpu_s=5.0)], took_s=took_s, now=100.0)

    assert took_s <= 0.0201 * (core.wake_at() - 100.0)
