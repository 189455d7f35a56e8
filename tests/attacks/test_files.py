"""A hostile worker goes for files: the token, the journal, other peers', the operator's."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from protocol.content import Access
from protocol.spec import Layer
from tests.attacks.sandboxed import Attack, Stage, outside
from tests.attacks.summary import SET_UID_PROGRAM
from worker.sandbox import linux
from worker.sandbox.facts import facts

UNREACHABLE = {errno.ENOENT, errno.EACCES, errno.EXDEV, errno.EROFS, errno.EPERM}


def reading(path: Path) -> Attack:
    return lambda: len(path.read_bytes())


@pytest.mark.parametrize(
    "target", ["token", "state.db", "workspaces/other/kept", "sessions/other/kept", "media/other/kept"]
)
def test_a_secret_or_another_peers_file_cannot_be_read(stage: Stage, target: str) -> None:
    attack = reading(stage.home / target)

    assert stage.inside(attack).code in UNREACHABLE
    assert outside(attack).value


@pytest.mark.parametrize("access", list(Access))
def test_no_access_level_shows_the_token(stage: Stage, access: Access) -> None:
    if access is Access.FULL and not (stage.has(Layer.MOUNT_NS) or stage.has(Layer.OWN_UID)):
        pytest.skip("full hides the home by mounts alone; it is never listed as isolated")

    assert stage.inside(reading(stage.token), stage.plan(access)).code in UNREACHABLE


@pytest.mark.parametrize("folder", [".", "workspaces", "workspaces/other"])
def test_folders_of_the_state_cannot_be_listed(stage: Stage, folder: str) -> None:
    def attack() -> int:
        return len(
            [
                name
                for name in os.listdir(stage.home / folder)
                if name not in ("workspaces", "sessions", "media", "mine")
            ]
        )

    outcome = stage.inside(attack)

    assert outcome.code in UNREACHABLE or outcome.value == 0, "only the mount points of our own folders may show"
    assert outside(attack).value


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_the_workspace_leads_nowhere(stage: Stage, link: object) -> None:
    def attack() -> int:
        door = stage.workspace / "door"
        link(stage.token, door)  # type: ignore[operator]
        return len(door.read_bytes())

    assert stage.inside(attack).code in UNREACHABLE
    (stage.workspace / "door").unlink(missing_ok=True)
    assert outside(attack).value


def test_renaming_moves_nothing_out_or_in(stage: Stage) -> None:
    def take() -> None:
        os.rename(stage.home / "state.db", stage.workspace / "taken")

    def overwrite() -> None:
        os.rename(stage.workspace / "kept", stage.token)

    assert stage.inside(take).code in UNREACHABLE
    assert stage.inside(overwrite).code in UNREACHABLE
    assert (stage.home / "state.db").exists()
    assert outside(take).code is None


def test_the_root_of_another_process_is_no_way_in(stage: Stage) -> None:
    attack = reading(Path(f"/proc/{stage.sibling}/root{stage.token}"))

    assert stage.inside(attack).code in UNREACHABLE
    assert outside(attack).value


@pytest.mark.parametrize("target", ["profile", "site-packages", "interpreter"])
def test_what_others_will_run_later_cannot_be_changed(stage: Stage, target: str, home: Path) -> None:
    profile = home / ".bashrc"
    profile.write_text("")
    places = {"profile": profile, "site-packages": Path(pytest.__file__), "interpreter": Path(os.__file__)}

    def attack() -> None:
        os.close(os.open(places[target], os.O_WRONLY | os.O_APPEND))

    assert stage.inside(attack).code in UNREACHABLE
    if target == "profile":
        assert outside(attack).code is None


def test_a_new_file_beside_our_modules_is_refused(stage: Stage) -> None:
    def attack() -> None:
        (Path(linux.__file__).parent / "planted.py").write_text("")

    assert stage.inside(attack).code in UNREACHABLE


@pytest.mark.parametrize("how", ["path", "descriptor"])
def test_the_mode_of_a_foreign_file_stays(stage: Stage, how: str, home: Path) -> None:
    visible = Path(msgspec.__file__) if how == "descriptor" else stage.token
    before = visible.stat().st_mode

    def attack() -> None:
        if how == "path":
            os.chmod(visible, 0o777)
        else:
            opened = os.open(visible, os.O_RDONLY)
            os.fchmod(opened, (before & 0o7777) ^ 0o001)

    stage.inside(attack)

    assert visible.stat().st_mode == before
    mine = home / "mine"
    mine.write_text("")
    assert outside(lambda: os.chmod(mine, 0o777)).code is None


def test_chat_sees_no_workspace_and_readonly_changes_none(stage: Stage) -> None:
    kept = stage.workspace / "kept"

    assert stage.inside(reading(kept), stage.plan(Access.CHAT)).code in UNREACHABLE
    assert stage.inside(reading(kept), stage.plan(Access.READONLY)).value
    assert stage.inside(lambda: kept.write_text("x"), stage.plan(Access.READONLY)).code in UNREACHABLE
    assert stage.inside(lambda: kept.unlink(), stage.plan(Access.READONLY)).code in UNREACHABLE
    assert stage.inside(lambda: kept.write_text("x"), stage.plan(Access.WORKSPACE)).value == 1


@pytest.mark.parametrize("access", [Access.CHAT, Access.READONLY, Access.WORKSPACE])
def test_media_are_readable_at_every_level_and_changed_at_none(stage: Stage, access: Access) -> None:
    kept = stage.folder("media") / "kept"

    assert stage.inside(reading(kept), stage.plan(access)).value
    assert stage.inside(lambda: kept.write_text("x"), stage.plan(access)).code in UNREACHABLE


@pytest.mark.parametrize("access", [Access.CHAT, Access.READONLY])
def test_below_workspace_nothing_but_the_interpreter_is_executed(stage: Stage, access: Access) -> None:
    if not stage.has(Layer.LANDLOCK):
        pytest.skip("Landlock's EXECUTE does it")
    if stage.hides_our_interpreter:
        pytest.skip("this interpreter lies in a folder that only root may enter")

    def run(program: str, *arguments: str) -> Attack:
        return lambda: os.spawnv(os.P_WAIT, program, [program, *arguments])

    # spawnv answers 127 when exec fails
    assert stage.inside(run("/bin/sh", "-c", "exit 3"), stage.plan(access)).value == 127
    assert stage.inside(run(facts().programs[0], "-I", "-c", "raise SystemExit(3)"), stage.plan(access)).value == 3
    assert stage.inside(run("/bin/sh", "-c", "exit 3"), stage.plan()).value == 3


def test_a_device_node_cannot_be_made_and_other_devices_are_not_there(stage: Stage) -> None:
    def make() -> None:
        os.mknod(stage.workspace / "disk", 0o600 | 0o060000, os.makedev(254, 0))

    assert stage.inside(make).code in UNREACHABLE
    assert stage.inside(lambda: os.close(os.open("/dev/tty", os.O_RDWR))).code in {*UNREACHABLE, errno.ENXIO}
    assert stage.inside(lambda: os.listdir("/dev/pts")).code in UNREACHABLE


def test_a_set_uid_program_gains_nothing(stage: Stage) -> None:
    """A copy of id that belongs to root: what it prints is what the kernel has made of it."""
    if os.geteuid() == 0:
        program = stage.workspace / "id"
        shutil.copy("/usr/bin/id", program)
        program.chmod(0o4755)
    elif SET_UID_PROGRAM in os.environ:
        program = Path(os.environ[SET_UID_PROGRAM])
    else:
        pytest.skip("only root makes a set-uid program")

    def attack() -> str:
        return subprocess.check_output([program, "-u"], text=True).strip()

    plan = msgspec.structs.replace(stage.plan(), read=(str(program.parent),))
    ordinary = stage.plan().uid or os.geteuid()
    assert stage.inside(attack, plan).value == str(ordinary)
    assert outside(attack, uid=stage.plan().uid).value == "0"
