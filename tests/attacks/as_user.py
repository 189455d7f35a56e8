"""An ordinary user, and a Python that this user can start, for a suite that runs as root.

The checkout and its .venv often lie where only root may enter (/root), so both have to be had elsewhere: the packages of
the lock file in an environment below /var/cache, made once by scripts/test (this file as a program), and the sources as a
copy for each run. Nothing of it is needed, or made, when the suite runs as an ordinary user.
"""

import contextlib
import hashlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LOCK = ROOT / "requirements-dev.lock"
CACHE = Path("/var/cache/bridge-supervisor-tests")
USER = "bridge-test"  # made by scripts/test
NOBODY_MADE_ONE = 64123  # a number is all that the kernel needs
SOURCES = ("protocol", "supervisor", "worker", "tests")
CANDIDATES = (
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    *(f"/usr/bin/python3.{minor}" for minor in (14, 13, 12, 11)),
)
GOOD = "import sys, venv; sys.exit(sys.version_info < (3, 11))"
COMPLETE = "import msgspec, pytest, pytest_timeout, dill"


class NoInterpreter(Exception):
    """Its text says why, and what to do."""


def who() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam(USER)
    except KeyError:
        return NOBODY_MADE_ONE, NOBODY_MADE_ONE
    return entry.pw_uid, entry.pw_gid


def runs(python: str | Path, code: str) -> bool:
    """Whether the ordinary user can have this Python do this."""
    uid, gid = who()
    try:
        subprocess.run(
            [python, "-I", "-c", code],
            user=uid,
            group=gid,
            extra_groups=[],
            cwd="/",
            env={},
            capture_output=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def base() -> str:
    """raises NoInterpreter"""
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    for candidate in (own, *CANDIDATES):
        if runs(candidate, GOOD):
            return os.path.realpath(candidate)
    raise NoInterpreter(f"no Python 3.11 or newer that uid {who()[0]} may start: {own}, {', '.join(CANDIDATES)}")


def environment(python: str) -> Path:
    """Where the one for this Python and this lock file is, or has to be made."""
    version = subprocess.run([python, "-VV"], capture_output=True, timeout=60, check=True).stdout
    name = hashlib.sha256(python.encode() + version + LOCK.read_bytes()).hexdigest()[:16]
    return CACHE / f"python-{name}"


def interpreter() -> Path:
    """raises NoInterpreter"""
    found = environment(base()) / "bin/python"
    if not runs(found, COMPLETE):
        raise NoInterpreter("an ordinary user has no Python with our packages: scripts/test, run as root, makes one")
    return found


def make() -> Path:
    """Needs no network when it is there already. raises NoInterpreter, OSError, subprocess.CalledProcessError"""
    python = base()
    place = environment(python)
    if runs(place / "bin/python", COMPLETE):
        return place
    os.umask(0o022)
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    if CACHE.stat().st_uid != os.geteuid():
        raise NoInterpreter(f"{CACHE} belongs to somebody else")
    # Made beside its place and moved there: two runs at once do not meet half an environment.
    making = Path(tempfile.mkdtemp(prefix="making-", dir=CACHE))
    try:
        making.chmod(0o755)
        subprocess.run([python, "-I", "-m", "venv", "--without-pip", making], check=True)
        pip = [sys.executable, "-m", "pip", "--python", making / "bin/python", "install", "-qq", "--no-input"]
        subprocess.run([*pip, "--disable-pip-version-check", "--require-hashes", "-r", LOCK], check=True)
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else was faster
            making.rename(place)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    if not runs(place / "bin/python", COMPLETE):
        raise NoInterpreter(f"{place} was made and uid {who()[0]} cannot start it")
    return place


@contextlib.contextmanager
def readable_copy() -> Iterator[Path]:
    """Of the sources, for everybody to read."""
    place = Path(tempfile.mkdtemp(prefix="sources-", dir="/var/tmp"))
    before = os.umask(0o022)
    try:
        place.chmod(0o755)
        for name in SOURCES:
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        shutil.copy(ROOT / "pyproject.toml", place)
        for path in place.rglob("*"):  # a checkout made under a strict umask keeps its modes
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
        yield place
    finally:
        os.umask(before)
        shutil.rmtree(place)


def main() -> None:
    """For scripts/test, as root."""
    try:
        make()
    except (NoInterpreter, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"test: the attacks cannot be run as an ordinary user: {error}")


if __name__ == "__main__":
    main()
