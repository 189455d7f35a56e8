"""Finds an ordinary user and a Python that this user can start, for a suite that runs as root.

The checkout's own interpreter often lies in a folder that only root may enter (/root/.pyenv). The system's one does as
well, with our installed packages on its path, when it is the same minor version.
"""

import pwd
import subprocess
import sys
import sysconfig
from dataclasses import dataclass

USER = "bridge-test"  # made by scripts/test
NOBODY_MADE_ONE = 64123  # a number is all that the kernel needs
AS_USER_S = 300


@dataclass(frozen=True)
class Interpreter:
    command: tuple[str, ...]
    environment: dict[str, str]


def who() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam(USER)
    except KeyError:
        return NOBODY_MADE_ONE, NOBODY_MADE_ONE
    return entry.pw_uid, entry.pw_gid


def interpreter_for(uid: int, gid: int) -> Interpreter | str:
    """One that starts and finds our packages; or why there is none."""
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    packages = {"PYTHONPATH": sysconfig.get_path("purelib"), "PYTHONDONTWRITEBYTECODE": "1"}
    for found in (
        Interpreter((sys.executable,), {"PYTHONDONTWRITEBYTECODE": "1"}),
        Interpreter((system,), packages),
    ):
        try:
            subprocess.run(
                [*found.command, "-c", "import msgspec, pytest, pytest_timeout"],
                env=found.environment,
                user=uid,
                group=gid,
                extra_groups=[],
                cwd="/",
                capture_output=True,
                timeout=60,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return found
    return f"neither {sys.executable} nor {system} with our packages can be started by uid {uid}"
