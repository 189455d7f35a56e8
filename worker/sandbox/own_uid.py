"""own_uid: under root, the peer's own user and group ids. One function, apply()."""

import errno
import os

from worker.sandbox import linux


def apply(uid: int | None, gid: int | None) -> None:
    """Become uid for good; all capabilities go with it. raises OSError(EPERM) without root

    The kernel clears two things on such a change. The dumpable flag: root would own our /proc/self and we could not read
    it; nobody else has this uid, so there is nobody to hide it from. And the parent-death signal: set again; should the
    parent have died between the two, the link's end tells it.
    """
    if uid is None or gid is None:
        raise OSError(errno.EINVAL, "the plan names no ids")
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    linux.set_dumpable(1)
    linux.die_with_parent()
