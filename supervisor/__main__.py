"""bridge-supervisor: argv → detach → zygote → config → locks → run → exit code.

The zygote is started before any setting or secret is read, so that no worker can inherit one. Exit codes: 0 done,
1 failed, 2 wrong usage or configuration, 3 another process owns this home or every account.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

import protocol
import worker

if TYPE_CHECKING:  # all else is imported by the command that needs it, once nothing of ours can be hidden
    from supervisor.home import Home
    from supervisor.service import Systemd

VERSION = "0.1.0"

LEVELS = ("debug", "info", "warning", "error")
EXIT_FAILED, EXIT_USAGE, EXIT_OWNED = 1, 2, 3


def main() -> NoReturn:
    """The program's entry."""
    unusable = _unsupported() or _shadowed()
    if unusable:
        print(unusable, file=sys.stderr)
        sys.exit(EXIT_FAILED)
    cli.main(prog_name="bridge-supervisor")
    sys.exit(0)


def _unsupported() -> str | None:
    """One line where nothing could bind an agent's processes to their worker's life."""
    if sys.platform == "win32":
        return "bridge-supervisor: runs on Linux and macOS; on Windows, run it inside WSL"
    return None


def _shadowed() -> str | None:
    """One line when another package of the same generic name stands before ours on the path (supervisord's, say)."""
    ours = Path(__file__).resolve().parent.parent
    import supervisor

    for package in (protocol, supervisor, worker):
        found = [Path(p).resolve().parent for p in package.__path__]
        if ours not in found:
            return (
                f"bridge-supervisor: the package {package.__name__!r} of {found[0]} hides ours; "
                "install bridge-supervisor in an environment of its own (pipx or uv tool)"
            )
    return None


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that every call takes, before or behind the command's name."""
    for option in (
        click.option(
            "--home", metavar="DIR", help="the bridge's home; else $BRIDGE_HOME, else the user's state folder"
        ),
        click.option("--config", metavar="FILE", help="settings file; else <home>/bridge.toml"),
        click.option("--log-level", type=click.Choice(LEVELS), help="how much to log; else $BRIDGE_LOG, else info"),
        click.version_option(VERSION, message="bridge-supervisor %(version)s"),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@_common
@click.pass_context
def cli(context: click.Context, /, **given: str | None) -> None:
    """A WeChat bridge that gives every peer's agent session a sandboxed process of its own."""
    context.obj = given


def _asked(context: click.Context, given: dict[str, str | None]) -> dict[str, str | None]:
    """What stands behind the command's name wins over what stands before it."""
    before = context.find_root().obj
    return {name: value if value is not None else before[name] for name, value in given.items()}


@cli.command()
@click.option("--detach", is_flag=True, help="return once the bridge is ready; it goes on in the background")
@_common
@click.pass_context
def start(context: click.Context, /, detach: bool, **given: str | None) -> None:
    """Run the bridge until SIGTERM or SIGINT."""
    gc.disable()  # all that an import makes is kept, so looking for garbage in it again and again is 50 ms for nothing
    from supervisor import app

    gc.freeze()
    gc.enable()
    asked = _asked(context, given)
    sys.exit(
        app.start(
            home=asked["home"],
            config_file=Path(asked["config"]) if asked["config"] else None,
            log_level=asked["log_level"],
            detach=app.Detach.YES if detach else app.Detach.NO,
        )
    )


@cli.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="the page's port; 0 takes a free one"
)
@click.option("--agent", default="builtin", metavar="HOST", help="which agent host answers", show_default=True)
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", help="how much to log", show_default=True)
@click.version_option(VERSION, message="bridge-supervisor %(version)s")
def demo(port: int, agent: str, log_level: str) -> None:
    """Try the bridge against a simulated WeChat, with a phone as a web page."""
    from supervisor.demo.main import run

    sys.exit(run(port=port, agent=agent, log_level=log_level))


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@_common
@click.pass_context
def backup(context: click.Context, /, file: Path, **given: str | None) -> None:
    """Write the home, running or not, into one archive: settings, tokens, journal, sessions, workspaces; no media.

    Whoever has the archive has the accounts: it is readable for you alone.
    """
    from supervisor import archive

    with _refusals():
        size = archive.back_up(_home(context, given), file, version=VERSION)
        click.echo(f"{file}: {size / 1e6:.1f} MB")


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@_common
@click.pass_context
def restore(context: click.Context, /, file: Path, **given: str | None) -> None:
    """Make a home of an archive. The home must be empty or not there; its accounts are paused until you resume them."""
    from supervisor import archive

    with _refusals():
        for line in archive.restore(file, _home(context, given)):
            click.echo(line)


@cli.command()
@click.argument("hold_ms", required=False, type=click.IntRange(1, 600_000))
@click.option("--account", default="", metavar="ACCOUNT", help="name or bot id; needed only where there are several")
@_common
@click.pass_context
def probe(context: click.Context, /, hold_ms: int | None, account: str, **given: str | None) -> None:
    """Measure how long WeChat holds a poll; with HOLD_MS, whether it does as asked.

    Needs the account for itself: refused while a bridge polls it. Messages that come meanwhile are kept in the journal and
    run at the next start.
    """
    from supervisor import holdprobe

    with _refusals():
        file = _asked(context, given)["config"]
        holdprobe.probe(_home(context, given), Path(file) if file else None, account, hold_ms, click.echo)


@cli.group()
def service() -> None:
    """The bridge as a systemd user service: restarted on failure, and when it hangs."""


@service.command("install")
@click.option("--force", is_flag=True, help="replace a unit of that name")
@_common
@click.pass_context
def install_service(context: click.Context, /, force: bool, **given: str | None) -> None:
    """Write the unit, start the bridge, and start it at every login."""
    with _refusals():
        for line in _systemd().install(_unit(context, given), force=force):
            click.echo(line)


@service.command("uninstall")
def uninstall_service() -> None:
    """Stop the bridge and remove the unit. The home stays."""
    with _refusals():
        for line in _systemd().uninstall():
            click.echo(line)


@service.command("status")
def service_status() -> None:
    """What systemd says of it; exit code 1 when it does not run."""
    with _refusals():
        runs, line = _systemd().status()
        click.echo(line)
        if not runs:
            sys.exit(EXIT_FAILED)


@service.command("print")
@_common
@click.pass_context
def print_unit(context: click.Context, /, **given: str | None) -> None:
    """Show the unit as it would be written."""
    with _refusals():
        click.echo(_unit(context, given), nl=False)


def _systemd() -> "Systemd":
    from supervisor.service import Systemd

    return Systemd(Path.home() / ".config" / "systemd" / "user")


def _unit(context: click.Context, given: dict[str, str | None]) -> str:
    from supervisor import config
    from supervisor import service as systemd

    asked = _asked(context, given)
    file = Path(asked["config"]).absolute() if asked["config"] else None
    path = config.read_environment().variables.get("PATH", os.defpath)
    return systemd.unit(_home(context, given), interpreter=systemd.interpreter(), path=path, config_file=file)


def _home(context: click.Context, given: dict[str, str | None]) -> "Home":
    """raises ConfigError"""
    from protocol.home import find_home
    from supervisor import config
    from supervisor.home import Home

    return Home(find_home(_asked(context, given)["home"], config.read_environment().variables, Path.home()))


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """A refusal is one line on stderr and an exit code."""
    from protocol.errors import BridgeError
    from supervisor import config
    from supervisor.detach import Foreground
    from supervisor.lockfile import AlreadyRunning

    try:
        yield
    except config.ConfigError as error:
        code, line = EXIT_USAGE, str(error)
    except AlreadyRunning as error:
        code, line = EXIT_OWNED, str(error)
    except BridgeError as error:
        code, line = EXIT_FAILED, str(error)
    else:
        return
    Foreground().failed(f"bridge-supervisor: {line}")
    sys.exit(code)


if __name__ == "__main__":
    main()
