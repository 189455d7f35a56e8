"""worker/sandbox/own_uid.py, in a child of its own."""

import os
import signal

import pytest

from tests.attacks.sandboxed import PEER_UID, outside
from worker.sandbox import linux, own_uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives itself away")
def test_all_three_ids_change_no_group_stays_and_there_is_no_way_back() -> None:
    def body() -> list[object]:
        own_uid.apply(PEER_UID, PEER_UID)
        try:
            os.setuid(0)
        except PermissionError:
            return [os.getresuid(), os.getresgid(), os.getgroups()]
        return ["root again"]

    assert outside(body).value == [[PEER_UID] * 3, [PEER_UID] * 3, []]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives itself away")
def test_the_death_signal_and_our_own_proc_files_survive_the_change() -> None:
    pr_get_pdeathsig = 2

    def body() -> list[object]:
        import ctypes

        linux.die_with_parent()
        own_uid.apply(PEER_UID, PEER_UID)
        told = ctypes.c_int()
        linux.prctl(pr_get_pdeathsig, ctypes.addressof(told))
        with open("/proc/self/environ", "rb") as file:
            return [told.value, len(file.read()) > 0]

    assert outside(body).value == [signal.SIGKILL, True]


def test_without_root_or_without_ids_it_is_refused() -> None:
    assert outside(lambda: own_uid.apply(None, None)).refused
    if os.geteuid() != 0:
        assert outside(lambda: own_uid.apply(PEER_UID, PEER_UID)).refused
