"""The scripts before there is an environment: what they say on a machine that lacks something."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = ("demo", "test", "check")


def checkout(tmp_path: Path, python: str | None) -> tuple[Path, dict[str, str]]:
    """A copy of the scripts, and an environment in which python3 is this shell script, or absent."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", copy / "scripts")
    for file in (*ROOT.glob("requirements*.lock"), ROOT / "pyproject.toml"):
        shutil.copy(file, copy)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "dirname", "cat", "env", "rm"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    if python is not None:
        (tools / "python3").write_text(f"#!{tools}/bash\n{python}")
        (tools / "python3").chmod(0o755)
    return copy, {"PATH": str(tools)}


OLD = """
[[ $1 == -V ]] && { echo Python 3.9.2; exit 0; }
exit 1
"""
WITHOUT_VENV = """
[[ $1 == -V ]] && { echo Python 3.12.1; exit 0; }
[[ $2 == *ensurepip* ]] && exit 1
exit 0
"""


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("python", "line"),
    [
        (None, "Python 3.11 or newer is needed, and no python3 was found"),
        (OLD, "Python 3.11 or newer is needed; python3 is Python 3.9.2"),
        (
            WITHOUT_VENV,
            "Python 3.12.1 cannot make environments: install its venv module (Debian, Ubuntu: apt install python3-venv)",
        ),
    ],
    ids=["none", "old", "no venv"],
)
def test_without_a_good_python_one_line_says_so(tmp_path: Path, script: str, python: str | None, line: str) -> None:
    copy, environment = checkout(tmp_path, python)

    done = subprocess.run(
        [copy / "scripts" / script], capture_output=True, text=True, env=environment, timeout=60, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{script}: {line}\n")


@pytest.mark.parametrize(
    "script", ["scripts/demo", "scripts/test", "scripts/check", "scripts/docs", "scripts/screenshots", ".ci/run"]
)
def test_scripts_can_be_started_and_are_sound_bash(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True, timeout=60)


def test_the_lock_files_pin_every_package_by_hash_and_name_no_index() -> None:
    for lock in ROOT.glob("requirements*.lock"):
        lines = lock.read_text().splitlines()
        pins = [line for line in lines if line and not line.startswith((" ", "#"))]
        assert pins
        assert all("==" in pin and pin.endswith("\\") for pin in pins)
        assert "://" not in lock.read_text()
        assert not any(line.startswith("-") for line in lines)
