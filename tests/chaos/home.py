"""One home under chaos: a simulated WeChat with its people, a bridge that is killed again and again, and the checks.

A wave is some talk, some kills of workers, nannies, zygote or gateway at an instant drawn by the seed or at a point of
points.py, and at its end a kill of the supervisor and a start. After some waves everything comes to rest and is checked.
"""

import base64
import contextlib
import json
import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from protocol.ids import AccountId, PeerId
from supervisor.home import Home as Places
from tests.chaos import checks, host
from tests.chaos.points import HOST_POINTS, MODEL_POINTS, POINTS, Board, Passer
from tests.chaos.processes import Family, Process, all_gone, ended, family, process, waited_s
from tests.fakes.bridge import CTL, ROOT
from tests.fakes.model import FakeModel
from tests.fakes.wechat import SimulatedWeChat

DEADLINE_S = 60.0
GONE_S = 5.0
START_S = 2.0  # to the first poll, time in which others had the processor aside
POINT_S = 4.0  # a point that nobody has come by after so long is given up
LATEST_S = 0.09  # of the instants drawn, after a message was written: a turn takes about so long
PEOPLE = 5
OPEN = (
    "SELECT (SELECT count(*) FROM message WHERE state IN ('received', 'queued', 'running', 'asking'))"
    " + (SELECT count(*) FROM part WHERE state IN ('pending', 'sending'))"
)
KEY = "sk-chaos"


class Target(StrEnum):
    SUPERVISOR = "supervisor"
    ZYGOTE = "zygote"
    NANNY = "nanny"
    WORKER = "worker"
    GATEWAY = "gateway"


class Agent(StrEnum):
    """scripted: host.py in the place of `echo`. model: an agent program of its own that asks a model."""

    SCRIPTED = "scripted"
    MODEL = "model"


PASSER_TARGET = {
    Passer.SUPERVISOR: Target.SUPERVISOR,
    Passer.STARTING: Target.SUPERVISOR,
    Passer.ZYGOTE: Target.ZYGOTE,
    Passer.NANNY: Target.NANNY,
    Passer.WORKER: Target.WORKER,
    Passer.GATEWAY: Target.GATEWAY,
}


# Points that only the start of a worker, the end of one, or the start of a gateway comes by.
COLD = frozenset(
    {
        *(
            "worker_wanted",
            "worker_forked",
            "worker_hello",
            "grant_sent",
            "session_opened",
            "before_fork",
            "forked_untold",
        ),
        *("nanny_born", "worker_made", "nanny_connects", "before_sandbox", "before_hello", "granted", "before_opened"),
        "token_issued",
    }
)
OF_AN_END = frozenset({"reaped_untold", "worker_ended_untold", "worker_gone"})
OF_A_GATEWAY = frozenset({"gateway_started", "gateway_born"})


@dataclass(frozen=True, slots=True)
class Kill:
    """point None: at an instant drawn. passages: of the point, before it counts"""

    target: Target
    point: str | None = None
    passages: int = 1


@dataclass(slots=True)
class Figures:
    """What a run comes to. Times in seconds."""

    kills: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)  # points that nobody came by
    states: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    bubbles: int = 0
    repeats: int = 0  # sends that the service knew already
    lost_on_the_way: int = 0
    parked: int = 0
    to_poll: list[float] = field(default_factory=list)
    to_poll_real: list[float] = field(default_factory=list)  # started by a program of its own, and not from the mould
    gone: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    cpu_s: float = 0.0

    def add(self, other: "Figures") -> None:
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, name, mine + theirs)


class ChaosHome:
    """Use as a context; `kill` and `settle` in any order. Nothing of it is left afterwards."""

    def __init__(self, seed: int, *, agent: Agent, kept: bool, hold_s: float = 20.0) -> None:
        """kept: WeChat hands a batch out again until it sees the next cursor; else the window of the README stands"""
        self.random = random.Random(seed)
        self.agent = agent
        self.kept = kept
        self.hold_s = hold_s  # of the service's polls
        self.figures = Figures()
        self._closing = contextlib.ExitStack()
        self._said: list[checks.Said] = []
        self._numbers = 0
        self._pid = 0  # the supervisor's; 0 = none
        self._popen: subprocess.Popen[bytes] | None = None  # where it was started without the mould
        self._dead: list[Process] = []  # of whom nothing may be left
        self._kills = 0  # of supervisors

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as closing:
            self.folder = Path(tempfile.mkdtemp(prefix="chaos-"))
            closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.folder.chmod(0o755)
            self.wechat = closing.enter_context(SimulatedWeChat(hold_s=self.hold_s))
            self._http = closing.enter_context(httpx.Client(base_url=self.wechat.base_url, trust_env=False, timeout=60))
            if self.kept:
                self.wechat.set_fault("rewind")
            self.home = self.folder / "home"
            self.home.mkdir()
            self.log = self.folder / "log"
            self.mark = str(self.folder / "board")
            self.board = Board(Path(self.mark))
            self.people = [self.wechat.add_person() for _ in range(PEOPLE)]
            model = closing.enter_context(FakeModel()) if self.agent is Agent.MODEL else None
            (self.home / "bridge.toml").write_text(self._settings(model), encoding="utf-8")
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._mould_end = closing.enter_context(ours)
            with theirs:
                self._mould = subprocess.Popen(
                    [*self._command(), str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=self._env(),
                    cwd=ROOT,
                )
            closing.callback(self._end_mould)
            closing.callback(self._end_all)
            self._start()
            self._sign_in()
            self._closing = closing.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def _settings(self, model: FakeModel | None) -> str:
        agent = ""
        if model is not None:
            # Its argument is for us: that is how the agent's processes are known.
            command = json.dumps([sys.executable, f"{ROOT}/tests/fakes/acp_agent.py", f"--{self.mark}"])
            agent = (
                f'[agent]\nhost = "acp"\ncommand = {command}\nread = ["{ROOT}"]\nmodel = "openai-compatible:fake-1"\n'
                f'base_url = "{model.url}/v1"\napi_key_env = "TEST_MODEL_KEY"\n'
            )
        others = ", ".join(f'"{person}"' for person in self.people[1:])
        return (
            f'[wechat]\nbase_url = "{self.wechat.base_url}"\ncdn_base_url = "{self.wechat.cdn_url}"\nsend_gap_ms = 0\n'
            f"{agent}[admission]\nallowed_peers = [{others}]\n[guests]\nmax_turns_per_hour = 0\nmax_tokens_per_day = 0\n"
            "[workers]\nconcurrency = 3\n"
        )

    def _command(self) -> list[str]:
        words = (self.mark, str(self.home), str(self.folder / "locks"))
        return [sys.executable, "-m", "tests.chaos.supervisor_entry", *words]

    def _env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "BRIDGE_HOME": str(self.home), "TEST_MODEL_KEY": KEY}

    # -- the bridge's life

    def _start(self, *, real: bool = False, until_polling: bool = False) -> None:
        """real: as a program of its own, imports and all."""
        since = self._last_event()
        began = time.monotonic()
        if real:
            with self.log.open("ab") as log:
                self._popen = subprocess.Popen(
                    self._command(), stdin=subprocess.DEVNULL, stderr=log, env=self._env(), cwd=ROOT
                )
            self._pid = self._popen.pid
        else:
            self._mould_end.send(str(self.log).encode())
            self._pid, self._popen = int(self._mould_end.recv(64)), None
        if until_polling:
            self._polls_again(since, began, real)

    def _polls_again(self, since: int, began: float, real: bool) -> None:
        self._get("/sim/events", since=since, kinds="poll_began", hold_s=DEADLINE_S)
        took = time.monotonic() - began
        zygote = self._family().zygote
        ours = took - waited_s(self._pid) - (waited_s(zygote.pid) if zygote is not None else 0.0)
        (self.figures.to_poll_real if real else self.figures.to_poll).append(ours)
        if ours > 2 * START_S:  # one that the machine was slow for; the median is held against START_S (run.py)
            self._wrong(f"{ours:.2f} s from start to the first poll")

    def _sign_in(self) -> None:
        client: list[subprocess.Popen[str]] = []

        def ask() -> bool:
            client.append(
                subprocess.Popen(
                    [sys.executable, "-c", CTL, "login"], env=self._env(), cwd=ROOT, stdout=subprocess.DEVNULL
                )
            )
            try:
                return client[-1].wait(0.01) == 0
            except subprocess.TimeoutExpired:
                return True

        self._await(lambda: (self.home / "run" / "ctl-client.key").exists(), "the control socket")
        ask()
        self.bot = self.wechat.scan(self.people[0])
        if client[-1].wait(DEADLINE_S) != 0:
            raise AssertionError(f"login failed\n{self.tail()}")

    def _end_mould(self) -> None:
        self._mould_end.close()
        self._mould.wait(DEADLINE_S)

    def _end_all(self) -> None:
        self.board.disarm()
        if self._pid and (one := process(self._pid)) is not None:
            one.kill()
            self._reap()
        left, _ = all_gone(self._family().everybody, GONE_S)
        for one in left:
            self._wrong(f"process {one.pid} is left at the end")
            one.kill()

    def _reap(self) -> None:
        ended(self._pid, DEADLINE_S)
        if self._popen is not None:
            self._popen.wait(DEADLINE_S)
        self._pid = 0

    def _family(self) -> Family:
        return family(self.mark, self._pid, frozenset({self._mould.pid, os.getpid()}))

    # -- talk

    def say(self, person: str | None = None) -> None:
        """One message of somebody's, of some kind."""
        person = person or self.random.choice(self.people)
        self._numbers += 1
        token = f"t{self._numbers}"
        if self.agent is Agent.MODEL:
            text, answer = self._scripted(token)
        else:
            weights = {
                "say": 8,
                "pieces 3": 8,
                "pieces 6": 3,
                "long 3": 1,
                "long 14": 1,
                "nothing": 1,
                "fail": 1,
                "exit": 1,
            }
            order = self.random.choices(list(weights), list(weights.values()))[0]
            text = f"{token} {order}"
            answer = host.answer_to(text)
        said = self.wechat.say(person, text, to=self.bot)
        self._said.append(checks.Said(said.message_id, person, text, answer, said.at_ms, said.seq, "MODEL" not in text))

    def _scripted(self, token: str) -> tuple[str, str]:
        """For tests/fakes/acp_agent.py, and what it says to that. The token stands first in what it remembers."""
        order = self.random.choice(("SAY", "MODEL", "MODEL", "SLOW"))
        said = {"SAY": token, "SLOW": "s0 s1 s2", "MODEL": f"ECHO: {token}[over]"}[order]
        return f"{token}\n{order} {3 if order == 'SLOW' else token}", f"You said: {token} {said}"

    # -- kills

    def kill(self, kill: Kill) -> None:
        """Talk, kill, and (after a supervisor) start again."""
        if POINTS.get(kill.point or "") is Passer.STARTING:
            self._kill_while_starting(kill)
            return
        if not self._pid:
            self._start(real=self.random.random() < 0.1, until_polling=True)
        if kill.point in COLD:
            self._kill_all_nannies()
        if kill.point in OF_AN_END:
            self.say()
        if kill.point is not None:
            self.board.arm(kill.point, kill.passages)
        if kill.point in OF_AN_END:
            self._kill_some_worker(Target.WORKER)
        if kill.point in OF_A_GATEWAY and (gateway := self._family().gateway) is not None and gateway.kill():
            self._count(Target.GATEWAY)
        self.say()
        if self.random.random() < 0.5 or kill.passages > 1:
            self.say()
        stands = self._stands(kill.point) if kill.point is not None else None
        if stands is None:
            time.sleep(self.random.uniform(0, LATEST_S))  # the instant that is tried out
        self._strike(kill.target, stands, kill.point)
        self.board.disarm()

    def _kill_all_nannies(self) -> None:
        for nanny in self._family().nannies:
            if nanny.kill():
                self._count(Target.NANNY)
                self._dead.append(nanny)

    def _stands(self, point: str) -> int | None:
        """Who has come by, once somebody has."""
        until = time.monotonic() + POINT_S
        while (pid := self.board.reached()) is None:
            if time.monotonic() > until:
                self.figures.missed[point] += 1
                return None
            time.sleep(0.0005)  # shared memory tells nobody of a change
        self.figures.points[point] += 1
        return pid

    def _strike(self, target: Target, stands: int | None, point: str | None) -> None:
        if target is Target.SUPERVISOR:
            self._kill_supervisor()
            return
        if target in (Target.WORKER, Target.NANNY):
            self._kill_some_worker(target, stands if point and POINTS[point] in (Passer.NANNY, Passer.WORKER) else None)
            return
        found = self._family()
        one = found.zygote if target is Target.ZYGOTE else found.gateway
        if one is not None and one.kill():
            self._count(target)
            self._dead.append(one)

    def _kill_some_worker(self, target: Target, nanny: int | None = None) -> None:
        until = time.monotonic() + 1.0
        while True:
            found = self._family()
            pairs = [(worker, parent) for worker, parent in found.workers if nanny in (None, parent)]
            nannies = [one for one in found.nannies if nanny in (None, one.pid)]
            candidates = [worker for worker, _ in pairs] if target is Target.WORKER else nannies
            if candidates:
                one = self.random.choice(candidates)
                if one.kill():
                    self._count(target)
                    self._dead.append(one)
                    if target is Target.NANNY and (worker := found.of(one.pid)) is not None:
                        self._dead.append(worker)
                    return
            if time.monotonic() > until:
                return
            time.sleep(0.003)

    def _kill_supervisor(self) -> None:
        one = process(self._pid)
        if one is None or not one.kill():
            self._wrong("the supervisor ended by itself")
        else:
            self._count(Target.SUPERVISOR)
            self._kills += 1
        before = self._family().everybody
        self.board.disarm()
        self._reap()
        left, took = all_gone((*before, *self._dead), GONE_S)
        left += [one for one in self._family().everybody if one not in before]  # forked in its last moment
        if left:
            left, more = all_gone(tuple(left), GONE_S)
            took += more
        self.figures.gone.append(took)
        self._dead.clear()
        for one in left:
            self._wrong(f"process {one.pid} outlived its supervisor")
            one.kill()

    def _kill_while_starting(self, kill: Kill) -> None:
        self.say()
        if self._pid:
            time.sleep(self.random.uniform(0, LATEST_S))
            self._kill_supervisor()
        self.board.arm(kill.point or "", kill.passages)
        self._start()
        stands = self._stands(kill.point or "")
        if stands is not None:
            self._strike(kill.target, None, None)
        self.board.disarm()

    def _count(self, target: Target) -> None:
        self.figures.kills[target.value] += 1

    def _never_recorded(self) -> frozenset[str]:
        """Messages that were handed out, and whose place the next poll's cursor did not know: who had got them was killed
        before its commit. A cursor that knows them says that they were recorded."""
        if self.kept:
            return frozenset()
        events = self._get("/sim/events", since=0, kinds="handed,request")["events"]
        polls = {one["n"]: one["body"] for one in self._get("/sim/requests", path="getupdates")["requests"]}
        waiting = list(self._said)  # the service hands out in the order of writing
        handed: list[checks.Said] = []
        lost: set[str] = set()
        for event in events:
            if event["event"] == "handed":
                handed += waiting[: event["count"]]
                del waiting[: event["count"]]
            elif event["n"] in polls:
                known = _place(polls[event["n"]].get("get_updates_buf", ""))
                lost |= {said.message_id for said in handed if said.seq > known}
                handed.clear()
        return frozenset(lost)

    # -- rest

    def settle(self, check: Callable[[checks.Snapshot], list[str]] = checks.violations) -> None:
        """Bring everything to rest, and check it."""
        self.board.disarm()
        if not self._pid:
            self._start(until_polling=True)
        self._until_at_rest()
        for _ in range(20):
            hungry = self._rows("SELECT DISTINCT peer FROM part WHERE state = 'parked'")
            if not hungry:
                break
            for (person,) in hungry:
                self.figures.parked += 1
                said = self.wechat.say(person, "t0 more", to=self.bot)
                self._said.append(checks.Said(said.message_id, person, "t0 more", None, said.at_ms, said.seq))
            self._until_at_rest()
        left, _ = all_gone(tuple(self._dead), GONE_S)
        for one in left:
            self._wrong(f"process {one.pid} was killed, or its nanny was, and lives")
        self._dead.clear()
        seen = self.snapshot()
        for line in check(seen):
            self._wrong(line)
        self._account(seen)

    def until_quiet(self) -> None:
        """Nothing runs and nothing is on its way; polls may be failing."""
        self._await(
            lambda: self._rows(OPEN) == [(0,)] and not self._get("/sim/stats")["bots"][0]["waiting"],
            "an end to what runs",
        )

    def _until_at_rest(self) -> None:
        def resting() -> bool:
            (bot,) = [one for one in self._get("/sim/stats")["bots"] if one["bot"] == self.bot]
            if bot["waiting"] or not bot["polls_in_flight"]:
                return False
            # What a poll took and lost on its way back is handed out again by the next one.
            on_the_way = self.kept and self._rows("SELECT count(*) FROM message")[0][0] < len(self._said)
            return not on_the_way and self._rows(OPEN) == [(0,)]

        self._await(resting, "rest")

    def snapshot(self) -> checks.Snapshot:
        bubbles, spent = [], {}
        ours = dict(self._rows("SELECT peer, spent FROM peer"))
        for person in self.people:
            phone = self._get(f"/sim/people/{person}/phone")
            bubbles += [
                checks.Bubble(person, b["client_id"], b["text"]) for b in phone["bubbles"] if b["side"] == "bot"
            ]
            talk = next((talk for talk in phone["bots"] if talk["bot"] == self.bot), None)
            if talk is not None and person in ours:
                spent[person] = (ours[person], talk["budget"] - talk["budget_left"])
        return checks.Snapshot(
            said=tuple(self._said),
            bubbles=bubbles,
            sends=[
                checks.Send(s["to"], s["client_id"], s["outcome"], s["at_ms"]) for s in self._get("/sim/sends")["sends"]
            ],
            messages=[
                checks.Message(*row)
                for row in self._rows("SELECT row, sender, message_id, state, handled FROM message")
            ],
            parts=[
                checks.Part(*row)
                for row in self._rows("SELECT send_key, peer, message_row, kind, text, state FROM part ORDER BY place")
            ],
            prompts={person: self._prompts(person) for person in self.people},
            counters=dict(self._rows("SELECT name, value FROM counter")),
            spent=spent,
            supervisor_kills=self._kills,
            kept=self.kept,
            may_be_lost=self._never_recorded(),
        )

    def _prompts(self, person: str) -> list[str]:
        """Tokens of the prompts that this person's agent saw, in order."""
        folder = Places(self.home).session_dir(AccountId(self.people[0]), PeerId(person))
        if self.agent is Agent.SCRIPTED:
            with contextlib.suppress(FileNotFoundError):
                return [token for token in (folder / host.PROMPTS).read_text().split() if token != "t0"]
            return []
        seen = []
        for file in sorted(folder.rglob("*.jsonl"), key=lambda path: path.stat().st_ctime):
            for line in file.read_text().splitlines():
                who, text = json.loads(line)
                if who == "peer" and not text.startswith("t0"):
                    seen.append(text.split()[0])
        return seen

    def _account(self, seen: checks.Snapshot) -> None:
        """Totals of this home by now; a later settle replaces them."""
        figures = self.figures
        figures.states = Counter(message.state for message in seen.messages)
        figures.messages = len(seen.said)
        figures.bubbles = len(seen.bubbles)
        figures.repeats = sum(send.outcome == "repeat" for send in seen.sends)
        figures.lost_on_the_way = len(seen.said) - len(seen.messages)

    # -- small things

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        """Of the journal, read as a stranger does; closed at once, so that recovery after a kill stays SQLite's own."""
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                with contextlib.closing(sqlite3.connect(f"file:{Places(self.home).journal}?mode=ro", uri=True)) as db:
                    return db.execute(query).fetchall()
            except sqlite3.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def _await(self, enough: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + DEADLINE_S
        while not enough():
            if self._pid and ended(self._pid, 0.0):
                raise AssertionError(f"the supervisor ended by itself\n{self.tail()}")
            if time.monotonic() > until:
                raise AssertionError(f"no {what} within {DEADLINE_S:.0f} s\n{self._open()}\n{self.tail()}")
            time.sleep(0.01)  # two witnesses, of which the journal tells nobody of a change

    def _open(self) -> str:
        with contextlib.suppress(sqlite3.Error):
            return str(
                self._rows("SELECT row, sender, state FROM message WHERE state IN ('received', 'queued', 'running')")
                + self._rows("SELECT send_key, peer, kind, state FROM part WHERE state IN ('pending', 'sending')")
            )
        return ""

    def _last_event(self) -> int:
        return int(self._get("/sim/events", since=10**12)["last_event"])

    def _get(self, url: str, /, **query: Any) -> Any:
        answer = self._http.get(url, params=query)
        answer.raise_for_status()
        return answer.json()

    def _wrong(self, line: str) -> None:
        self.figures.violations.append(line)

    def tail(self, lines: int = 60) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


def _place(cursor: str) -> int:
    """How far a cursor of the simulated service has come."""
    return int(base64.b64decode(cursor).decode().partition("|")[2] or 0) if cursor else 0


def fitting(agent: Agent) -> Iterator[str]:
    """Points that a home with this agent comes by."""
    for point in POINTS:
        if agent is Agent.MODEL and point not in HOST_POINTS or agent is Agent.SCRIPTED and point not in MODEL_POINTS:
            yield point
