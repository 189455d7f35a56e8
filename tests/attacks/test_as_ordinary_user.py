"""The whole suite again as an ordinary user, when it runs as root: most machines run a bridge that way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attacks.as_user import AS_USER_S, interpreter_for, who

TREE = Path(__file__).parents[2]


@pytest.mark.timeout(AS_USER_S + 30)
@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
def test_every_attack_fails_for_an_ordinary_users_worker_too() -> None:
    uid, gid = who()
    interpreter = interpreter_for(uid, gid)
    if isinstance(interpreter, str):
        pytest.skip(interpreter)

    done = subprocess.run(
        [*interpreter.command, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/attacks"],
        cwd=TREE,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **interpreter.environment},
        user=uid,
        group=gid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=AS_USER_S,
        check=False,
    )

    print(done.stdout[-4000:], file=sys.stderr)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
