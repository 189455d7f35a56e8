"""worker/sandbox/__init__.py: apply() achieves, names what is missing, or refuses to go on."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from protocol.spec import Layer, NetworkMode, WorkerPlan
from tests.attacks.sandboxed import outside
from tests.worker.sandbox.test_namespaces import PLAN
from worker import sandbox
from worker.sandbox.facts import facts

POOR = dataclasses.replace(facts(), landlock_abi=0, machine="vax")


@pytest.fixture
def plan(tmp_path: Path) -> WorkerPlan:
    folder = str(tmp_path)
    return msgspec.structs.replace(
        PLAN,
        session_dir=folder,
        workspace=folder,
        media_dir=folder,
        network=NetworkMode.GATEWAY,
        wanted=(Layer.SECCOMP, Layer.NO_NEW_PRIVS, Layer.LANDLOCK, Layer.RLIMITS, Layer.PID_NS, Layer.CGROUP),
    )


def applying(plan: WorkerPlan, already: frozenset[Layer] = frozenset()) -> list[object]:
    applied = sandbox.apply(plan, already=already, facts=POOR)
    return [[*map(str, applied.layers)], [*map(str, applied.missing)], applied.network.value]


def test_what_was_achieved_and_what_is_missing_are_named_in_the_order_of_the_list(plan: WorkerPlan) -> None:
    told = outside(lambda: applying(plan, frozenset({Layer.PID_NS}))).value

    assert told == [["no_new_privs", "rlimits", "pid_ns"], ["landlock", "seccomp", "cgroup"], "open"]


def test_a_layer_that_nobody_wants_is_neither_achieved_nor_missing(plan: WorkerPlan) -> None:
    told = outside(lambda: applying(msgspec.structs.replace(plan, wanted=()), frozenset({Layer.USER_NS}))).value

    assert told == [[], [], "open"]  # nothing was there to stop it


@pytest.mark.parametrize("layer", [Layer.LANDLOCK, Layer.SECCOMP, Layer.PID_NS, Layer.CGROUP])
def test_a_required_layer_that_is_not_to_be_had_ends_it_by_name(plan: WorkerPlan, layer: Layer) -> None:
    required = msgspec.structs.replace(plan, required=(layer,))

    def start() -> str:
        with pytest.raises(sandbox.LayerFailed) as failed:
            applying(required)
        return f"{failed.value.layer} {str(failed.value).startswith(f'{layer.value}: ')}"

    assert outside(start).value == f"{layer.value} True"
