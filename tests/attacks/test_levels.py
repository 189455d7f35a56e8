"""What no access level opens: one attack of each family, at each of them, from one worker."""

import errno
import os
import resource
import signal
import socket
from collections.abc import Callable

import pytest

from protocol.content import Access
from protocol.spec import Layer
from tests.attacks.sandboxed import Stage
from tests.attacks.test_ipc import posix_queue, session_keyring, shared_memory
from tests.attacks.test_memory import attach, peek, steal_descriptor
from tests.attacks.test_syscalls import CALLS, call
from worker.sandbox import linux

REFUSED = {errno.EPERM, errno.EACCES, errno.ESRCH, errno.ENOENT, errno.EXDEV, errno.EROFS}
NAMED = ("unshare", "mount", "io_uring_setup", "userfaultfd", "open_by_handle_at")


def attacks(stage: Stage) -> dict[str, Callable[[], object]]:
    sibling, token = stage.sibling, stage.token
    reachable = not (stage.has(Layer.PID_NS) or stage.has(Layer.OWN_UID)) and linux.landlock_abi() < 6
    return {
        "read the token": token.read_bytes,
        "change the journal": lambda: os.close(os.open(stage.home / "state.db", os.O_WRONLY)),
        "read another peer's file": (stage.folder("workspaces", "other") / "kept").read_bytes,
        "open a Unix socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "open a TCP socket": lambda: socket.socket(socket.AF_INET).close(),
        **({} if reachable else {"signal another": lambda: os.kill(sibling, 0)}),
        "trace another": attach(sibling),
        "read another's memory": peek(sibling),
        "take another's descriptor": steal_descriptor(sibling),
        "read another's environment": lambda: open(f"/proc/{sibling}/environ", "rb").close(),
        "lower another's limits": lambda: resource.prlimit(sibling, resource.RLIMIT_NOFILE, (64, 64)),
        "slow another": lambda: os.setpriority(os.PRIO_PROCESS, sibling, 5),
        "share memory": shared_memory,
        "open a queue": posix_queue,
        "open the keyring": session_keyring,
        "outlive the nanny": lambda: linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM),
        **{name: call(name, *CALLS[name]) for name in NAMED},
    }


@pytest.mark.parametrize("access", list(Access))
def test_no_access_level_opens_what_is_not_the_peers(stage: Stage, access: Access) -> None:
    """full promises less about files and is never called isolated: without mounts or uids its home is not hidden."""
    tried = attacks(stage)
    if access is Access.FULL and not (stage.has(Layer.MOUNT_NS) or stage.has(Layer.OWN_UID)):
        for name in ("read the token", "change the journal", "read another peer's file"):
            del tried[name]

    def attack() -> dict[str, int]:
        ends = {}
        for name, one in tried.items():
            try:
                one()
                ends[name] = 0
            except OSError as error:
                ends[name] = error.errno or 0
        return ends

    ends = stage.inside(attack, stage.plan(access)).value

    assert isinstance(ends, dict)
    assert ends.keys() == tried.keys()
    assert {name: code for name, code in ends.items() if code not in REFUSED} == {}
