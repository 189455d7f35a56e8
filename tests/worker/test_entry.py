"""entry: a worker's first steps, in a process of its own."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.codec import Unframer, encode, frame, from_worker
from protocol.spec import LAYER_FAILED, Layer, WorkerPlan
from protocol.to_supervisor import VERSION, FromWorker, Leaving, Pulse, Ready, Remarked
from protocol.to_worker import Grant
from tests.fakes import workers
from worker import entry
from worker.link import Link
from worker.turn import Pace


class Born:
    """A worker forked from this process; we are its nanny."""

    def __init__(self, plan: WorkerPlan, serve: entry.Serve) -> None:
        self.end, theirs = socket.socketpair()
        self.end.settimeout(workers.DEADLINE_S)
        self._unframer = Unframer()
        self._payloads: list[bytes] = []
        self.pid = os.fork()
        if self.pid == 0:
            self.end.close()
            entry.main(theirs, plan, frozenset(), serve)
        theirs.close()

    def go(self) -> None:
        self.end.send(b"\0")

    def hear(self) -> FromWorker:
        while not self._payloads:
            data = self.end.recv(1 << 16)
            assert data, "the worker has ended"
            self._payloads += self._unframer.feed(data)
        return from_worker.decode(self._payloads.pop(0))

    def grant(self, grant: Grant) -> None:
        self.end.sendall(frame(encode(grant)))

    def ended(self) -> int:
        self.end.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


Start = Callable[..., Born]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    born: list[Born] = []

    def one(serve: entry.Serve, **layers: tuple[Layer, ...]) -> Born:
        born.append(Born(workers.plan(tmp_path, **layers), serve))
        return born[-1]

    yield one
    for each in born:
        each.end.close()
        try:
            os.kill(each.pid, 9)
            os.waitpid(each.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


async def reports(link: Link, grant: Grant) -> None:
    fds = " ".join(sorted(os.listdir("/proc/self/fd"), key=int))
    await link.send(Remarked("fds", fds))
    await link.send(Remarked("env", " ".join(sorted(os.environ))))
    await link.send(Remarked("cwd", os.getcwd()))
    await link.send(Remarked("workspace", grant.workspace))


async def pulses_only(link: Link, grant: Grant) -> None:
    link.pace(Pace.BUSY)
    await link.receive()


async def breaks(link: Link, grant: Grant) -> None:
    raise RuntimeError("a bug")


def test_ready_comes_after_the_plan_and_before_the_grant(start: Start) -> None:
    worker = start(reports, wanted=(*workers.BARE, Layer.CGROUP))
    worker.go()

    ready = worker.hear()

    assert ready == Ready(VERSION, ("no_new_privs", "descriptors", "environment", "rlimits"), ("cgroup",), "open")
    assert "NoNewPrivs:\t1" in Path(f"/proc/{worker.pid}/status").read_text()
    assert worker.ended() == 1  # no grant ever came


def test_it_starts_with_nothing_but_its_link(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary")
    worker = start(reports)
    worker.go()
    worker.hear()

    worker.grant(workers.grant(tmp_path))
    told = {}
    for _ in range(4):
        message = worker.hear()
        assert isinstance(message, Remarked)
        told[message.level] = message.text

    # 0, 1, 2 and the link; the loop's own poll and its pair; the folder being listed.
    assert len(told["fds"].split()) == 8
    assert "CANARY_TOKEN" not in told["env"].split()
    assert told["cwd"] == told["workspace"] == str(tmp_path / "workspace")
    assert worker.ended() == 0


def test_without_the_nannys_go_it_does_nothing(start: Start) -> None:
    worker = start(reports)

    assert worker.ended() == 1


def test_a_required_layer_that_cannot_be_had_is_named_and_ends_it(start: Start) -> None:
    worker = start(reports, wanted=(*workers.BARE, Layer.CGROUP), required=(Layer.CGROUP,))
    worker.go()

    said = worker.hear()

    assert isinstance(said, Leaving)
    assert "cgroup" in said.reason
    assert worker.ended() == LAYER_FAILED


def test_it_pulses_while_it_works(start: Start, tmp_path: Path) -> None:
    worker = start(pulses_only)
    worker.go()
    worker.hear()

    worker.grant(workers.grant(tmp_path))

    assert [worker.hear(), worker.hear()] == [Pulse(), Pulse()]
    assert worker.ended() == 0


def test_a_bug_ends_the_worker_and_not_in_its_parents_frames(start: Start, tmp_path: Path) -> None:
    worker = start(breaks)
    worker.go()
    worker.hear()

    worker.grant(workers.grant(tmp_path))

    assert worker.ended() == 1
