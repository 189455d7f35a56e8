"""pool: real zygote, real nannies, real ZeroMQ. Each worker does what its turn tells it (tests/fakes/workers.py)."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from protocol.ids import DialogId, LeaseKey, TurnId
from protocol.spec import Layer, NannyKeys
from protocol.to_supervisor import PieceMade, TurnEnded
from protocol.to_worker import AnswerDialog, Typed
from supervisor.core.lease import Gone, GoneWhy, LeaseState, Limits, Said
from supervisor.pool import StartFailed, StartRefused, untrue_layers
from tests.fakes import workers
from tests.fakes.memory import memory_holds
from tests.fakes.workers import BARE, WALLED, alive, below, bench, in_a_loop, key, until

BOTH = pytest.mark.parametrize("wanted", [BARE, WALLED], ids=["bare", "walled"])


def read(pid: int | None, name: str) -> bytes:
    """Empty where an ordinary user may not look, which is as it should be."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except PermissionError:
        return b""


def count_open(pid: int) -> int:
    """Descriptors of a process; 0 where an ordinary user may not look."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        return 0


# --- a life in order ------------------------------------------------------------------------------------------


@BOTH
@in_a_loop
async def test_a_worker_comes_up_answers_and_leaves(tmp_path: Path, wanted: Sequence[Layer]) -> None:
    async with bench(tmp_path, behaviour=None) as b:
        opened = await b.started(key(), wanted=wanted)

        answers = [await b.answer(key(), text, number) for number, text in enumerate(("one", "two"))]
        b.pool.leave(key())

        assert answers == ["one", "two"]
        assert opened.agent == "echo 1"
        assert (await b.until(Gone, key())).why is GoneWhy.LEFT
        assert [type(event) for event in b.events].count(Gone) == 1


@in_a_loop
async def test_status_shows_what_was_achieved_and_what_was_not(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.started(key(generation=4), wanted=(*BARE, Layer.SECCOMP, Layer.CGROUP))

        view = await b.view(key())

        assert view.key.generation == 4
        assert view.state is LeaseState.IDLE
        assert set(view.layers) == {*BARE, Layer.SECCOMP}
        assert view.missing == (Layer.CGROUP,)
        assert psutil.Process(view.pid).ppid() == view.nanny_pid
        assert view.rss_bytes > 1_000_000


@in_a_loop
async def test_the_kernel_confirms_the_walls(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.started(key(), wanted=WALLED)

        view = await b.view(key())
        status = read(view.pid, "status").decode()

        for layer, line in (
            (Layer.NO_NEW_PRIVS, "NoNewPrivs:\t1"),
            (Layer.SECCOMP, "Seccomp:\t2"),
            (Layer.PID_NS, f"NSpid:\t{view.pid}\t1"),
        ):
            assert (layer in view.layers) is (line in status)


@in_a_loop
async def test_the_last_words_of_a_worker_that_dies_behind_them_are_all_heard_first(tmp_path: Path) -> None:
    async with bench(tmp_path, "talks_and_dies") as b:
        for generation in range(10):
            lease = key(generation=generation)
            await b.started(lease)

            b.pool.give(lease, workers.turn("go"))
            gone = await b.until(Gone, lease)

            said = [event.message for event in b.events if isinstance(event, Said) and event.key == lease]
            assert [piece.number for piece in said if isinstance(piece, PieceMade)] == list(range(200))
            assert isinstance(said[-1], TurnEnded)
            assert (gone.why, gone.detail) == (GoneWhy.CRASHED, "exit 7")


@in_a_loop
async def test_a_hundred_lives_leave_no_process_no_descriptor_and_no_file(tmp_path: Path) -> None:
    """B-070: each of them ready in time."""
    async with bench(tmp_path) as b:
        await b.started(key())
        b.pool.leave(key())
        await b.until(Gone, key())

        async def counted() -> tuple[int, int, int, int]:
            zygote = b.zygote.pid
            assert zygote is not None
            await until(lambda: below(zygote) == [])
            gc.collect()  # of what other tests of this process have left, which else goes some time in between
            files = sum(len(names) for _, _, names in os.walk(tmp_path))
            return count_open(os.getpid()), count_open(zygote), len(below(zygote)), files

        before = await counted()
        for generation in range(100):
            lease = key(generation=generation + 10)
            await b.started(lease)
            (b.pool.leave if generation % 2 else lambda lease: b.pool.kill(lease, GoneWhy.STOPPED))(lease)
            await b.until(Gone, lease)

        assert await counted() == before


@in_a_loop
async def test_closing_in_the_middle_of_turns_and_starts_leaves_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.started(key("busy"))
        await b.started(key("idle"))
        b.pool.give(key("busy"), workers.turn("wait"))
        await b.pool.start(key("starting"), workers.plan(tmp_path), workers.grant(tmp_path))
        zygote = b.zygote.pid
        assert zygote is not None

        await b.pool.close()

        assert {event.key.peer for event in b.events if isinstance(event, Gone)} == {"busy", "idle", "starting"}
        assert not alive(zygote)
        with pytest.raises(StartFailed):
            await b.pool.start(key("late"), workers.plan(tmp_path), workers.grant(tmp_path))


# --- deaths ---------------------------------------------------------------------------------------------------


@BOTH
@in_a_loop
async def test_a_killed_worker_costs_only_its_own_peer(tmp_path: Path, wanted: Sequence[Layer]) -> None:
    async with bench(tmp_path) as b:
        await b.started(key("victim"), wanted=wanted)
        await b.started(key("other"), wanted=wanted)
        victim = await b.view(key("victim"))

        os.kill(victim.pid, signal.SIGKILL)
        gone = await b.until(Gone, key("victim"))

        assert (gone.why, gone.detail) == (GoneWhy.CRASHED, "exit -9")
        assert not alive(victim.nanny_pid)
        assert await b.answer(key("other"), "say still here") == "still here"


@BOTH
@in_a_loop
async def test_a_killed_nanny_takes_its_whole_tree_along(tmp_path: Path, wanted: Sequence[Layer]) -> None:
    async with bench(tmp_path) as b:
        await b.started(key(), wanted=wanted)
        await b.answer(key(), "daemon")
        view = await b.view(key())
        tree = below(view.nanny_pid)
        assert len(tree) == 2

        os.kill(view.nanny_pid, signal.SIGKILL)
        gone = await b.until(Gone, key())

        assert gone.why is GoneWhy.CRASHED
        assert [pid for pid in tree if alive(pid)] == []


@in_a_loop
async def test_a_killed_zygote_touches_no_running_worker_and_the_next_start_has_a_new_one(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.started(key("old"))
        first = b.zygote.pid
        assert first is not None

        os.kill(first, signal.SIGKILL)
        await until(lambda: not alive(first))
        answer = await b.answer(key("old"), "say unharmed")
        await b.started(key("new"))
        view = await b.view(key("old"))
        b.pool.leave(key("old"))
        left = await b.until(Gone, key("old"))

        assert answer == "unharmed"
        assert b.zygote.pid != first
        assert await b.answer(key("new"), "say hello") == "hello"
        assert left.why is GoneWhy.LEFT
        assert not alive(view.nanny_pid)


@BOTH
@in_a_loop
async def test_a_tree_that_hid_in_sessions_of_its_own_is_gone_after_the_kill(
    tmp_path: Path, wanted: Sequence[Layer]
) -> None:
    async with bench(tmp_path) as b:
        await b.started(key(), wanted=wanted)
        for number in range(3):
            await b.answer(key(), "daemon", number)
        tree = below((await b.view(key())).nanny_pid)
        assert len(tree) == 4

        b.pool.kill(key(), GoneWhy.STOPPED)
        gone = await b.until(Gone, key())

        assert gone.why is GoneWhy.STOPPED
        assert [pid for pid in tree if alive(pid)] == []


@BOTH
@in_a_loop
async def test_orphans_that_end_are_reaped(tmp_path: Path, wanted: Sequence[Layer]) -> None:
    async with bench(tmp_path) as b:
        await b.started(key(), wanted=wanted)

        await b.answer(key(), "orphan 10")

        root = psutil.Process((await b.view(key())).nanny_pid)
        await until(lambda: len(root.children(recursive=True)) == 1)


PLAYS_SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from protocol.spec import Layer
from tests.fakes import workers

async def main():
    wanted = workers.WALLED if sys.argv[2] == "walled" else workers.BARE
    async with workers.bench(Path(sys.argv[1])) as b:
        pids = [b.zygote.pid]
        for peer in ("a", "b"):
            await b.started(workers.key(peer), wanted=wanted)
            await b.answer(workers.key(peer), "daemon")
            view = await b.view(workers.key(peer))
            pids += [view.nanny_pid, *workers.below(view.nanny_pid)]
        b.pool.give(workers.key("a"), workers.turn("sleep 3600", 2))
        print(*pids, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("wanted", ["bare", "walled"])
def test_a_killed_supervisor_leaves_no_process(tmp_path: Path, wanted: str) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", PLAYS_SUPERVISOR, str(tmp_path), wanted],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": workers.ROOT},
    )
    with supervisor:
        assert supervisor.stdout is not None
        pids = [int(word) for word in supervisor.stdout.readline().split()]
        assert len(pids) == 7  # zygote, and twice nanny, worker, daemon
        assert all(alive(pid) for pid in pids)

        supervisor.kill()

    asyncio.run(until(lambda: not any(alive(pid) for pid in pids)))


# --- watches --------------------------------------------------------------------------------------------------


@in_a_loop
async def test_a_worker_whose_loop_hangs_is_found_by_its_silence(tmp_path: Path) -> None:
    async with bench(tmp_path, limits=Limits(hang_s=2.5)) as b:
        await b.started(key())

        b.pool.give(key(), workers.turn("sleep 3600"))

        assert (await b.until(Gone, key())).why is GoneWhy.HUNG


@in_a_loop
async def test_a_worker_that_pulses_may_work_for_as_long_as_it_likes(tmp_path: Path) -> None:
    async with bench(tmp_path, limits=Limits(hang_s=2.5)) as b:
        await b.started(key("long"))
        await b.started(key("hung"))

        b.pool.give(key("long"), workers.turn("wait"))
        b.pool.give(key("hung"), workers.turn("sleep 3600"))
        await b.until(Gone, key("hung"))

        assert (await b.view(key("long"))).state is LeaseState.BUSY


@in_a_loop
async def test_a_loop_that_was_away_itself_kills_nobody_for_it(tmp_path: Path) -> None:
    async with bench(tmp_path, limits=Limits(hang_s=2.5)) as b:
        await b.started(key())
        b.pool.give(key(), workers.turn("wait"))
        await asyncio.sleep(0.1)

        time.sleep(4.0)  # noqa: ASYNC251 - the supervisor's own loop hangs
        await asyncio.sleep(1.5)

        assert b.events[-1:] == b.events[:1]  # still only Opened


@in_a_loop
async def test_an_agent_that_does_not_open_in_time_is_given_up(tmp_path: Path) -> None:
    async with bench(tmp_path, "never_opens", limits=Limits(open_s=0.3)) as b:
        await b.pool.start(key(), workers.plan(tmp_path), workers.grant(tmp_path))

        assert (await b.until(Gone, key())).why is GoneWhy.OPEN_FAILED


@in_a_loop
async def test_a_worker_that_is_not_ready_in_time_is_given_up_even_if_its_nanny_hangs(tmp_path: Path) -> None:
    async with bench(tmp_path, limits=Limits(ready_s=0.5)) as b:
        await b.pool.start(key(), workers.plan(tmp_path), workers.grant(tmp_path))
        os.kill((await b.view(key())).nanny_pid, signal.SIGSTOP)

        gone = await b.until(Gone, key())

        assert (gone.why, gone.detail) == (GoneWhy.START_FAILED, "not ready in time")


@in_a_loop
async def test_a_turn_that_does_not_end_when_told_to_is_ended_with_its_worker(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.started(key(), stop_grace_s=0.2)
        b.pool.give(key(), workers.turn("wait"))
        began = time.monotonic()

        b.pool.abort(key(), TurnId("1"))
        gone = await b.until(Gone, key())

        assert gone.why is GoneWhy.STOPPED
        assert time.monotonic() - began >= 1.2  # its grace, and the second in which its own report may come


@in_a_loop
async def test_a_worker_that_stays_when_asked_to_leave_is_killed(tmp_path: Path) -> None:
    async with bench(tmp_path, "stays", limits=Limits(leave_s=0.3)) as b:
        await b.started(key())

        b.pool.leave(key())

        assert (await b.until(Gone, key())).why is GoneWhy.STOPPED


# --- hostile words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["garbage", "oversize", "out_of_turn", "closed"])
@in_a_loop
async def test_a_worker_that_breaks_form_is_ended_and_counted(tmp_path: Path, order: str) -> None:
    async with bench(tmp_path) as b:
        await b.started(key())

        b.pool.give(key(), workers.turn(order))
        gone = await b.until(Gone, key())

        assert gone.why is GoneWhy.VIOLATION
        assert b.pool.violations == 1
        assert gone.detail


@pytest.mark.parametrize("size", [1, 500_000])
@in_a_loop
async def test_a_flooding_worker_slows_itself_alone(tmp_path: Path, size: int) -> None:
    async with bench(tmp_path) as b:
        await b.started(key("flood"))
        await b.started(key("other"))
        me = psutil.Process()
        before = me.memory_info().rss

        b.pool.give(key("flood"), workers.turn(f"flood {size}"))
        times = []
        for number in range(100):
            began = time.monotonic()
            await b.answer(key("other"), "say x", number)
            times.append(time.monotonic() - began)

        assert sorted(times)[95] < 0.25  # generous: the machine is shared; the benchmark holds the real figure
        assert me.memory_info().rss - before < 50 * workers.MIB


@in_a_loop
async def test_a_worker_that_never_reads_is_ended_once_it_cannot_be_told_anything(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.started(key("deaf"))
        b.pool.give(key("deaf"), workers.turn("wait"))
        await b.started(key("other"))
        view = await b.view(key("deaf"))
        os.kill(view.pid, signal.SIGSTOP)
        answer = AnswerDialog(TurnId("1"), DialogId("d"), Typed("x" * 100_000))

        for _ in range(1000):
            b.pool.answer(key("deaf"), answer)
            await asyncio.sleep(0)

        assert (await b.until(Gone, key("deaf"))).why is GoneWhy.CRASHED
        assert await b.answer(key("other"), "say x") == "x"


# --- starts that fail -----------------------------------------------------------------------------------------


@in_a_loop
async def test_without_a_required_layer_no_worker_starts(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.pool.start(
            key(),
            workers.plan(tmp_path, wanted=(*BARE, Layer.CGROUP), required=(Layer.CGROUP,)),
            workers.grant(tmp_path),
        )

        gone = await b.until(Gone, key())

        assert gone.why is GoneWhy.LAYER_MISSING
        assert "cgroup" in gone.detail


@in_a_loop
async def test_a_worker_that_dies_at_once_is_noticed_at_once(tmp_path: Path) -> None:
    async with bench(tmp_path, "dies_at_once") as b:
        began = time.monotonic()
        await b.pool.start(key(), workers.plan(tmp_path), workers.grant(tmp_path))

        gone = await b.until(Gone, key())

        assert (gone.why, gone.detail) == (GoneWhy.CRASHED, "exit 3")
        assert time.monotonic() - began < 5.0  # the watch would have taken twenty seconds


@in_a_loop
async def test_after_three_deaths_before_ready_that_peer_waits_and_another_does_not(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        broken = workers.plan(tmp_path, wanted=(*BARE, Layer.CGROUP), required=(Layer.CGROUP,))
        for generation in range(3):
            await b.pool.start(key("broken", generation), broken, workers.grant(tmp_path))
            await b.until(Gone, key("broken", generation))

        with pytest.raises(StartRefused) as refused:
            await b.pool.start(key("broken", 4), broken, workers.grant(tmp_path))
        await b.started(key("healthy"))

        assert refused.value.retry_in_s is not None
        assert 50.0 < refused.value.retry_in_s <= 60.0
        assert not b.pool.stopped


@in_a_loop
async def test_when_three_peers_cannot_start_nobody_is_started_until_reopened(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        broken = workers.plan(tmp_path, wanted=(*BARE, Layer.CGROUP), required=(Layer.CGROUP,))
        for peer in ("x", "y", "z"):
            await b.pool.start(key(peer), broken, workers.grant(tmp_path))
            await b.until(Gone, key(peer))

        with pytest.raises(StartRefused) as refused:
            await b.started(key("healthy"))
        stopped = b.pool.stopped
        b.pool.reopen()

        assert stopped
        assert refused.value.retry_in_s is None
        await b.started(key("healthy"))


@in_a_loop
async def test_a_zygote_that_cannot_run_fails_the_start_and_not_the_bridge(tmp_path: Path) -> None:
    async with bench(tmp_path, "no_such_behaviour") as b:
        with pytest.raises(StartFailed):
            await b.started(key())

        assert b.events == []
        assert await b.pool.views() == {}


# --- secrets --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="reading another process's memory takes root")
@BOTH
@in_a_loop
async def test_a_key_is_in_its_nanny_and_in_no_worker(tmp_path: Path, wanted: Sequence[Layer]) -> None:
    async with bench(tmp_path) as b:
        minted: list[str] = []
        register = b.router.register

        def noting(lease: LeaseKey, pid: int) -> NannyKeys:
            keys = register(lease, pid)
            minted.append(keys.secret_key)
            return keys

        b.router.register = noting  # type: ignore[method-assign]  # the one way to know a key that nobody else does
        await b.started(key("a"), wanted=wanted)
        await b.started(key("b"), wanted=wanted)
        a, b_view = await b.view(key("a")), await b.view(key("b"))

        assert memory_holds(a.nanny_pid, minted[0].encode())  # the search finds what is there
        for secret in minted:
            assert not memory_holds(a.pid, secret.encode())
            assert not memory_holds(b_view.pid, secret.encode())
            assert b.zygote.pid is not None
            assert not memory_holds(b.zygote.pid, secret.encode())
        assert not memory_holds(b_view.nanny_pid, minted[0].encode())


@in_a_loop
async def test_nothing_of_the_supervisors_environment_reaches_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-4711")

    async with bench(tmp_path) as b:
        await b.started(key())
        view = await b.view(key())

        for pid in (b.zygote.pid, view.nanny_pid, view.pid):
            assert b"canary" not in read(pid, "environ")
        assert "CANARY_TOKEN" not in (await b.answer(key(), "environment")).split()


# --- what the kernel says -------------------------------------------------------------------------------------

TRUE = {"NoNewPrivs": "1", "CapEff": "0000000000000000", "Seccomp": "2", "NSpid": "100\t1", "Uid": "7\t7\t7\t7"}
CLAIMED = frozenset({Layer.NO_NEW_PRIVS, Layer.SECCOMP, Layer.PID_NS, Layer.OWN_UID, Layer.LANDLOCK})


def test_claims_that_the_kernel_confirms_stand() -> None:
    assert untrue_layers(TRUE, CLAIMED, uid=7) == frozenset()
    assert untrue_layers(None, CLAIMED, uid=7) == frozenset()


@pytest.mark.parametrize(
    ("change", "layer"),
    [
        ({"NoNewPrivs": "0"}, Layer.NO_NEW_PRIVS),
        ({"CapEff": "0000000000000001"}, Layer.NO_NEW_PRIVS),
        ({"Seccomp": "0"}, Layer.SECCOMP),
        ({"NSpid": "100"}, Layer.PID_NS),
        ({"Uid": "7\t0\t7\t7"}, Layer.OWN_UID),
    ],
)
def test_a_claim_that_the_kernel_contradicts_falls(change: dict[str, str], layer: Layer) -> None:
    assert untrue_layers(TRUE | change, CLAIMED, uid=7) == {layer}
    assert untrue_layers(TRUE | change, CLAIMED - {layer}, uid=7) == frozenset()
