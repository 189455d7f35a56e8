"""cgroup: what is written into a worker's group, and when. The group is a folder of plain files here."""

import os
from pathlib import Path

import msgspec
import pytest

from protocol.spec import Layer, WorkerPlan
from tests.fakes import workers
from tests.fakes.workers import BARE
from worker.sandbox import cgroup


@pytest.fixture
def plan(tmp_path: Path) -> WorkerPlan:
    parent = tmp_path / "group"
    parent.mkdir()
    made = workers.plan(tmp_path, wanted=(*BARE, Layer.CGROUP))
    return msgspec.structs.replace(made, cgroup=str(parent))


def test_a_group_holds_memory_processes_and_its_share_of_the_processor(plan: WorkerPlan) -> None:
    group = cgroup.make(plan, "worker-1")

    assert group is not None
    written = {one.name: one.read_text() for one in Path(group.folder).iterdir()}
    assert written == {
        "memory.max": str(plan.limits.memory_bytes),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": str(plan.limits.processes + 8),
        "cpu.weight": "20",
    }


def test_who_joins_names_itself(plan: WorkerPlan) -> None:
    group = cgroup.make(plan, "worker-1")
    assert group is not None

    group.join()

    assert Path(group.folder, "cgroup.procs").read_text() == "0"


def test_without_a_delegated_folder_there_is_no_group(plan: WorkerPlan) -> None:
    assert cgroup.make(msgspec.structs.replace(plan, cgroup=""), "worker-1") is None
    assert cgroup.make(msgspec.structs.replace(plan, wanted=BARE), "worker-1") is None


def test_a_group_that_cannot_be_made_leaves_nothing(plan: WorkerPlan) -> None:
    gone = msgspec.structs.replace(plan, cgroup=f"{plan.cgroup}/absent")

    assert cgroup.make(gone, "worker-1") is None
    assert os.listdir(plan.cgroup) == []


@pytest.mark.parametrize(("count", "ran_out"), [("0", False), ("1", True), ("12", True)])
def test_the_kernel_tells_who_ran_out_of_memory(plan: WorkerPlan, count: str, ran_out: bool) -> None:
    group = cgroup.make(plan, "worker-1")
    assert group is not None
    assert not group.ran_out_of_memory()

    Path(group.folder, "memory.events").write_text(f"low 0\noom 3\noom_kill {count}\noom_group_kill 1\n")

    assert group.ran_out_of_memory() is ran_out
