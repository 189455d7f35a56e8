"""launcher: the local zygote as one way to start workers. What becomes of the workers: test_pool.py."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from protocol.spec import NannyKeys
from supervisor.launcher import SPEC_BYTES, StartFailed, Zygote
from tests.fakes import workers
from tests.fakes.workers import alive, below, in_a_loop, until

KEYS = NannyKeys("ipc:///nowhere", b"n" * 16, "x" * 40, "x" * 40, "x" * 40)


def noting_preloads(notes: Path) -> str:
    """The product's entry, with a table of hosts that writes down what it is asked for."""
    return (
        "from worker import hosts, zygote; "
        f"hosts.preload = lambda host: open({str(notes)!r}, 'w').write(host + chr(10)); "
        "zygote.main()"
    )


@in_a_loop
async def test_a_started_nanny_lives_until_killed_and_its_end_is_told_once_it_is_complete(tmp_path: Path) -> None:
    zygote = Zygote.start(workers.entry("obedient"))
    nanny = await zygote.launch(workers.plan(tmp_path))
    tree = [nanny.pid, *below(nanny.pid)]

    nanny.kill()
    nanny.kill()
    code = await asyncio.wait_for(nanny.exited(), workers.DEADLINE_S)
    nanny.hand_over(KEYS)  # too late, and harmless

    assert code == 1
    assert not any(alive(pid) for pid in tree)
    zygote.close()
    zygote.close()


@in_a_loop
async def test_many_starts_at_once_are_answered_each_with_its_own(tmp_path: Path) -> None:
    zygote = Zygote.start(workers.entry("obedient"))
    plan = workers.plan(tmp_path)

    nannies = await asyncio.gather(*(zygote.launch(plan) for _ in range(20)))
    nannies[7].kill()
    await asyncio.wait_for(nannies[7].exited(), workers.DEADLINE_S)

    assert len({nanny.pid for nanny in nannies}) == 20
    assert [alive(nanny.pid) for nanny in nannies].count(False) == 1
    for nanny in nannies:
        nanny.kill()
    await asyncio.wait_for(asyncio.gather(*(nanny.exited() for nanny in nannies)), workers.DEADLINE_S)
    zygote.close()


@in_a_loop
async def test_a_start_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    zygote = Zygote.start(workers.entry("obedient"))
    first = await zygote.launch(workers.plan(tmp_path))
    descriptors = len(os.listdir("/proc/self/fd"))

    starting = asyncio.create_task(zygote.launch(workers.plan(tmp_path)))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})

    assert starting.cancelled()
    assert zygote.pid is not None
    pid = zygote.pid
    await until(lambda: below(pid) == sorted({first.pid, *below(first.pid)}))
    await until(lambda: len(os.listdir("/proc/self/fd")) == descriptors)
    first.kill()
    await first.exited()
    zygote.close()


@in_a_loop
async def test_a_new_zygote_is_told_again_what_to_share(tmp_path: Path) -> None:
    zygote = Zygote.start(noting_preloads(tmp_path / "shared"))
    zygote.preload("echo")
    first = zygote.pid
    assert first is not None

    os.kill(first, signal.SIGKILL)
    await until(lambda: not alive(first))
    (tmp_path / "shared").unlink(missing_ok=True)
    nanny = await zygote.launch(workers.plan(tmp_path))

    assert zygote.pid != first
    assert (tmp_path / "shared").read_text() == "echo\n"
    nanny.kill()
    await nanny.exited()
    zygote.close()


@in_a_loop
async def test_a_plan_that_would_not_fit_into_its_pipe_is_refused(tmp_path: Path) -> None:
    zygote = Zygote.start()
    plan = msgspec.structs.replace(workers.plan(tmp_path), read=("/x" * SPEC_BYTES,))

    with pytest.raises(StartFailed, match="bytes"):
        await zygote.launch(plan)

    zygote.close()
