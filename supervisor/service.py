"""The bridge as a systemd user service: its unit, and the calls of systemctl that install, remove and ask for it.

The unit names this very interpreter and home. It forbids the bridge nothing that its workers' walls are made of: user
namespaces, mounts, Landlock and seccomp have to stay possible.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import BridgeError
from supervisor.home import Home

NAME = "bridge-supervisor.service"
STOP_S = 130  # running turns have 110 s (settled.md 47)
WATCHDOG_S = 30
CALL_S = 30.0
BOOTED = Path("/run/systemd/system")  # sd_booted(3)


class ServiceRefused(BridgeError):
    """systemd is not there, says no, or a unit stands in the way."""


def unit(home: Home, *, interpreter: Path, path: str, config_file: Path | None = None) -> str:
    """The unit's text. path: what PATH is now, since agent programs are looked for in it."""
    command = [str(interpreter), "-P", "-m", "supervisor", "start", "--home", str(home.path)]
    if config_file is not None:
        command += ["--config", str(config_file)]
    return f"""\
[Unit]
Description=WeChat bridge with a sandboxed process for every peer
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
ExecStart={" ".join(_argument(word) for word in command)}
Environment={_assignment("PATH", path)}
# Model keys and the like, as NAME=value lines; the file is yours, mode 0600.
EnvironmentFile=-{_specifiers(str(home.path / "env"))}
Restart=on-failure
RestartSec=2
# 2: wrong settings. 3: another bridge. Neither gets better by itself.
RestartPreventExitStatus=2 3
KillMode=mixed
TimeoutStopSec={STOP_S}
WatchdogSec={WATCHDOG_S}
OOMPolicy=continue
Delegate=cpu memory pids
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def _argument(word: str) -> str:
    """systemd.service(5), command lines: quotes and backslashes by backslash, a dollar twice."""
    return _quoted(word).replace("$", "$$")


def _assignment(name: str, value: str) -> str:
    return _quoted(f"{name}={value}")


def _quoted(word: str) -> str:
    escaped = _specifiers(word).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


@dataclass(frozen=True, slots=True)
class Systemd:
    """The user's own manager. units: where its unit files lie."""

    units: Path
    booted: Path = BOOTED
    systemctl: str = "systemctl"

    @property
    def file(self) -> Path:
        return self.units / NAME

    def install(self, text: str, *, force: bool) -> tuple[str, ...]:
        """Write the unit and start it, now and at every login. The lines say what else to do. raises ServiceRefused"""
        self._must_be_there()
        if self.file.exists() and self.file.read_text(encoding="utf-8") != text and not force:
            raise ServiceRefused(f"{self.file}: there is another one already; --force replaces it")
        try:
            self.units.mkdir(parents=True, exist_ok=True)
            unfinished = self.file.with_name(f".{NAME}.{os.getpid()}")
            unfinished.write_text(text, encoding="utf-8")
            unfinished.rename(self.file)
        except OSError as error:
            raise ServiceRefused(f"{self.file}: cannot be written: {error.strerror}") from error
        self._call("daemon-reload")
        self._call("enable", NAME)
        self._call("restart", NAME)
        return (
            f"installed {self.file}; the bridge runs",
            "it ends when you log out, unless: loginctl enable-linger",
        )

    def uninstall(self) -> tuple[str, ...]:
        """raises ServiceRefused"""
        self._must_be_there()
        if not self.file.exists():
            raise ServiceRefused(f"{self.file}: is not there; nothing was installed")
        self._call("disable", "--now", NAME)
        self.file.unlink()
        self._call("daemon-reload")
        return (f"removed {self.file}; the home stays as it is",)

    def status(self) -> tuple[bool, str]:
        """Does it run, and what systemd says of it in one line. raises ServiceRefused"""
        self._must_be_there()
        if not self.file.exists():
            return False, f"not installed: {self.file} is not there"
        asked = ("ActiveState", "SubState", "MainPID", "NRestarts", "StatusText")
        told = self._call("show", NAME, *(f"--property={name}" for name in asked))
        values = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
        line = f"{values.get('ActiveState')} ({values.get('SubState')}), pid {values.get('MainPID')}"
        line += f", restarted {values.get('NRestarts')} times"
        return values.get("ActiveState") == "active", f"{line}; {values.get('StatusText') or 'no word of it yet'}"

    def _must_be_there(self) -> None:
        if not self.booted.is_dir() or shutil.which(self.systemctl) is None:
            raise ServiceRefused("systemd does not run this machine; run `bridge-supervisor start --detach` instead")

    def _call(self, *arguments: str) -> str:
        command: Sequence[str] = (self.systemctl, "--user", *arguments)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServiceRefused(f"systemctl --user {arguments[0]}: {type(error).__name__}") from error
        if done.returncode != 0:
            reason = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0]
            raise ServiceRefused(f"systemctl --user {arguments[0]}: {reason}")
        return done.stdout


def interpreter() -> Path:
    """The one that runs us, by the name it was started with: a venv's own link is what makes it that venv's."""
    return Path(sys.executable)
