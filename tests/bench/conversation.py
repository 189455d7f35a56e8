"""One person after the other: starts, turns, kills, memory, the operator's questions."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.bench.figures import Figure
from tests.bench.stage import Crowd, crowd, private_mib, processor_s
from tests.fakes.bridge import CTL
from tests.fakes.wechat import SimulatedWeChat
from tests.fakes.workers import alive

IDLE_S = 10.0


def measure(folder: Path, *, peers: int, turns: int) -> Iterator[Figure]:
    settings = f"[workers]\nmax_warm = {peers}\nconcurrency = 16\n"
    with (
        SimulatedWeChat(hold_s=5.0) as wechat,
        crowd(wechat, folder / "home", others=peers - 1, settings=settings) as at,
    ):
        people = (at.owner, *at.others)
        first = [at.turn_ms(person) for person in people]
        yield Figure("ready", "worker sandboxed and ready", at.ready_ms(skip=1), "ms", 45)  # the first is the probe's
        yield Figure("first_turn", "first turn of a peer, echo, all layers", first[1:], "ms", 50)
        warm = [at.turn_ms(at.owner) for _ in range(turns)]
        yield Figure("warm_turn", "warm echo turn: poll's answer to send", warm, "ms", 6)
        yield Figure("warm_turn_p99", "warm echo turn, the slow ones", warm, "ms", 25, held="p99")
        yield Figure("worker_memory", "private memory, idle echo worker with nanny", _workers_mib(at), "MiB", 5)
        supervisor = private_mib([psutil.Process(at.bridge.pid)])
        held = [] if supervisor is None else [supervisor]
        yield Figure("supervisor_memory", f"private memory, supervisor with {peers} peers", held, "MiB", 60)
        yield Figure("status", f"bridge-ctl status, {peers} peers", [_status_ms(at) for _ in range(9)], "ms", 150)
        yield Figure("idle", f"processor, supervisor with {peers} idle peers", [_idle_percent(at)], "%", 0.5)
        gone, fresh = zip(*(_worker_killed_ms(at, person) for person in people[:30]), strict=True)
        yield Figure("worker_killed", "worker killed to known, its whole tree gone", gone, "ms", 50, held="p95")
        yield Figure("worker_again", "worker killed to a fresh one ready", fresh, "ms", 150, held="p95")
        ends, polls = zip(*(_supervisor_killed_ms(at) for _ in range(7)), strict=True)
        yield Figure("supervisor_killed", "supervisor killed to no process left", ends, "ms", 1000, held="p95")
        yield Figure("first_poll", "bridge-supervisor start to first poll", polls, "ms", 700)


def _workers_mib(at: Crowd) -> list[float]:
    sizes = []
    for row in at.bridge.status()["peers"]:
        if row["worker"] is not None:
            worker = psutil.Process(row["worker"]["pid"])
            nanny = worker.parent()
            size = private_mib([worker, nanny]) if nanny is not None else None
            sizes += [] if size is None else [size]
    return sizes


def _status_ms(at: Crowd) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", CTL, "status"], env=at.bridge.env(), check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def _idle_percent(at: Crowd) -> float:
    before = processor_s(at.bridge.pid)
    time.sleep(IDLE_S)
    return (processor_s(at.bridge.pid) - before) / IDLE_S * 100


def _worker_killed_ms(at: Crowd, person: str) -> tuple[float, float]:
    """Until the pool's word, which it gives when no process of that tree is left; and until the next one is ready, for
    which a message is waiting by then."""
    worker = at.bridge.peer(person)["worker"]["pid"]
    nanny = psutil.Process(worker).ppid()
    ended = sum(" worker_gone " in line for line in at.bridge.lines)
    ready = len(at.ready_ms())
    began = time.perf_counter()
    os.kill(worker, signal.SIGKILL)
    at.bridge.wait_log(" worker_gone ", count=ended + 1)
    gone_ms = (time.perf_counter() - began) * 1000
    assert not any(alive(pid) for pid in (worker, nanny)), "told too early"
    before = len(at.wechat.bubbles(person))
    at.wechat.say(person, "again", to=at.bot)
    at.bridge.wait_log(" worker_ready ", count=ready + 1)
    fresh_ms = (time.perf_counter() - began) * 1000
    at.wechat.wait_for(lambda view: len(view.bubbles(person)) > before)
    return gone_ms, fresh_ms


def _supervisor_killed_ms(at: Crowd) -> tuple[float, float]:
    """Until nothing of its tree lives, zygote, nannies, workers; and from a start to the poll that the service sees."""
    assert at.bridge.process is not None
    for person in (at.owner, *at.others[:4]):
        at.turn_ms(person)
    tree = [process.pid for process in at.bridge.tree()]
    began = time.perf_counter()
    os.kill(at.bridge.pid, signal.SIGKILL)
    while any(map(alive, tree)):
        time.sleep(0.001)
    ended_ms = (time.perf_counter() - began) * 1000
    at.bridge.process.wait()
    at.wechat.wait_for(lambda view: view.polls_in_flight() == 0)
    began = time.perf_counter()
    at.bridge.start(wait=False)
    at.wechat.wait_for(lambda view: view.polls_in_flight() > 0)
    return ended_ms, (time.perf_counter() - began) * 1000
