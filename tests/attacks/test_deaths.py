"""A hostile worker wants to outlive its end: whoever dies, nothing of a tree that hides from everybody may stay."""

import os
import signal
import time

import pytest

from tests.attacks.sandboxed import Cage, Caged, Stage
from tests.fakes.workers import alive, below, in_a_loop, until


def run_away() -> None:
    """Double fork, a session of its own, deaf to every signal that can be ignored."""
    ready, told = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            os.write(told, b"!")
            while True:
                signal.pause()
        os._exit(0)
    os.wait()
    os.read(ready, 1)


def started(stage: Stage) -> tuple[Cage, Caged, list[int]]:
    """A worker with a process that ran away, and the pids of its tree."""
    assert stage.cage is not None
    worker = stage.worker()
    assert str(worker.attempt(run_away)) == "worked: None"
    tree = [worker.pids["nanny"], *below(worker.pids["nanny"])]
    assert len(tree) == 3
    return stage.cage, worker, tree


def test_a_tree_that_ran_away_is_gone_when_its_end_is_told(stage: Stage) -> None:
    _, worker, tree = started(stage)
    began = time.monotonic()

    worker.end()
    stage.shared.clear()

    assert not any(map(alive, tree))
    assert time.monotonic() - began < 5.0  # generous; the benchmark holds the real figure


@pytest.mark.parametrize("whose", ["worker", "nanny"])
@in_a_loop
async def test_a_tree_ends_with_its_worker_and_with_its_nanny(stage: Stage, whose: str) -> None:
    _, worker, tree = started(stage)

    os.kill(worker.pids[whose], signal.SIGKILL)

    await until(lambda: not any(map(alive, tree)))
    assert alive(worker.pids["zygote"]) and alive(worker.pids["supervisor"])
    assert "gone" in str(worker.attempt(os.getpid))


@in_a_loop
async def test_a_zygotes_end_touches_no_worker_and_the_supervisors_end_leaves_none(mortal: Stage) -> None:
    cage, worker, tree = started(mortal)

    os.kill(worker.pids["zygote"], signal.SIGKILL)
    await until(lambda: not alive(worker.pids["zygote"]))
    assert all(map(alive, tree))
    assert worker.attempt(os.getpid).value
    next_one = cage.start(mortal.plan())
    assert isinstance(next_one, Caged) and next_one.pids["zygote"] != worker.pids["zygote"]
    assert next_one.attempt(os.getpid).value
    tree += [next_one.pids["zygote"], next_one.pids["nanny"], *below(next_one.pids["nanny"])]

    cage.kill()

    await until(lambda: not any(map(alive, tree)))
