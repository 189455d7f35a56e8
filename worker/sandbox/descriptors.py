"""Descriptors: a worker holds 0, 1, 2 and what it is told to keep. One function, apply()."""

import os
from collections.abc import Iterable


def apply(keep: Iterable[int]) -> None:
    """Point 0, 1 and 2 at /dev/null and close all others but keep.

    Standard error among them: it is the supervisor's terminal or log, and what a worker writes is an attacker's.
    raises OSError
    """
    nothing = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard, inheritable=True)
    kept = sorted({descriptor for descriptor in keep if descriptor > 2})
    start = 3
    for descriptor in kept:
        os.closerange(start, descriptor)
        start = descriptor + 1
    # close_range(2) inside; where it is absent CPython walks up to this end, so ask for the limit, not for 2**31.
    os.closerange(start, _highest() + 1)


def _highest() -> int:
    """At least the highest open descriptor. A limit that was lowered later says nothing, so /proc is asked first."""
    try:
        return max(int(name) for name in os.listdir("/proc/self/fd"))
    except OSError:
        return os.sysconf("SC_OPEN_MAX")
