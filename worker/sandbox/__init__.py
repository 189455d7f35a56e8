"""A worker's sandbox: apply() puts every layer of a plan in place, in order, and says what was achieved.

plan.py decides, one file per layer performs; namespaces.enter_nanny() and leave_nanny() are the nanny's part.
"""

import contextlib
import os
from dataclasses import dataclass
from typing import assert_never

from protocol.errors import BridgeError
from protocol.spec import IsolationMode, Layer, NetworkMode, WorkerPlan
from worker.sandbox import descriptors, environment, landlock, linux, namespaces, own_uid, rlimits, seccomp
from worker.sandbox import plan as decide
from worker.sandbox.facts import facts as find_facts
from worker.sandbox.plan import Facts


class LayerFailed(BridgeError):
    """A layer that the plan requires could not be had: this worker must not start."""

    def __init__(self, layer: Layer, reason: str) -> None:
        super().__init__(f"{layer.value}: {reason}")
        self.layer = layer
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Applied:
    """layers: achieved, the nanny's among them. missing: wanted and not achieved. network: what it reaches.

    way        how it reaches the gateway; None where it does not, or needs no way
    hand_over  the descriptor that the nanny needs for that, to be closed here once it has it
    """

    layers: tuple[Layer, ...]
    missing: tuple[Layer, ...]
    network: NetworkMode
    way: decide.Way | None = None
    hand_over: int | None = None


def apply(
    plan: WorkerPlan, *, already: frozenset[Layer], keep: tuple[int, ...] = (), facts: Facts | None = None
) -> Applied:
    """Put this process, which has one thread, behind the plan's layers. There is no way back.

    already  what namespaces.enter_nanny() achieved before the fork
    keep     descriptors that stay open beside 0, 1 and 2
    facts    None = find them
    raises   LayerFailed for a required layer; a wanted one that fails is missing
    """
    facts = facts or find_facts()
    wanted = frozenset(plan.wanted) | frozenset(plan.required)
    achieved = wanted & already
    for layer in decide.NANNY_LAYERS:
        if layer in plan.required and layer not in achieved:
            raise LayerFailed(layer, "the nanny did not get it")

    with contextlib.suppress(PermissionError):  # we lead one already
        os.setsid()  # a signal to "my group" crosses a pid namespace: it would reach the nanny, whose group we were born in

    hand_over: int | None = None
    for layer in decide.ORDER:
        if layer not in wanted:
            continue
        if layer is Layer.SECCOMP and plan.mode is IsolationMode.REQUIRED and decide.has_no_way(plan, facts, achieved):
            raise LayerFailed(Layer.NET_NS, decide.NO_WAY)
        try:
            hand_over = _perform(layer, plan, facts, achieved, keep) or hand_over
        except OSError as error:
            if layer in plan.required:
                raise LayerFailed(layer, error.strerror or str(error)) from error
        else:
            achieved |= {layer}

    return Applied(
        layers=tuple(layer for layer in Layer if layer in achieved),
        missing=tuple(layer for layer in Layer if layer in wanted - achieved),
        network=decide.reached(plan, facts, achieved),
        way=decide.way_out(plan, facts, achieved) if hand_over is not None else None,
        hand_over=hand_over,
    )


def _perform(
    layer: Layer, plan: WorkerPlan, facts: Facts, achieved: frozenset[Layer], keep: tuple[int, ...]
) -> int | None:
    """A descriptor that the nanny needs. raises OSError"""
    match layer:
        case Layer.DESCRIPTORS:
            descriptors.apply(keep)
        case Layer.MOUNT_NS:
            namespaces.own_mounts(plan, facts)
        case Layer.NET_NS:
            listener = namespaces.own_network(plan.gateway_port)
            return None if listener is None else listener.detach()
        case Layer.RLIMITS:
            rlimits.apply(plan.limits, processes=decide.process_limit(plan, facts, achieved))
        case Layer.OWN_UID:
            own_uid.apply(plan.uid, plan.gid)
        case Layer.ENVIRONMENT:
            environment.apply(decide.environment(plan, facts), folder=decide.works_in(plan))
        case Layer.NO_NEW_PRIVS:
            linux.drop_capabilities()
            linux.no_new_privs()
        case Layer.LANDLOCK:
            rules = decide.landlock_rules(plan, facts, achieved)
            landlock.apply(
                facts.landlock_abi,
                rules,
                tcp_connect=decide.tcp_ports(plan, facts, achieved),
                tcp_bind=decide.bound_ports(plan, achieved),
            )
        case Layer.SECCOMP:
            return seccomp.apply(
                decide.sockets(plan, facts, achieved),
                machine=facts.machine,
                pretend_chmod=decide.pretends_chmod(plan, achieved),
                ask_to_connect=decide.way_out(plan, facts, achieved) is decide.Way.ASKED,
            )
        case Layer.USER_NS | Layer.PID_NS | Layer.CGROUP:
            raise AssertionError(f"{layer.value} is the nanny's")
        case _:
            assert_never(layer)
    return None
