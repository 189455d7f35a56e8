"""worker/sandbox/descriptors.py, in a child of its own."""

import os

from tests.attacks.sandboxed import outside
from worker.sandbox import descriptors


def test_all_but_the_three_and_what_is_kept_are_closed_however_high_they_are() -> None:
    def body() -> list[int]:
        reading, writing = os.pipe()
        high = os.dup2(reading, 200)
        kept = os.dup2(writing, 150)
        report = max(int(name) for name in os.listdir("/proc/self/fd"))
        assert report >= high
        everything = [int(name) for name in os.listdir("/proc/self/fd")]
        pipes = [one for one in everything if one not in (reading, writing, high, kept) and _is_pipe(one)]
        descriptors.apply([kept, *pipes])  # the harness's report is one of those pipes
        left = [one for one in everything if _is_open(one)]
        assert set(left) <= {0, 1, 2, kept, *pipes}
        return [kept in left, reading in left, high in left, os.path.samefile("/proc/self/fd/2", "/dev/null")]

    assert outside(body).value == [True, False, False, True]


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _is_pipe(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
    except OSError:
        return False
