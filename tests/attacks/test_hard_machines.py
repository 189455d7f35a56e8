"""Machines that refuse a part: what is left has to hold, and what is missing has to be said."""

import dataclasses
import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from protocol.spec import Layer, WorkerPlan
from tests.attacks.sandboxed import IN_EVERY_SHAPE, SHAPES, Stage, become_namespace_root, inside, outside
from worker import sandbox
from worker.sandbox import linux, namespaces, probe
from worker.sandbox.facts import facts

only_namespaces = pytest.mark.parametrize("stage", ["namespaces"], indirect=True)


def cover_a_part_of_proc() -> None:
    """As container programs do; from then on the kernel refuses a second /proc in a user namespace."""
    become_namespace_root()
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", "/proc/sys", "tmpfs", linux.MS_RDONLY)


@only_namespaces
def test_where_a_second_proc_is_refused_the_covered_one_is_kept_and_foreign_processes_stay_closed(
    stage: Stage,
) -> None:
    plan = stage.plan()
    sibling = stage.sibling

    def attack() -> list[object]:
        closed = []
        for name in ("environ", "mem", "root", "cwd", "exe", "fd/0", f"root{stage.token}"):
            try:
                os.close(os.open(f"/proc/{sibling}/{name}", os.O_RDONLY))
            except OSError as error:
                closed.append(errno.errorcode[error.errno])
        seen = Path(f"/proc/{sibling}").exists()
        try:
            os.kill(sibling, 0)
        except OSError as error:
            closed.append(errno.errorcode[error.errno])
        shell = subprocess.check_output(
            ["/bin/sh", "-c", "cat < /dev/null; echo $(readlink /proc/self/exe)"], text=True
        )
        return [seen, os.listdir("/proc/sys"), sorted(set(closed)), len(closed), shell.strip()]

    told = inside(attack, plan, before=cover_a_part_of_proc).value

    assert isinstance(told, list), told
    seen, covered, codes, count, shell = told
    assert seen and covered == [], "this is the covered /proc, or the test tests nothing"
    assert set(codes) <= {"EACCES", "EPERM", "ESRCH"} and count == 8
    assert shell.endswith("readlink")


def no_more_namespaces() -> None:
    become_namespace_root()
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def without_maps() -> None:
    """Like AppArmor on Ubuntu: unshare works, writing the maps is refused. /proc is read-only here."""
    become_namespace_root()
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.restrict_mount("/proc", linux.MOUNT_ATTR_RDONLY)


def best_effort(plan: WorkerPlan) -> WorkerPlan:
    return msgspec.structs.replace(plan, required=())


@only_namespaces
@pytest.mark.parametrize("refusal", [no_more_namespaces, without_maps])
def test_where_user_namespaces_are_refused_the_rest_holds_and_they_are_named(
    stage: Stage, refusal: Callable[[], None]
) -> None:
    """B-057"""

    def measure() -> list[list[Layer]]:
        refusal()
        measured = probe.measure(best_effort(stage.plan()))
        return [list(measured.layers), list(measured.missing)]

    told = outside(measure).value

    assert isinstance(told, list), told
    layers, missing = told
    assert {"user_ns", "pid_ns"} <= set(missing)
    assert {layer.value for layer in IN_EVERY_SHAPE} <= set(layers)


@only_namespaces
@pytest.mark.parametrize("layer", [Layer.LANDLOCK, Layer.SECCOMP, Layer.USER_NS, Layer.OWN_UID, Layer.CGROUP])
def test_a_required_layer_that_fails_stops_the_worker_before_it_does_anything(stage: Stage, layer: Layer) -> None:
    """B-025"""
    plan = stage.plan()
    poor = dataclasses.replace(facts(), landlock_abi=0, machine="vax")
    required = msgspec.structs.replace(plan, wanted=(layer,), required=(layer,))

    def start() -> str:
        try:
            sandbox.apply(required, already=frozenset(), facts=poor)
        except sandbox.LayerFailed as failed:
            return failed.layer.value
        return "started"

    assert outside(start).value == layer.value


@only_namespaces
def test_a_wanted_layer_that_fails_is_missing_and_never_claimed(stage: Stage) -> None:
    plan = best_effort(stage.plan(also=(Layer.CGROUP,), without=(Layer.DESCRIPTORS,)))
    poor = dataclasses.replace(facts(), landlock_abi=0)

    def start() -> list[str]:
        applied = sandbox.apply(plan, already=frozenset(), facts=poor)
        return [layer.value for layer in applied.missing]

    told = outside(start).value

    assert isinstance(told, list)
    assert {"landlock", "user_ns", "pid_ns", "cgroup"} <= set(told)


@only_namespaces
def test_mounts_that_fail_half_way_leave_the_worker_with_its_files(stage: Stage) -> None:
    plan = best_effort(stage.plan(without=(Layer.DESCRIPTORS,)))
    # A link in the new root's way: the third step of a dozen.
    broken = dataclasses.replace(facts(), links=(("/tmp", "elsewhere"),))

    def start() -> list[object]:
        applied = sandbox.apply(plan, already=frozenset({Layer.USER_NS, Layer.PID_NS}), facts=broken)
        Path(plan.session_dir, "still").write_text("here")
        return [Layer.MOUNT_NS in applied.missing, Path(plan.session_dir, "kept").exists()]

    outcome = outside(start, as_namespace_root=True)

    assert outcome.value == [True, True], outcome
    assert (stage.folder("sessions") / "still").read_text() == "here"


@only_namespaces
@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6])
def test_every_older_landlock_is_served_with_the_rights_that_it_knows(stage: Stage, abi: int) -> None:
    if abi > facts().landlock_abi:
        pytest.skip("this kernel's own is older")
    plan = stage.plan(without=(Layer.USER_NS, Layer.PID_NS, Layer.MOUNT_NS))
    older = dataclasses.replace(facts(), landlock_abi=abi)

    def attack() -> list[object]:
        Path(plan.workspace, "file").write_text("x")
        try:
            stage.token.read_bytes()
        except PermissionError:
            return ["closed"]
        return ["open"]

    assert inside(attack, plan, machine=older).value == ["closed"]


def test_the_probe_reports_what_this_shape_offers(stage: Stage) -> None:
    measured = probe.measure(best_effort(stage.plan()))

    assert set(measured.layers) == set(SHAPES[stage.shape])
    assert measured.missing == ()


@only_namespaces
def test_the_probe_does_not_believe_a_layer_that_lets_everything_through(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for layer in ("landlock", "seccomp"):
        monkeypatch.setattr(getattr(sandbox, layer), "apply", lambda *_, **__: None)
    monkeypatch.setattr(namespaces, "own_mounts", lambda *_: None)

    measured = probe.measure(best_effort(stage.plan()))

    assert set(measured.missing) == {Layer.LANDLOCK, Layer.SECCOMP, Layer.MOUNT_NS}
