"""Every attack again from the workers of an ordinary user, when the suite runs as root: most bridges run that way."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.as_user import NoInterpreter, interpreter, readable_copy, who
from tests.attacks.summary import REPORT, SET_UID_PROGRAM, STAGED_ONLY

AS_USER_S = 300
HERE = Path(__file__).parent
ON_A_STAGE = re.compile(r"^from tests\.attacks\.sandboxed import .*\bStage\b", re.MULTILINE)
FILES = sorted(file.name for file in HERE.glob("test_*.py") if ON_A_STAGE.search(file.read_text(encoding="utf-8")))
# A run costs two seconds before its first attack (pytest, supervisor, zygote); several keep two cores busy to the end.
RUNS = [tuple(FILES[start::4]) for start in range(4)]


@pytest.mark.timeout(AS_USER_S + 30)
@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
@pytest.mark.parametrize("files", RUNS, ids="+".join)
def test_every_attack_fails_for_an_ordinary_users_worker_too(
    files: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    try:
        python = interpreter()
    except NoInterpreter as why:
        if os.environ.get("CI") == "true" and sys.platform == "linux":
            pytest.fail(str(why))
        pytest.skip(str(why))
    uid, gid = who()

    with readable_copy() as tree:
        report, set_uid = tree / "report.json", tree / "id"
        report.touch()
        os.chown(report, uid, gid)
        shutil.copy("/usr/bin/id", set_uid)
        set_uid.chmod(0o4755)  # an ordinary user's suite cannot make one
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/attacks/{file}" for file in files)],
            cwd=tree,
            env={
                "PATH": "/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1",
                STAGED_ONLY: "1",
                REPORT: str(report),
                SET_UID_PROGRAM: str(set_uid),
            },
            user=uid,
            group=gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=AS_USER_S,
            check=False,
        )
        told = report.read_text()

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    record_property("attacks", told)
    assert json.loads(told)["blocked"]
