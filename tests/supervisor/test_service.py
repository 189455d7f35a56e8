"""service: the unit's text, judged by systemd itself where it is there, and the calls of systemctl."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.home import Home
from supervisor.service import NAME, ServiceRefused, Systemd, unit

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = Path(sys.executable)


def text(home: str = "/home/me/bridge", *, path: str = "/usr/bin:/bin", config_file: Path | None = None) -> str:
    return unit(Home(Path(home)), interpreter=PYTHON, path=path, config_file=config_file)


def lines(unit_text: str, key: str) -> list[str]:
    return [line.removeprefix(f"{key}=") for line in unit_text.splitlines() if line.startswith(f"{key}=")]


@pytest.fixture
def systemd(tmp_path: Path) -> Systemd:
    """systemctl writes its words down; what is in the file `no` it refuses."""
    script = tmp_path / "systemctl"
    script.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {shlex.quote(str(tmp_path / "calls"))}\n'
        f'if [ -f {shlex.quote(str(tmp_path / "no"))} ]; then echo "Failed to connect to bus" >&2; exit 1; fi\n'
        'case "$*" in *" show "*) printf "ActiveState=%s\\nSubState=running\\nMainPID=7\\nNRestarts=0\\nStatusText=fine\\n"'
        f' "$(cat {shlex.quote(str(tmp_path / "state"))})";; esac\n'
    )
    script.chmod(0o755)
    (tmp_path / "state").write_text("active")
    (tmp_path / "booted").mkdir()
    return Systemd(tmp_path / "units", booted=tmp_path / "booted", systemctl=str(script))


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def test_the_unit_names_this_interpreter_and_this_home() -> None:
    (command,) = lines(text(), "ExecStart")

    assert shlex.split(command) == [str(PYTHON), "-P", "-m", "supervisor", "start", "--home", "/home/me/bridge"]


def test_the_unit_stops_restarts_and_watches_as_promised() -> None:
    made = text()

    for key, value in {
        "Type": "notify",
        "NotifyAccess": "main",
        "KillMode": "mixed",
        "OOMPolicy": "continue",
        "Delegate": "cpu memory pids",
        "TimeoutStopSec": "130",
        "WatchdogSec": "30",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "2 3",
        "EnvironmentFile": "-/home/me/bridge/env",
    }.items():
        assert lines(made, key) == [value]


def test_nothing_in_the_unit_forbids_what_the_workers_walls_are_made_of() -> None:
    forbidding = ("RestrictNamespaces", "SystemCallFilter", "Private", "Protect", "ReadOnlyPaths", "InaccessiblePaths")

    assert not [line for line in text().splitlines() if line.startswith(forbidding)]


def test_odd_paths_stay_whole() -> None:
    """Percent signs are specifiers and dollars variables to systemd."""
    made = text('/home/me/100% "mine" $HOME\\x', path="/opt/100%/bin", config_file=Path("/etc/b.toml"))

    (command,) = lines(made, "ExecStart")
    assert '"/home/me/100%% \\"mine\\" $$HOME\\\\x"' in command
    assert command.endswith('"--config" "/etc/b.toml"')
    assert lines(made, "Environment") == ['"PATH=/opt/100%%/bin"']


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("home", ["/home/me/bridge", "/home/me/my 100% bridge"])
def test_systemd_itself_finds_nothing_wrong_with_the_unit(tmp_path: Path, home: str) -> None:
    (tmp_path / NAME).write_text(text(home))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(tmp_path / NAME)],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
    )

    assert NAME not in done.stderr
    assert done.returncode == 0, done.stderr


def test_install_writes_the_unit_and_starts_it_now_and_at_every_login(systemd: Systemd, tmp_path: Path) -> None:
    told = systemd.install(text(), force=False)

    assert systemd.file.read_text() == text()
    assert calls(tmp_path) == ["--user daemon-reload", f"--user enable {NAME}", f"--user restart {NAME}"]
    assert any("loginctl enable-linger" in line for line in told)
    assert [one.name for one in systemd.units.iterdir()] == [NAME]


def test_a_unit_of_somebody_elses_making_is_kept_unless_forced(systemd: Systemd) -> None:
    systemd.install(text(), force=False)
    systemd.install(text(), force=False)  # the same one may be written again

    with pytest.raises(ServiceRefused, match="--force"):
        systemd.install(text("/elsewhere"), force=False)
    assert systemd.file.read_text() == text()

    systemd.install(text("/elsewhere"), force=True)
    assert systemd.file.read_text() == text("/elsewhere")


def test_uninstall_stops_it_and_takes_the_unit_away(systemd: Systemd, tmp_path: Path) -> None:
    systemd.install(text(), force=False)

    systemd.uninstall()

    assert not systemd.file.exists()
    assert calls(tmp_path)[-2:] == [f"--user disable --now {NAME}", "--user daemon-reload"]
    with pytest.raises(ServiceRefused, match="nothing was installed"):
        systemd.uninstall()


def test_status_says_whether_it_runs(systemd: Systemd, tmp_path: Path) -> None:
    absent = systemd.status()
    systemd.install(text(), force=False)
    running = systemd.status()
    (tmp_path / "state").write_text("failed")

    assert absent[0] is False and "not installed" in absent[1]
    assert running == (True, "active (running), pid 7, restarted 0 times; fine")
    assert systemd.status()[0] is False


def test_what_systemctl_refuses_is_told_in_its_own_words(systemd: Systemd, tmp_path: Path) -> None:
    (tmp_path / "no").touch()

    with pytest.raises(ServiceRefused, match="daemon-reload: Failed to connect to bus"):
        systemd.install(text(), force=False)


def test_without_systemd_there_is_one_line_that_names_the_other_way(tmp_path: Path) -> None:
    absent = Systemd(tmp_path / "units", booted=tmp_path / "absent")

    with pytest.raises(ServiceRefused, match="--detach"):
        absent.install(text(), force=False)
    assert not (tmp_path / "units").exists()


def test_print_shows_the_unit_and_writes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "service", "print", "--home", str(tmp_path / "h")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin", "HOME": str(tmp_path)},
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert lines(done.stdout, "Environment") == ['"PATH=/usr/bin"']
    assert str(tmp_path / "h") in lines(done.stdout, "ExecStart")[0]
    assert not list(tmp_path.iterdir())
