"""worker/sandbox/plan.py: what each layer is told to do."""

import dataclasses
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.content import Access
from protocol.spec import IsolationMode, Layer, NetworkMode, WorkerLimits, WorkerPlan
from worker.sandbox.plan import (
    NANNY_LAYERS,
    ORDER,
    Facts,
    Right,
    Rule,
    Way,
    binds,
    bound_ports,
    environment,
    folders,
    has_no_way,
    is_below,
    kept_from_hiding,
    landlock_rules,
    pretends_chmod,
    process_limit,
    reached,
    sockets,
    tcp_ports,
    way_out,
    works_in,
)

FACTS = Facts(
    euid=1000,
    machine="x86_64",
    landlock_abi=7,
    interpreter=("/opt/python", "/opt/bridge/worker"),
    programs=("/opt/python/bin/python3",),
    system=("/usr", "/dev/null", "/etc/hosts"),
    links=(("/bin", "usr/bin"),),
    loaders=("/usr/lib/ld.so",),
)
PLAN = WorkerPlan(
    access=Access.WORKSPACE,
    mode=IsolationMode.REQUIRED,
    network=NetworkMode.NONE,
    session_dir="/home/op/bridge/sessions/p",
    workspace="/home/op/bridge/workspaces/p",
    media_dir="/home/op/bridge/media/p",
    read=("/srv/docs",),
    write=("/srv/out",),
    execute=("/opt/agent/bin/agent",),
    hide=("/home/op/bridge",),
    limits=WorkerLimits(1 << 30, 64, 1 << 20, 256, 60),
    wanted=tuple(Layer),
    required=(),
)
ROOT = dataclasses.replace(FACTS, euid=0)


def at(access: Access) -> WorkerPlan:
    return msgspec.structs.replace(PLAN, access=access)


def rights(plan: WorkerPlan) -> dict[str, Right]:
    return {rule.path: rule.rights for rule in folders(plan, FACTS)}


def test_what_lies_below_one_of_the_systems_links_is_shown_where_the_link_leads() -> None:
    """A script that begins with #!/bin/sh names /bin, over which nothing can be mounted."""
    plan = msgspec.structs.replace(PLAN, read=("/bin",), execute=("/bin/sh", "/usr/bin/dash"))

    paths = {rule.path for rule in folders(plan, FACTS)}

    assert {"/usr/bin", "/usr/bin/sh", "/usr/bin/dash"} <= paths
    assert not any(path.startswith("/bin") for path in paths)
    assert not any(is_below(rule.path, "/usr") for rule in binds(plan, FACTS)), "/usr shows them already"


def test_every_layer_has_its_place() -> None:
    assert sorted((*ORDER, *NANNY_LAYERS)) == sorted(Layer)
    assert ORDER.index(Layer.MOUNT_NS) < ORDER.index(Layer.OWN_UID) < ORDER.index(Layer.NO_NEW_PRIVS)
    assert ORDER[-3:] == (Layer.NO_NEW_PRIVS, Layer.LANDLOCK, Layer.SECCOMP)


@pytest.mark.parametrize(
    ("access", "workspace"),
    [
        (Access.CHAT, None),
        (Access.READONLY, Right.READ),
        (Access.WORKSPACE, Right.READ | Right.WRITE | Right.EXECUTE),
        (Access.FULL, Right.READ | Right.WRITE | Right.EXECUTE),
    ],
)
def test_the_workspace_is_as_open_as_the_access_level(access: Access, workspace: Right | None) -> None:
    assert rights(at(access)).get(PLAN.workspace) == workspace


@pytest.mark.parametrize("access", list(Access))
def test_media_are_read_and_the_session_written_at_every_level(access: Access) -> None:
    assert rights(at(access))[PLAN.media_dir] == Right.READ
    assert rights(at(access))[PLAN.session_dir] & Right.WRITE


@pytest.mark.parametrize("access", [Access.CHAT, Access.READONLY])
def test_below_workspace_only_named_programs_are_executed(access: Access) -> None:
    executed = {path for path, right in rights(at(access)).items() if right & Right.EXECUTE}

    assert executed == {"/opt/python/bin/python3", "/usr/lib/ld.so", "/opt/agent/bin/agent"}


@pytest.mark.parametrize("access", [Access.CHAT, Access.READONLY, Access.WORKSPACE])
def test_nothing_above_the_peers_own_folders_is_given_below_full(access: Access) -> None:
    for path in rights(at(access)):
        assert not is_below(PLAN.session_dir, path) and not is_below(PLAN.workspace, path)


def test_a_bind_is_left_out_where_a_parent_shows_it_with_the_same_right_to_write() -> None:
    plan = msgspec.structs.replace(PLAN, read=("/usr/share/doc", "/srv"), write=("/srv/out", "/usr/local/var"))

    shown = [rule.path for rule in binds(plan, FACTS)]

    assert "/usr/share/doc" not in shown and "/usr/lib/ld.so" not in shown
    assert shown.index("/srv") < shown.index("/srv/out")
    assert "/usr/local/var" in shown


@given(
    paths=st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join).map("/".__add__), max_size=8)
)
def test_binds_and_their_parents_give_each_folder_its_right_to_write(paths: list[str]) -> None:
    plan = msgspec.structs.replace(PLAN, read=tuple(paths[::2]), write=tuple(paths[1::2]), execute=())
    shown = binds(plan, FACTS)

    for rule in folders(plan, FACTS):
        nearest = max(
            (bind for bind in shown if bind.path == rule.path or is_below(rule.path, bind.path)),
            key=lambda bind: len(bind.path),
        )
        assert bool(nearest.rights & Right.WRITE) == bool(rule.rights & Right.WRITE)


def test_at_full_only_the_peers_own_folders_come_back_into_the_hidden_home() -> None:
    kept = {rule.path for rule in kept_from_hiding(at(Access.FULL), FACTS)}

    assert kept == {PLAN.session_dir, PLAN.workspace, PLAN.media_dir}


def test_the_common_folders_are_written_only_where_they_are_private() -> None:
    private = frozenset({Layer.MOUNT_NS})

    assert Rule("/tmp", Right.READ | Right.WRITE | Right.EXECUTE) in landlock_rules(PLAN, FACTS, private)
    assert "/tmp" not in {rule.path for rule in landlock_rules(PLAN, FACTS, frozenset())}
    assert "/dev/shm" not in {rule.path for rule in landlock_rules(at(Access.FULL), FACTS, private)}


@pytest.mark.parametrize("network", [NetworkMode.GATEWAY, NetworkMode.PROXY])
def test_the_first_way_to_the_gateway_that_works_is_taken(network: NetworkMode) -> None:
    plan = msgspec.structs.replace(PLAN, network=network, gateway_port=4711, wanted=(Layer.SECCOMP, Layer.NET_NS))
    asking, own_network = replace(FACTS, notifies=True), frozenset({Layer.NET_NS})

    for machine, achieved, way in (
        (FACTS, own_network, Way.LISTENER),
        (asking, own_network, Way.LISTENER),
        (asking, frozenset[Layer](), Way.ASKED),
        (FACTS, frozenset[Layer](), None),
    ):
        assert way_out(plan, machine, achieved) is way
        assert sockets(plan, machine, achieved) is (NetworkMode.NONE if way is None else NetworkMode.GATEWAY)
        assert tcp_ports(plan, machine, achieved) == (() if way is None else (4711,))
        assert has_no_way(plan, machine, achieved) == (way is None)
        assert reached(plan, machine, achieved | {Layer.SECCOMP}) is (NetworkMode.NONE if way is None else network)


def test_an_agent_talks_with_itself_only_in_a_network_of_its_own() -> None:
    plan = msgspec.structs.replace(
        PLAN, network=NetworkMode.GATEWAY, gateway_port=4711, own_port=4096, wanted=(Layer.SECCOMP, Layer.NET_NS)
    )
    asking, own_network = replace(FACTS, notifies=True), frozenset({Layer.NET_NS})

    assert tcp_ports(plan, asking, own_network) == (4711, 4096)
    assert bound_ports(plan, own_network) == (4096,)
    assert tcp_ports(plan, asking, frozenset()) == (4711,)
    assert bound_ports(plan, frozenset()) == ()


def test_a_worker_without_a_model_has_no_way_and_misses_none() -> None:
    asking = replace(FACTS, notifies=True)

    assert way_out(PLAN, asking, frozenset(Layer)) is None
    assert not has_no_way(PLAN, asking, frozenset())


def test_without_any_wall_the_network_is_open_and_said_to_be() -> None:
    assert reached(PLAN, FACTS, frozenset({Layer.RLIMITS})) is NetworkMode.OPEN
    assert reached(PLAN, FACTS, frozenset({Layer.SECCOMP})) is NetworkMode.NONE


@pytest.mark.parametrize("access", list(Access))
def test_only_full_has_an_open_network(access: Access) -> None:
    plan = msgspec.structs.replace(at(access), network=NetworkMode.OPEN)

    assert sockets(plan, FACTS, frozenset(Layer)) is (NetworkMode.OPEN if access is Access.FULL else NetworkMode.NONE)
    assert (tcp_ports(plan, FACTS, frozenset(Layer)) is None) == (access is Access.FULL)


def test_processes_are_limited_only_where_the_count_is_the_workers_own() -> None:
    own = msgspec.structs.replace(PLAN, uid=210001, gid=210001)
    namespaced = frozenset({Layer.USER_NS})

    assert process_limit(PLAN, FACTS, frozenset()) is None
    assert process_limit(PLAN, FACTS, namespaced) is not None
    assert process_limit(PLAN, ROOT, namespaced) is None, "the kernel never holds root to it"
    assert process_limit(own, ROOT, frozenset()) == 64


def test_modes_are_pretended_only_where_foreign_files_of_our_user_are_in_sight() -> None:
    assert pretends_chmod(PLAN, frozenset())
    assert not pretends_chmod(PLAN, frozenset({Layer.MOUNT_NS}))
    assert not pretends_chmod(PLAN, frozenset({Layer.OWN_UID}))
    assert not pretends_chmod(at(Access.FULL), frozenset())


def test_the_environment_names_the_session_as_home_and_the_agents_folder_first_in_path() -> None:
    made = environment(PLAN, FACTS)

    assert made["HOME"] == PLAN.session_dir and made["PWD"] == PLAN.workspace
    assert made["TMPDIR"].startswith(PLAN.session_dir)
    assert made["PATH"].split(":")[:2] == ["/opt/agent/bin", "/opt/python/bin"]
    assert works_in(at(Access.CHAT)) == PLAN.session_dir


def test_below_means_really_below() -> None:
    assert is_below("/a/b", "/a") and is_below("/a", "/")
    assert not is_below("/a", "/a") and not is_below("/ab", "/a")
