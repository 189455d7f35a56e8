"""A machine that refuses what the sandbox is made of, and a platform without any of it, as the operator meets them."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable

import pytest

from supervisor import notices
from tests.fakes.bridge import ROOT, Bridge
from tests.fakes.stage import Stage

Stages = Callable[..., Stage]

# Starts a program for which the kernel has neither Landlock nor new namespaces nor other uids: each such call fails as
# on a machine that lacks it or forbids it (Ubuntu's AppArmor, a container's own filter).
POOR_MACHINE = """
import errno, os, struct, sys
from worker.sandbox import linux
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
refused = {linux.number("landlock_create_ruleset"): errno.ENOSYS, linux.number("unshare"): errno.EPERM}
for number in SETUID:
    refused[number] = errno.EPERM
rows = [(LOAD, 0, 0, 0)]
for number, code in refused.items():
    rows += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | code)]
rows.append((RETURN, 0, 0, ALLOW))
if os.geteuid() != 0:
    linux.no_new_privs()
linux.seccomp_filter(b"".join(struct.pack("HBBI", *row) for row in rows))
os.execv(sys.argv[1], sys.argv[1:])
"""
# setresuid, setresgid, setgroups, setreuid, setregid, setuid, setgid
SETUID = {"x86_64": (117, 119, 116, 113, 114, 105, 106), "aarch64": (147, 149, 159, 145, 143, 146, 144)}

pytestmark = pytest.mark.skipif(platform.machine() not in SETUID, reason="no numbers of calls for this machine")


class OnAPoorMachine(Bridge):
    wrapper = (sys.executable, "-c", POOR_MACHINE.replace("SETUID", repr(SETUID.get(platform.machine(), ()))))


def poor(bridge: Stage, settings: str = "") -> None:
    bridge.bridge = OnAPoorMachine(
        bridge.bridge.home,
        base_url=bridge.wechat.base_url,
        cdn_url=bridge.wechat.cdn_url,
        settings=bridge.settings + settings,
    )


def test_where_the_kernel_confines_nobody_a_guest_gets_one_line_and_no_worker_and_the_operator_is_told(
    stage: Stages,
) -> None:
    """B-025, B-057: probed once at the start; no worker is started in vain."""
    with stage(guests=1) as bridge:
        poor(bridge)
        bridge.begin()
        (guest,) = bridge.guests

        bridge.say(guest, "one", "two")

        assert bridge.answers(guest, 2) == [notices.not_isolated().en] * 2
        status = bridge.bridge.status()
        assert status["isolation"]["level"] == "weak"
        assert {"landlock", "pid_ns"} <= set(status["isolation"]["missing"])
        assert "landlock" in bridge.bridge.ctl("doctor", check=False).stdout
        assert not [line for line in bridge.bridge.lines if "worker_ready" in line and guest in line]
        bridge.answer_to(bridge.me, "the operator's own peer is served")


def test_an_operator_who_says_so_by_name_serves_guests_there_and_it_shows(stage: Stages) -> None:
    """B-025"""
    with stage(guests=1) as bridge:
        poor(bridge, '\n[workers]\nisolation = "best-effort"\n')
        bridge.begin()

        bridge.answer_to(bridge.guests[0], "hello")

        isolation = bridge.bridge.status()["isolation"]
        assert (isolation["mode"], isolation["level"]) == ("best-effort", "weak")


def test_on_windows_the_start_is_one_line() -> None:
    """B-107: nothing there could bind an agent's helpers to their worker's life."""
    code = "import sys, click; sys.platform = 'win32'; from supervisor.__main__ import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", code, "start"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "Linux and macOS" in line and "WSL" in line
