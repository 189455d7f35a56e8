"""Measures the real bridge against the simulated WeChat and prints each figure beside its target.

Everything is measured from outside: the program is started as an operator would, peers write over HTTP, and the figures
come from its log, from the phones and from /proc. Medians, since a machine that does other things has outliers.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fakes.bridge import CTL, Bridge  # noqa: E402  (a script's folder is on the path, the checkout's root is not)
from tests.fakes.wechat import SimulatedWeChat  # noqa: E402
from tests.fakes.workers import alive  # noqa: E402

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Figure:
    """held: which of the two is held against the target, p50 or p95; of one value both are that one."""

    name: str
    values: Sequence[float]
    unit: str
    target: float
    held: str = "p50"

    def row(self) -> str:
        if not self.values:
            return f"{self.name:<46} not measurable here"
        middle = statistics.median(self.values)
        spread = sorted(self.values)
        p95 = spread[min(len(spread) - 1, int(len(spread) * 0.95))]
        verdict = "ok" if (p95 if self.held == "p95" else middle) <= self.target else "OVER"
        return (
            f"{self.name:<46} {middle:8.1f} {p95:8.1f} {self.unit:<3} {self.held} {self.target:6.0f} {self.unit:<3} {verdict:<4}"
            f" n={len(self.values)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the bridge's figures beside their targets.")
    parser.add_argument("--peers", type=int, default=30, metavar="N", help="how many workers are started")
    parser.add_argument("--turns", type=int, default=100, metavar="N", help="how many warm turns are timed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, SimulatedWeChat(hold_s=5.0) as wechat:
        figures = measure(wechat, Path(folder) / "home", peers=asked.peers, turns=asked.turns)
    print(f"{'':<46} {'p50':>8} {'p95':>8}     target")
    for figure in figures:
        print(figure.row())


def measure(wechat: SimulatedWeChat, home: Path, *, peers: int, turns: int) -> list[Figure]:
    owner, *others = [wechat.add_person() for _ in range(peers)]
    allowed = ", ".join(f'"{one}"' for one in others)
    settings = (
        f"[admission]\nallowed_peers = [{allowed}]\n[guests]\nmax_turns_per_hour = 0\n[workers]\nmax_warm = {peers}\n"
    )
    with Bridge(home, base_url=wechat.base_url, cdn_url=wechat.cdn_url, settings=settings) as bridge:
        began = time.perf_counter()
        bridge.start()
        to_ready_ms = (time.perf_counter() - began) * 1000
        login = bridge.popen_ctl("login")
        bot = wechat.scan(owner)
        login.communicate(timeout=30)
        for person in (owner, *others):
            answered(wechat, person, bot, 1)
        starts = [
            float(found[1]) for line in bridge.lines if (found := re.search(r"worker_ready .* after_ms=([\d.]+)", line))
        ]
        memory = private_of_workers(bridge)
        warm = [answered(wechat, owner, bot, 1) for _ in range(turns)]
        status = [status_ms(bridge) for _ in range(7)]
        kills = [kill_of_worker_ms(bridge, row["worker"]["pid"]) for row in bridge.status()["peers"] if row["worker"]]
        supervisor_kills = []
        for _ in range(5):
            for person in (owner, *others[:4]):
                answered(wechat, person, bot, 1)
            supervisor_kills.append(kill_of_supervisor_ms(bridge))
            bridge.start()
        bridge.stop()
    return [
        Figure("worker sandboxed and ready", starts[1:], "ms", 45),  # the first one is the probe's
        Figure("warm echo turn, poll's answer to send", warm, "ms", 10),
        Figure("private memory, idle echo worker with nanny", memory, "MiB", 5),
        Figure(f"bridge-ctl status with {peers} peers", status, "ms", 150),
        Figure("bridge-supervisor start to ready", [to_ready_ms], "ms", 2000),
        Figure("worker killed to known, its whole tree gone", kills, "ms", 50, held="p95"),
        Figure("supervisor killed to no process left", supervisor_kills, "ms", 1000, held="p95"),
    ]


def answered(wechat: SimulatedWeChat, person: str, bot: str, bubbles: int) -> float:
    """One message and its answer: milliseconds from the poll's answer, which the message ends, to the send's arrival."""
    before = len(wechat.bubbles(person))
    said = wechat.say(person, "the same few words", to=bot)
    view = wechat.wait_for(lambda seen: len(seen.bubbles(person)) >= before + bubbles)
    return float(view.bubbles(person)[-1].at_ms - said.at_ms)


def private_of_workers(bridge: Bridge) -> list[float]:
    """MiB of each worker and its nanny that no other process shares."""
    sizes = []
    for row in bridge.status()["peers"]:
        if row["worker"] is not None:
            worker = psutil.Process(row["worker"]["pid"])
            nanny = worker.parent()
            pages = [private_bytes(p.pid) for p in (worker, nanny) if p is not None]
            if all(pages):
                sizes.append(sum(pages) / MIB)
    return sizes


def private_bytes(pid: int) -> int:
    """0 where the kernel does not tell: processes that are not dumpable show it to root alone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return 1024 * sum(int(found) for found in re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", rollup, re.MULTILINE))


def kill_of_worker_ms(bridge: Bridge, worker: int) -> float:
    """From SIGKILL to the pool's word, which it gives when no process of that tree is left; that is looked at too."""
    nanny = psutil.Process(worker).ppid()
    before = sum("worker_gone" in line for line in bridge.lines)
    began = time.perf_counter()
    os.kill(worker, signal.SIGKILL)
    bridge.wait_log("worker_gone", count=before + 1)
    took_ms = (time.perf_counter() - began) * 1000
    assert not any(alive(pid) for pid in (worker, nanny)), "told too early"
    return took_ms


def kill_of_supervisor_ms(bridge: Bridge) -> float:
    """From SIGKILL until nothing of its tree lives: zygote, nannies, workers."""
    assert bridge.process is not None
    tree = [process.pid for process in bridge.tree()]
    began = time.perf_counter()
    os.kill(bridge.pid, signal.SIGKILL)
    while any(map(alive, tree)):
        time.sleep(0.001)
    bridge.process.wait()
    return (time.perf_counter() - began) * 1000


def status_ms(bridge: Bridge) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", CTL, "status"], env=bridge.env(), check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
