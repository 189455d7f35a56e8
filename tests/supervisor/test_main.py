"""The words of the command line, before anything runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """path: a folder that stands before ours when packages are looked for"""
    places = [str(one) for one in (path, ROOT) if one is not None]
    code = f"import sys; sys.path[:0] = {places!r}; from supervisor.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-I", "-c", code, *arguments],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("arguments", [("--version",), ("start", "--version"), ("demo", "--version")])
def test_the_version_is_told_on_every_call(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)

    assert (done.returncode, done.stdout) == (0, "bridge-supervisor 0.1.0\n")


@pytest.mark.parametrize(
    "arguments", [("start", "--home"), ("strat",), ("start", "--log-level", "loud"), ("demo", "--port", "x")]
)
def test_wrong_usage_exits_two(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).returncode == 2


def test_options_count_before_and_behind_the_command_and_those_behind_win(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bridge.toml").write_text(f"{name} = 1\n")

    before = run("--home", str(tmp_path / "a"), "start")
    both = run("--home", str(tmp_path / "a"), "start", "--home", str(tmp_path / "b"))

    assert (before.returncode, before.stderr.split(":")[1]) == (2, " a")
    assert (both.returncode, both.stderr.split(":")[1]) == (2, " b")


def test_a_package_that_hides_ours_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").write_text("")

    done = run("--version", path=tmp_path)

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(tmp_path) in done.stderr and "'worker'" in done.stderr


def test_a_demo_of_an_agent_that_needs_a_program_says_what_there_is() -> None:
    done = run("demo", "--agent", "acp")

    assert done.returncode == 2
    assert done.stderr == "bridge-supervisor demo: --agent acp: choose one of echo, builtin\n"


@pytest.mark.parametrize("process", ["supervisor.app", "supervisor.gateway"])
def test_what_only_a_terminal_needs_is_in_neither_supervisor_nor_gateway(process: str) -> None:
    """85 ms at each start."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {process}; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=30, check=True)

    assert not {"rich", "pygments", "textual", "segno"} & set(done.stdout.split())
