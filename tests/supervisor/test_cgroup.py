"""cgroup: where a group of our own can be had, by files that look like the kernel's. A real one needs a service manager
that delegates; where there is none, nothing is touched."""

import os
from pathlib import Path

import pytest

from supervisor.cgroup import missing_controllers, own_group, prepare

OURS = [100, 101]


def delegated(root: Path, *, controllers: str = "cpuset cpu io memory pids", inside: str = "100\n101\n") -> Path:
    """A cgroup root with one group in it; the text of /proc/self/cgroup beside it."""
    group = root / "unit.service"
    group.mkdir()
    (group / "cgroup.controllers").write_text(controllers)
    (group / "cgroup.procs").write_text(inside)
    (group / "cgroup.subtree_control").write_text("")
    (root / "self").write_text("0::/unit.service\n")
    return group


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("0::/user.slice/user-1000.slice/bridge.service\n", "/user.slice/user-1000.slice/bridge.service"),
        ("4:memory:/x\n1:name=systemd:/y\n0::/z\n", "/z"),
        ("4:memory:/x\n", None),
        ("0::/\n", None),
        ("0::/../../elsewhere\n", None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_our_group_is_the_one_of_version_two(text: str, group: str | None) -> None:
    assert own_group(text) == group


def test_every_controller_that_a_limit_needs_has_to_be_there() -> None:
    assert missing_controllers("cpuset cpu io memory pids") == frozenset()
    assert missing_controllers("hugetlb cpu") == {"memory", "pids"}


def test_a_delegated_group_is_left_for_a_leaf_and_hands_its_controllers_on(tmp_path: Path) -> None:
    group = delegated(tmp_path)
    (group / "worker-17").mkdir()

    assert prepare(OURS, root=tmp_path, proc_cgroup=tmp_path / "self") == group

    assert (group / "bridge" / "cgroup.procs").read_text() in ("100", "101")
    assert (group / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert not (group / "worker-17").exists(), "what a killed nanny left is removed"


@pytest.mark.parametrize(
    "kind", ["foreign process", "empty", "no controller", "no group", "no version two", "nonsense", "refused"]
)
def test_anything_else_is_left_alone(tmp_path: Path, kind: str) -> None:
    group = delegated(
        tmp_path,
        controllers="cpu" if kind == "no controller" else "cpu memory pids",
        inside={"foreign process": "100\n101\n7\n", "empty": "", "nonsense": "x"}.get(kind, "100\n"),
    )
    if kind == "no group":
        (tmp_path / "self").write_text("0::/elsewhere\n")
    if kind == "no version two":
        (tmp_path / "self").write_text("4:memory:/unit.service\n")
    if kind == "refused":
        (group / "bridge").write_text("a file stands where the leaf should be")

    assert prepare(OURS, root=tmp_path, proc_cgroup=tmp_path / "self") is None

    assert (group / "cgroup.subtree_control").read_text() == ""


def test_where_nothing_is_delegated_there_is_none() -> None:
    assert prepare([os.getpid()], proc_cgroup=Path("/nowhere")) is None
