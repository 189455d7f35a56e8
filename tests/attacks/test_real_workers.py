"""A hostile worker, started as the bridge starts them, goes for the machine and for its link.

Each time the same two questions: is it held or ended, with the reason named; and does another peer's worker notice?
"""

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from protocol.spec import Layer, WorkerLimits, WorkerPlan
from supervisor.core.lease import Gone, GoneWhy, Limits, Opened
from tests.attacks import hostile
from tests.attacks.sandboxed import OTHER_UID, OURS, PEER_UID, SHAPES, lacking
from tests.fakes import workers
from tests.fakes.workers import Bench, alive, below, bench, in_a_loop, key

MIB = 1024 * 1024
GONE_S = 10.0  # everything of a tree is gone by then
LIMITS = WorkerLimits(memory_bytes=256 * MIB, processes=32, file_bytes=16 * MIB, open_files=128, cpu_s=60)
HOSTILE, OTHER = key("hostile"), key("other")

# Bombs only where the kernel counts the tree apart: never as plain root, never with everybody's count of processes.
SHAPE = next((name for name in OURS if Layer.PID_NS in SHAPES[name] and not lacking(name)), "")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Linux only"),
    pytest.mark.skipif(not SHAPE, reason="neither a uid nor a namespace of its own can be had here"),
    pytest.mark.timeout(120),
]


def plan(folder: Path, uid: int) -> WorkerPlan:
    layers = SHAPES[SHAPE]
    own = uid if Layer.OWN_UID in layers else None
    made = workers.plan(folder, wanted=layers, required=layers)
    if own is not None:
        for name in ("session", "workspace", "media"):
            os.chown(folder / name, own, own)
    return msgspec.structs.replace(made, limits=LIMITS, uid=own, gid=own)


@contextlib.asynccontextmanager
async def stage(limits: Limits | None = None) -> AsyncIterator[Bench]:
    """Two workers, hostile and other. At the end no process may be left."""
    with tempfile.TemporaryDirectory(prefix="greedy-", dir="/var/tmp") as folder:
        home = Path(folder)
        os.chmod(home, 0o711)
        async with bench(home, code=hostile.entry(), limits=limits) as made:
            for lease, uid in ((HOSTILE, PEER_UID), (OTHER, OTHER_UID)):
                own = home / lease.peer
                own.mkdir(mode=0o711)
                await made.pool.start(lease, plan(own, uid), workers.grant(own))
                await made.until(Opened, lease)
            zygote = made.zygote.pid
            assert zygote is not None
            yield made
        assert not alive(zygote)


async def median_s(made: Bench, *, turns: int = 30) -> float:
    """Of the other one's warm turns."""
    times = []
    for number in range(turns):
        began = time.perf_counter()
        await made.answer(OTHER, f"say {number}", 1000 + number)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def ended(made: Bench) -> tuple[Gone, list[int]]:
    """How the hostile one ended by itself, and which of its processes are still there."""
    tree = below((await made.view(HOSTILE)).nanny_pid)
    gone = await made.until(Gone, HOSTILE)
    return gone, [pid for pid in tree if alive(pid)]


def niceness(pid: int) -> int:
    """Of its session as a whole, among all sessions; 19 where the kernel does not group by session."""
    try:
        words = Path(f"/proc/{pid}/autogroup").read_text(encoding="ascii").split()
    except OSError:
        return 19
    return (
        int(words[-1]) if words else 0
    )  # empty: in no session that the kernel groups, as after a boot without a login


# --- the machine ------------------------------------------------------------------------------------------------


@in_a_loop
async def test_a_fork_bomb_stays_within_its_count_and_is_gone_at_once_when_told() -> None:
    async with stage() as made:
        before = await median_s(made)
        nanny = (await made.view(HOSTILE)).nanny_pid
        made.pool.give(HOSTILE, workers.turn("bomb"))
        await workers.until(lambda: len(below(nanny)) >= LIMITS.processes // 2)

        during = await median_s(made)
        tree = below(nanny)
        began = time.monotonic()
        made.pool.kill(HOSTILE, GoneWhy.STOPPED)
        gone = await made.until(Gone, HOSTILE)

        assert len(tree) <= LIMITS.processes + 8
        assert gone.why is GoneWhy.STOPPED
        assert time.monotonic() - began < GONE_S
        assert [pid for pid in tree if alive(pid)] == []
        assert during < before * 20 + 0.25  # generous: the machine is shared; the benchmark holds the real figure


@in_a_loop
async def test_a_fork_bomb_that_hides_in_sessions_is_ended_by_their_number() -> None:
    async with stage() as made:
        made.pool.give(HOSTILE, workers.turn("bomb sessions"))

        gone, left = await ended(made)

        assert (gone.why, gone.detail.split()[0]) == (GoneWhy.LIMIT, "processes")
        assert left == []
        assert await made.answer(OTHER, "say fine") == "fine"


@pytest.mark.parametrize("kind", ["own", "shared"])
@in_a_loop
async def test_memory_is_the_whole_trees_and_too_much_of_it_ends_the_tree(kind: str) -> None:
    async with stage() as made:
        before = await median_s(made)
        made.pool.give(HOSTILE, workers.turn(f"eat {kind} 64"))

        gone, left = await ended(made)

        assert (gone.why, gone.detail.split()[0]) == (GoneWhy.LIMIT, "memory")
        assert left == []
        assert await median_s(made) < before * 20 + 0.25


@in_a_loop
async def test_memory_that_nobody_would_count_cannot_be_had() -> None:
    async with stage() as made:
        assert await made.answer(HOSTILE, "hide_memory") == "ENOSYS"


@in_a_loop
async def test_spinning_in_many_sessions_slows_no_other_peer_much() -> None:
    async with stage() as made:
        before = await median_s(made)
        assert await made.answer(HOSTILE, "spin 12") == "spinning"

        during = await median_s(made)
        view = await made.view(HOSTILE)
        tree = below(view.nanny_pid)
        await workers.until(lambda: all(niceness(pid) == 19 for pid in tree if pid != view.pid))
        made.pool.kill(HOSTILE, GoneWhy.STOPPED)
        await made.until(Gone, HOSTILE)

        assert len(tree) == 13
        assert [pid for pid in tree if alive(pid)] == []
        assert during < before * 20 + 0.25


@in_a_loop
async def test_descriptors_run_out_for_the_one_who_takes_them() -> None:
    async with stage() as made:
        opened, _, most = (await made.answer(HOSTILE, "open_all")).partition(" of ")

        assert 0 < int(opened) < int(most) == LIMITS.open_files
        assert await made.answer(HOSTILE, "say still here", 2) == "still here"
        assert await made.answer(OTHER, "say fine") == "fine"


@in_a_loop
async def test_what_a_worker_writes_to_its_standard_streams_reaches_nobody(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with stage() as made:
        assert await made.answer(HOSTILE, "log 64") == "written"

    assert "FLOODED" not in "".join(capfd.readouterr())


@in_a_loop
async def test_what_ran_away_and_is_deaf_to_signals_is_gone_with_its_worker() -> None:
    async with stage() as made:
        assert await made.answer(HOSTILE, "run_away") == "gone away"
        tree = below((await made.view(HOSTILE)).nanny_pid)

        began = time.monotonic()
        made.pool.kill(HOSTILE, GoneWhy.STOPPED)
        await made.until(Gone, HOSTILE)

        assert len(tree) == 9
        assert [pid for pid in tree if alive(pid)] == []
        assert time.monotonic() - began < GONE_S


@in_a_loop
async def test_status_names_what_holds_each_limit() -> None:
    async with stage() as made:
        limits = (await made.view(HOSTILE)).limits

        assert limits == {
            "memory": "watched",
            "processes": "capped",
            "cpu": "watched",
            "disk": "watched",
            "network": "none",
        }


# --- the link ---------------------------------------------------------------------------------------------------

UNFINISHED = {"half_a_frame", "half_a_header"}
SLOW = {"pulses_without_end"}


@pytest.mark.parametrize("words", sorted(hostile.WORDS.keys() - UNFINISHED - SLOW))
@in_a_loop
async def test_words_that_a_worker_may_not_say_end_it_are_counted_and_disturb_nobody(words: str) -> None:
    async with stage() as made:
        made.pool.give(HOSTILE, workers.turn(words))

        gone, left = await ended(made)

        assert gone.why is GoneWhy.VIOLATION, gone
        assert gone.detail
        assert made.pool.violations == 1
        assert left == []
        assert await made.answer(OTHER, "say fine") == "fine"


@pytest.mark.parametrize("words", sorted(UNFINISHED))
@in_a_loop
async def test_a_frame_that_never_ends_is_silence(words: str) -> None:
    async with stage(Limits(hang_s=2.0)) as made:
        made.pool.give(HOSTILE, workers.turn(words))

        gone, left = await ended(made)

        # The pulses that the loop still sends may land inside the frame: then it is garbage.
        assert gone.why in (GoneWhy.HUNG, GoneWhy.VIOLATION)
        assert left == []
        assert await made.answer(OTHER, "say fine") == "fine"


@in_a_loop
async def test_frames_without_end_are_read_at_their_rate_and_disturb_nobody() -> None:
    async with stage() as made:
        before = await median_s(made)
        made.pool.give(HOSTILE, workers.turn("pulses_without_end"))
        await asyncio.sleep(0)

        during = await median_s(made, turns=100)

        assert during < before * 20 + 0.25
        assert not any(isinstance(event, Gone) for event in made.events)
