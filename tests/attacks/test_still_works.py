"""What an honest worker needs goes on working behind every layer."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import zoneinfo
from pathlib import Path

import pytest

from protocol.content import Access
from protocol.spec import Layer, NetworkMode
from tests.attacks.sandboxed import Stage


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.returncode}: {done.stderr}")
    return done.stdout.strip()


def test_files_of_the_workspace_are_read_written_renamed_and_removed(stage: Stage) -> None:
    def work() -> str:
        os.makedirs("a/b")
        Path("a/one").write_text("words")
        os.rename("a/one", "a/b/two")
        os.symlink("two", "a/b/three")
        text = Path("a/b/three").read_text()
        shutil.rmtree("a")
        return text

    assert stage.inside(work).value == "words"


def test_the_session_folder_is_home_and_can_be_written_at_every_level(stage: Stage) -> None:
    for access in Access:
        if access is Access.FULL and stage.shape == "without_landlock":
            continue
        outcome = stage.inside(lambda: Path("~/.config").expanduser().mkdir(exist_ok=True), stage.plan(access))
        assert outcome.code is None and not outcome.broke, f"{access}: {outcome}"


def test_a_shell_runs_programs_and_pipes(stage: Stage) -> None:
    def work() -> str:
        return run(
            "/bin/sh", "-c", "echo one two | tr ' ' '\\n' | sort -r | head -1; ls > listing; cat listing | wc -l"
        )

    assert stage.inside(work).value == "two\n2"


def test_a_script_of_the_workspace_can_be_run(stage: Stage) -> None:
    def work() -> str:
        script = Path("hello")
        script.touch(mode=0o700)
        script.write_text("#!/bin/sh\necho hello\n")
        return run("./hello")

    assert stage.inside(work).value == "hello"


def test_git_makes_a_commit(stage: Stage) -> None:
    if shutil.which("git") is None:
        pytest.skip("no git on this machine")

    def work() -> str:
        run("git", "init", "-q", "repo")
        Path("repo/file").write_text("words")
        run("git", "-C", "repo", "add", "file")
        who = ("-c", "user.name=peer", "-c", "user.email=peer@example.org")
        run("git", "-C", "repo", *who, "commit", "-q", "-m", "first")
        return run("git", "-C", "repo", "log", "--format=%s")

    outcome = stage.inside(work)
    assert outcome.value == "first", outcome


PYTHON = """
import asyncio, ssl, tempfile, sqlite3, hashlib, zoneinfo, multiprocessing, concurrent.futures
async def main():
    process = await asyncio.create_subprocess_exec("/bin/echo", "child", stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x"); file.flush()
    ssl.create_default_context()
    loop = asyncio.get_running_loop()
    return out.decode().strip() + await loop.run_in_executor(None, lambda: " thread")
print(asyncio.run(main()))
"""


def test_a_new_python_has_asyncio_ssl_threads_children_and_temporary_files(stage: Stage) -> None:
    """B-089"""
    if stage.hides_our_interpreter:
        pytest.skip("this interpreter lies in a folder that only root may enter")

    outcome = stage.inside(lambda: run(sys.executable, "-c", PYTHON))

    assert outcome.value == "child thread", outcome


def test_node_starts_and_spawns_where_there_is_one(stage: Stage) -> None:
    node = shutil.which("node")
    if node is None or not os.path.realpath(node).startswith("/usr/"):
        pytest.skip("no node below /usr on this machine")
    script = (
        "const {execFileSync} = require('child_process'); console.log(execFileSync('/bin/echo', ['child']).toString())"
    )

    outcome = stage.inside(lambda: run(node, "-e", script))

    assert outcome.value == "child", outcome


def test_temporary_files_lie_in_the_session_folder(stage: Stage) -> None:
    def work() -> str:
        tempfile.tempdir = None
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
            return file.name

    told = stage.inside(work).value

    assert isinstance(told, str) and told.startswith(f"{stage.folder('sessions')}/tmp/")


def test_own_children_are_waited_for_and_killed(stage: Stage) -> None:
    def work() -> int:
        child = subprocess.Popen(["/bin/sh", "-c", "while :; do sleep 1; done"], start_new_session=True)
        os.killpg(child.pid, 9)
        return child.wait(timeout=30)

    assert stage.inside(work).value == -9


def test_names_numbers_and_time_zones_are_found(stage: Stage) -> None:
    """B-089"""

    def work() -> list[str]:
        with open("/dev/urandom", "rb") as file:
            file.read(1)
        pwd.getpwuid(0)
        return [str(zoneinfo.ZoneInfo("Asia/Shanghai")), str(os.cpu_count() is not None)]

    if not os.path.exists("/usr/share/zoneinfo/Asia/Shanghai"):
        pytest.skip("no time zones on this machine")
    outcome = stage.inside(work)
    assert outcome.value == ["Asia/Shanghai", "True"], outcome


def test_mode_changes_of_own_files_work_with_own_mounts_and_are_pretended_without(stage: Stage) -> None:
    def work() -> str:
        Path("mine").touch(mode=0o600)
        os.chmod("mine", 0o700)
        return oct(os.stat("mine").st_mode & 0o777)

    pretended = not (stage.has(Layer.MOUNT_NS) or stage.has(Layer.OWN_UID))
    assert stage.inside(work).value == ("0o600" if pretended else "0o700")


def test_full_reaches_the_disk_as_its_operator(stage: Stage, home: Path) -> None:
    project = home.parent / f"{home.name}-project"
    project.mkdir(mode=0o777)
    project.chmod(0o777)
    try:

        def work() -> str:
            (project / "file").write_text("words")
            return (project / "file").read_text()

        plan = stage.plan(Access.FULL, network=NetworkMode.OPEN)
        assert stage.inside(work, plan).value == "words"
        assert stage.inside(lambda: len(os.listdir("/etc")), plan).value
    finally:
        shutil.rmtree(project)
