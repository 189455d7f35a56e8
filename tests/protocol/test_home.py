from pathlib import Path

import pytest

from protocol.home import find_home, socket_fits

USER = Path("/home/ada")


@pytest.mark.parametrize(
    ("asked", "environ", "platform", "home"),
    [
        (None, {}, "linux", "/home/ada/.local/state/bridge-supervisor"),
        (None, {"XDG_STATE_HOME": "/var/ada"}, "linux", "/var/ada/bridge-supervisor"),
        (None, {"XDG_STATE_HOME": "relative"}, "linux", "/home/ada/.local/state/bridge-supervisor"),
        (None, {}, "darwin", "/home/ada/Library/Application Support/bridge-supervisor"),
        (None, {"BRIDGE_HOME": "/srv/b", "XDG_STATE_HOME": "/var/ada"}, "linux", "/srv/b"),
        (None, {"BRIDGE_HOME": ""}, "linux", "/home/ada/.local/state/bridge-supervisor"),
        ("/opt/b", {"BRIDGE_HOME": "/srv/b"}, "linux", "/opt/b"),
    ],
)
def test_the_home_is_what_was_asked_else_the_environments_else_the_platforms(
    asked: str | None, environ: dict[str, str], platform: str, home: str
) -> None:
    assert find_home(asked, environ, USER, platform) == Path(home)


def test_a_relative_home_is_made_absolute() -> None:
    assert find_home("here", {}, USER) == Path.cwd() / "here"


@pytest.mark.parametrize(
    ("length", "platform", "fits"), [(107, "linux", True), (108, "linux", False), (104, "darwin", False)]
)
def test_a_socket_path_is_measured_in_bytes(length: int, platform: str, fits: bool) -> None:
    path = Path("/" + "a" * (length - 1))

    assert socket_fits(path, platform) is fits
    assert not socket_fits(Path("/" + "é" * 54), "linux")
