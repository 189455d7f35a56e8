"""Many at once: throughput, how many workers can live, and what one peer's misdeeds cost another."""

import contextlib
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from supervisor.home import Home
from tests.bench.figures import Figure
from tests.bench.stage import Crowd, crowd
from tests.fakes.bridge import Bridge
from tests.fakes.stage import FAKE_AGENT
from tests.fakes.wechat import SimulatedWeChat

STRANGER = """
import itertools, socket, sys, time
held = []
for number in itertools.count():
    for path in sys.argv[1:]:
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(0.05)
        try:
            one.connect(path)
            one.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03\\x01CURVE" + bytes(47) + bytes(range(256)) * (number % 8))
        except OSError:
            pass
        held.append(one)
        time.sleep(0.002)  # what a whole processor can do is not the question
    for one in held[:-50]:
        one.close()
    del held[:-50]
"""
TURNS = 40  # of the quiet peer, for each misdeed of the other
ROUNDS = 20
STARTS = 20
FLOOD_S = 0.2  # between twenty messages and the next twenty: more than any person's phone can send
# What the other peer's agent does meanwhile, in the words of tests/fakes/acp_agent.py.
MISDEEDS = {
    "memory": "RUIN 64",
    "disk": "FILL 400",
    "parts": "FLOOD 200000",
    "its log": "STDERR 200000",
    "processor": "SPIN 8",
    "processes": "BOMB",
}


def throughput(folder: Path, *, peers: int = 50) -> Iterator[Figure]:
    settings = f"[workers]\nmax_warm = {peers + 1}\nconcurrency = 16\n"
    with SimulatedWeChat(hold_s=5.0) as wechat, crowd(wechat, folder / "turns", others=peers, settings=settings) as at:
        at.all_at_once(at.others)
        rates = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            at.all_at_once(at.others)
            rates.append(peers / (time.perf_counter() - began))
        yield Figure("turns", f"turns, {peers} peers, echo, 16 at once", rates, "/s", 250, least=True)


def alive_at_once(folder: Path, *, workers: int) -> Iterator[Figure]:
    settings = f"[workers]\nmax_warm = {workers + 1}\nconcurrency = 16\n"
    with SimulatedWeChat(hold_s=5.0) as wechat, crowd(wechat, folder / "many", others=workers, settings=settings) as at:
        at.all_at_once(at.others)
        times = _ready_at(at.bridge)[1:]
        rate = (len(times) - 1) / (times[-1] - times[0])
        lives = sum(row["worker"] is not None for row in at.bridge.status()["peers"])
        yield Figure("starts", "workers started", [rate], "/s", 70, least=True)
        yield Figure("alive", "workers alive at once", [lives], "", 500, least=True)


def _ready_at(bridge: Bridge) -> list[float]:
    """When each worker was ready, in seconds, by the log's own clock."""
    found = (re.match(r"(\S+) \S+ worker_ready ", line) for line in bridge.lines)
    return [datetime.fromisoformat(one[1]).timestamp() for one in found if one]


def flood(folder: Path) -> Iterator[Figure]:
    """One peer writes without end; the others' slow turns beside what they were."""
    settings = "[workers]\nconcurrency = 4\n"
    with SimulatedWeChat(hold_s=5.0) as wechat, crowd(wechat, folder / "flood", others=2, settings=settings) as at:
        quiet, loud = at.others
        at.turn_ms(loud)
        before = _p95(at, quiet)
        over = threading.Event()

        def pour() -> None:
            while not over.wait(FLOOD_S):
                wechat.say_together([(loud, {"text": f"and another {n}", "to": at.bot}) for n in range(20)])

        pouring = threading.Thread(target=pour)
        pouring.start()
        try:
            during = _p95(at, quiet)
        finally:
            over.set()
            pouring.join()
        yield Figure("flood", "another peer floods: warm p95 beside quiet", [during / before], "×", 2)


def misdeeds(folder: Path) -> Iterator[Figure]:
    """What an agent can do to its machine, and what another peer's slow turns become meanwhile."""
    settings = "[workers]\nmemory_mb = 256\nprocesses = 64\ndisk_mb = 1024\nconcurrency = 4\n"
    with (
        SimulatedWeChat(hold_s=5.0) as wechat,
        crowd(wechat, folder / "misdeeds", others=1 + len(MISDEEDS), settings=settings, agent=FAKE_AGENT) as at,
    ):
        quiet, *others = at.others
        for (name, word), other in zip(MISDEEDS.items(), others, strict=True):
            at.turn_ms(other, "SAY ready")
            before = _p95(at, quiet)
            wechat.say(other, word, to=at.bot)
            during = _p95(at, quiet)
            key, title = name.replace(" ", "_"), f"another agent takes {name}: warm p95 beside quiet"
            yield Figure(f"misdeed_{key}", title, [during / before], "×", 2)
            wechat.say(other, "/stop", to=at.bot)


def strangers(folder: Path) -> Iterator[Figure]:
    """Somebody outside any sandbox, of the same user, at the worker bus and the control socket."""
    with SimulatedWeChat(hold_s=5.0) as wechat, crowd(wechat, folder / "strangers", others=1) as at:
        (quiet,) = at.others
        before = _p95(at, quiet)
        with _strangers(Home(at.bridge.home).run):
            during = _p95(at, quiet)
        yield Figure("strangers", "strangers at the bus: warm p95, what it adds", [during - before], "ms", 20)


@contextlib.contextmanager
def _strangers(run: Path) -> Iterator[None]:
    """A process of the same user that opens the bus again and again, with half a handshake and with nonsense."""
    program = subprocess.Popen([sys.executable, "-c", STRANGER, *map(str, (run / "bus", run / "ctl.sock"))])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def _p95(at: Crowd, person: str) -> float:
    at.turn_ms(person, "SAY warm")
    times = [at.turn_ms(person, "SAY x") for _ in range(TURNS)]
    return statistics.quantiles(times, n=20)[-1]


def acp(folder: Path, *, turns: int) -> Iterator[Figure]:
    """A scripted agent behind ACP, which itself takes about a millisecond to answer."""
    with (
        SimulatedWeChat(hold_s=5.0) as wechat,
        crowd(wechat, folder / "acp", others=STARTS, agent=FAKE_AGENT) as at,
    ):
        for person in at.others:
            at.turn_ms(person, "SAY ready")
        ready = at.ready_ms(skip=1)
        yield Figure("ready_network", "worker sandboxed and ready, with a network of its own", ready, "ms", 80)
        at.turn_ms(at.owner, "SAY warm")
        times = [at.turn_ms(at.owner, "SAY x") for _ in range(turns)]
        yield Figure("acp_turn", "warm ACP turn: poll's answer to send", times, "ms", 10)
