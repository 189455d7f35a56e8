"""What a trial of the sandbox means: which layers it proved broken, and what stopped each attempt.

In comes a Trial, as supervisor/probe.py ran it with a throw-away worker; out come layers and words, for Isolation and for
`bridge-ctl doctor`.
"""

from dataclasses import dataclass

from protocol.content import Access
from protocol.probe import STOPPED_BY, WORKED, Attempt
from protocol.spec import Layer, NetworkMode


@dataclass(frozen=True, slots=True)
class Trial:
    """layers, missing: as its worker claimed and the kernel confirmed. failed: why there was no trial; else empty.

    reaches   the network that its worker had, which was to have the gateway's
    ends   each attempt and how it ended: WORKED, or an error's name
    """

    access: Access
    layers: tuple[Layer, ...] = ()
    missing: tuple[Layer, ...] = ()
    ends: tuple[tuple[Attempt, str], ...] = ()
    failed: str = ""
    reaches: NetworkMode = NetworkMode.GATEWAY

    @property
    def broken(self) -> frozenset[Layer]:
        """Layers that were in place and let something through that they are there to stop."""
        return frozenset(
            layer
            for attempt, end in self.ends
            if end == WORKED
            for layer in STOPPED_BY[attempt]
            if layer in self.layers
        )

    @property
    def holding(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer not in self.broken)

    @property
    def lacking(self) -> tuple[Layer, ...]:
        """What this machine does not offer, whether it says so or not."""
        return tuple(layer for layer in Layer if layer in self.missing or layer in self.broken)


WORDS: dict[Attempt, str] = {
    Attempt.READ_JOURNAL: "read the bridge's journal",
    Attempt.READ_OTHER_PEER: "read a file of another peer",
    Attempt.READ_WORKSPACE: "read the workspace",
    Attempt.CHANGE_WORKSPACE: "change a file of the workspace",
    Attempt.PLANT_FILE: "put a file into the bridge's home",
    Attempt.CHANGE_CODE: "change the program's own code",
    Attempt.LIST_ROOT: "list the root folder",
    Attempt.SEE_SYSTEM: "see /sys",
    Attempt.CONNECT_BRIDGE: "connect to the control socket",
    Attempt.CONNECT_TCP: "connect to a port of this machine",
    Attempt.OPEN_UDP: "open a UDP socket",
    Attempt.SIGNAL_BRIDGE: "signal the supervisor",
    Attempt.READ_ENVIRONMENT: "read the supervisor's environment",
    Attempt.SEE_PROCESSES: "see processes outside",
    Attempt.TRACE: "trace a process",
    Attempt.NEW_NAMESPACE: "make a user namespace",
    Attempt.KERNEL_QUEUE: "open an io_uring queue",
    Attempt.BECOME_ROOT: "become root",
    Attempt.KNOW_USERS: "know the machine's users",
    Attempt.REGAIN_CAPABILITY: "use a capability",
    Attempt.RAISE_LIMIT: "raise a limit",
    Attempt.INHERIT_VARIABLES: "find a variable of the supervisor's",
    Attempt.INHERIT_FILES: "find a file that the supervisor has open",
}

# What an error says about who answered it.
_TELLS: dict[str, Layer] = {
    "ENOENT": Layer.MOUNT_NS,
    "EROFS": Layer.MOUNT_NS,
    "ESRCH": Layer.PID_NS,
    "ECONNREFUSED": Layer.NET_NS,
    "ENETUNREACH": Layer.NET_NS,
}
# Layers that stop an attempt in their newer versions only: a success does not prove them broken.
_ALSO: dict[Attempt, tuple[Layer, ...]] = {Attempt.SIGNAL_BRIDGE: (Layer.LANDLOCK,)}  # from Landlock ABI 6 on


def stopped_by(attempt: Attempt, end: str, layers: tuple[Layer, ...]) -> Layer | None:
    """Which of a worker's layers answered so; None: the system itself, without our doing."""
    there = [layer for layer in (*STOPPED_BY[attempt], *_ALSO.get(attempt, ())) if layer in layers]
    told = _TELLS.get(end)
    if told in there:
        return told
    # What a mount namespace hides is not there, it is not refused.
    refusing = [layer for layer in there if layer is not Layer.MOUNT_NS]
    return next(iter((*refusing, *there)), None)
