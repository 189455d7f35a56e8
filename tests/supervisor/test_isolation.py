"""supervisor/isolation.py: plans from settings, and the level from what a probe worker found."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.content import Access, Role
from protocol.spec import IsolationMode, Layer, NetworkMode, WorkerPlan
from supervisor.config import Workers
from supervisor.isolation import (
    ALWAYS,
    Isolation,
    Level,
    level,
    limit_kinds,
    plan_for,
    program_files,
    resolved,
    search_path,
    wanted,
)

WITH_NAMESPACES = frozenset({*ALWAYS, Layer.USER_NS})
WITH_OWN_UID = frozenset({*ALWAYS, Layer.OWN_UID})


def plan(**changed: object) -> WorkerPlan:
    given: dict[str, object] = {
        "access": Access.WORKSPACE,
        "network": NetworkMode.NONE,
        "mode": IsolationMode.REQUIRED,
        "session_dir": Path("/h/sessions/p"),
        "workspace": Path("/h/workspaces/p"),
        "media_dir": Path("/h/media/p"),
        "read": ("/srv/docs",),
        "write": (),
        "command": (),
        "home": Path("/h"),
        "workers": Workers(),
        "uid": None,
        "layers": (),
    }
    return plan_for(**(given | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (WITH_NAMESPACES, Level.STRONG),
        (WITH_OWN_UID, Level.STRONG),
        (WITH_OWN_UID - {Layer.PID_NS, Layer.MOUNT_NS}, Level.STRONG),
        (WITH_NAMESPACES - {Layer.USER_NS, Layer.PID_NS, Layer.MOUNT_NS}, Level.MEDIUM),
        (WITH_NAMESPACES - {Layer.LANDLOCK}, Level.MEDIUM),
        (WITH_NAMESPACES - {Layer.PID_NS}, Level.MEDIUM),
        (WITH_NAMESPACES - {Layer.USER_NS, Layer.PID_NS, Layer.MOUNT_NS, Layer.LANDLOCK}, Level.WEAK),
        (WITH_NAMESPACES - {Layer.SECCOMP}, Level.WEAK),
        (WITH_NAMESPACES - {Layer.NO_NEW_PRIVS}, Level.WEAK),
        (frozenset({Layer.RLIMITS, Layer.DESCRIPTORS, Layer.ENVIRONMENT}), Level.WEAK),
        (frozenset(), Level.WEAK),
    ],
)
def test_the_level_says_what_is_closed(layers: frozenset[Layer], expected: Level) -> None:
    assert level(layers) is expected


@given(layers=st.frozensets(st.sampled_from(Layer)), more=st.sampled_from(Layer))
def test_one_more_layer_never_lowers_the_level(layers: frozenset[Layer], more: Layer) -> None:
    order = [Level.WEAK, Level.MEDIUM, Level.STRONG]

    assert order.index(level(layers | {more})) >= order.index(level(layers))


def test_before_a_probe_the_machine_counts_as_weak_and_serves_the_operator_alone() -> None:
    isolation = Isolation(Workers())

    assert isolation.level is Level.WEAK and isolation.missing
    assert isolation.may_serve(Role.OPERATOR)
    assert not isolation.may_serve(Role.GUEST)


def test_after_a_strong_probe_everybody_is_served() -> None:
    isolation = Isolation(Workers())

    isolation.learn([layer.value for layer in WITH_NAMESPACES], [])

    assert isolation.level is Level.STRONG and isolation.missing == ()
    assert isolation.may_serve(Role.GUEST)


def test_best_effort_and_off_serve_everybody_at_weak_and_say_the_level() -> None:
    for mode in (IsolationMode.BEST_EFFORT, IsolationMode.OFF):
        isolation = Isolation(Workers(isolation=mode))

        assert isolation.may_serve(Role.GUEST)
        assert isolation.level is Level.WEAK


def test_under_required_each_layer_that_the_machine_offers_is_required() -> None:
    offered = tuple(WITH_NAMESPACES - {Layer.LANDLOCK})

    made = plan(layers=offered)

    assert set(made.required) == set(offered)
    assert Layer.LANDLOCK in made.wanted


def test_a_plan_before_the_probe_requires_nothing_so_that_the_probe_can_tell_all() -> None:
    assert plan().required == ()
    assert set(plan().wanted) == WITH_NAMESPACES


def test_best_effort_tries_all_and_requires_none() -> None:
    made = plan(mode=IsolationMode.BEST_EFFORT, layers=WITH_NAMESPACES)

    assert made.required == () and set(made.wanted) == WITH_NAMESPACES


def test_off_builds_no_wall() -> None:
    assert set(plan(mode=IsolationMode.OFF, layers=WITH_NAMESPACES).wanted) == {Layer.DESCRIPTORS, Layer.ENVIRONMENT}


def test_a_uid_of_its_own_takes_the_place_of_a_user_namespace() -> None:
    made = plan(uid=210_005, layers=WITH_OWN_UID)

    assert (made.uid, made.gid) == (210_005, 210_005)
    assert Layer.OWN_UID in made.required and Layer.USER_NS not in made.wanted
    assert Layer.USER_NS in wanted(IsolationMode.REQUIRED, uid=None)


def test_limits_and_hidden_home_come_from_the_settings() -> None:
    made = plan(workers=Workers(memory_mb=512, processes=20, file_mb=3, open_files=99))

    assert made.limits.memory_bytes == 512 * 1024 * 1024
    assert (made.limits.processes, made.limits.file_bytes, made.limits.open_files) == (20, 3 * 1024 * 1024, 99)
    assert made.hide == ("/h",)


def test_a_limit_without_a_cgroup_is_called_watched() -> None:
    kinds = limit_kinds(WITH_OWN_UID, NetworkMode.GATEWAY)

    assert kinds == {
        "memory": "watched",
        "processes": "capped",
        "cpu": "watched",
        "disk": "watched",
        "network": "gateway",
    }
    assert limit_kinds({*WITH_OWN_UID, Layer.CGROUP}, NetworkMode.NONE)["memory"] == "capped"
    assert limit_kinds(ALWAYS, NetworkMode.NONE)["processes"] == "watched"
    assert limit_kinds({*WITH_OWN_UID} - {Layer.RLIMITS}, NetworkMode.NONE)["processes"] == "watched"


def program(path: Path, first_line: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(first_line + "\n")
    path.chmod(0o755)
    return path


def test_a_linked_script_brings_its_package_and_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = program(tmp_path / "node" / "bin" / "node")
    script = program(tmp_path / "lib" / "node_modules" / "agent" / "dist" / "cli.js", "#!/usr/bin/env node")
    link = tmp_path / "bin" / "agent"
    link.parent.mkdir()
    link.symlink_to(script)
    monkeypatch.setenv("PATH", f"{link.parent}:{node.parent}")

    found = program_files(("agent", "--acp"))

    assert found.files == (str(link), str(script), str(node))
    assert str(tmp_path / "lib" / "node_modules") in found.folders
    assert {str(link.parent), str(node.parent)} <= set(found.folders)
    assert str(tmp_path) not in found.folders
    assert plan(command=("agent",)).execute == found.files


def test_a_script_of_a_venv_brings_the_whole_venv(tmp_path: Path) -> None:
    python = program(tmp_path / "venv" / "bin" / "python")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    script = program(tmp_path / "venv" / "bin" / "agent", f"#!{python}")

    found = program_files((str(script),))

    assert found.files == (str(script), str(python))
    assert found.folders == (str(tmp_path / "venv"),)


def test_a_program_in_the_operators_bin_opens_that_folder_and_not_the_home(tmp_path: Path) -> None:
    script = program(tmp_path / "bin" / "agent")
    (tmp_path / "secret").write_text("")

    assert program_files((str(script),)).folders == (str(script.parent),)


def test_a_folder_that_holds_the_bridges_home_is_never_opened_for_a_program(tmp_path: Path) -> None:
    script = program(tmp_path / "agent")

    made = plan(command=(str(script),), home=tmp_path / "state" / "bridge")

    assert str(tmp_path) not in made.read
    assert made.execute == (str(script),)


def test_a_script_that_names_itself_and_a_program_that_is_not_there_come_to_an_end(tmp_path: Path) -> None:
    itself = tmp_path / "loop"
    program(itself, f"#!{itself}")

    assert program_files((str(itself),)).files == (str(itself),)
    assert program_files(("no-such-program-anywhere",)).files == ()
    assert program_files(()).files == ()
    assert os.path.isabs(program_files(("sh",)).files[0])


def test_a_delegated_group_is_wanted_and_named_and_none_is_missed_where_there_is_none() -> None:
    delegated = plan(cgroup=Path("/sys/fs/cgroup/unit"))

    assert Layer.CGROUP in delegated.wanted
    assert delegated.cgroup == "/sys/fs/cgroup/unit"
    assert Layer.CGROUP not in plan().wanted
    assert Layer.CGROUP not in Isolation(Workers()).missing
    assert Layer.CGROUP in Isolation(Workers(), cgroup=Path("/sys/fs/cgroup/unit")).missing


def test_a_network_of_its_own_is_for_those_who_have_somebody_to_reach() -> None:
    for network in NetworkMode:
        own = network in (NetworkMode.GATEWAY, NetworkMode.PROXY)
        assert (Layer.NET_NS in plan(network=network).wanted) == own


def test_a_machine_without_a_way_to_the_gateway_shuts_out_whoever_needs_one_unless_told_otherwise() -> None:
    required, at_best = Isolation(Workers()), Isolation(Workers(isolation=IsolationMode.BEST_EFFORT))
    for isolation in (required, at_best):
        assert not isolation.shuts_out(NetworkMode.GATEWAY)
        isolation.learn([layer.value for layer in WITH_OWN_UID], ["net_ns"], NetworkMode.NONE)

    assert required.shuts_out(NetworkMode.GATEWAY) and required.shuts_out(NetworkMode.PROXY)
    assert not required.shuts_out(NetworkMode.NONE) and not required.shuts_out(NetworkMode.OPEN)
    assert not at_best.shuts_out(NetworkMode.GATEWAY)


def test_a_program_is_named_whole_and_found_with_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, script = tmp_path / "tools", tmp_path / "agents" / "agent"
    for file, text in ((tools / "runner", "#!/bin/sh\n"), (script, "#!/usr/bin/env runner\n")):
        file.parent.mkdir()
        file.write_text(text)
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{tools}:/usr/bin:/bin")

    assert resolved(("agent", "--acp")) == (str(script), "--acp")
    assert search_path(("agent",))["PATH"].split(":")[:2] == [str(script.parent), str(tools)]
    assert resolved(("no-such-agent", "x")) == ("no-such-agent", "x")
    assert search_path(("no-such-agent",)) == search_path(()) == {}
