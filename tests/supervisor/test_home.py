import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.home import Home, HomeError, peer_dirname


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_home_is_made_private_and_as_root_passable(tmp_path: Path) -> None:
    home = Home(tmp_path / "state" / "bridge")

    home.make()

    shared = 0o711 if os.geteuid() == 0 else 0o700
    assert {mode(folder) for folder in (home.path, home.sessions, home.workspaces, home.media)} == {shared}
    assert mode(home.run) == 0o700


def test_making_a_home_again_mends_its_modes_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "bridge")
    home.make()
    home.bridge_toml.write_text("# mine")
    home.run.chmod(0o777)

    home.make()

    assert mode(home.run) == 0o700
    assert home.bridge_toml.read_text() == "# mine"


@pytest.mark.parametrize("blocked", ["", "run", "media"])
def test_a_file_where_a_folder_belongs_is_named(tmp_path: Path, blocked: str) -> None:
    home = Home(tmp_path / "bridge")
    in_the_way = home.path / blocked if blocked else home.path
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_text("")

    with pytest.raises(HomeError) as caught:
        home.make()

    assert str(caught.value) == f"{in_the_way}: not a folder; move it away or choose another --home"


def test_a_home_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(HomeError, match="not a folder"):
        Home(tmp_path / "file" / "bridge").make()


def test_a_link_in_place_of_the_run_folder_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "bridge")
    home.path.mkdir()
    home.run.symlink_to(tmp_path)

    with pytest.raises(HomeError, match="is a link; remove it"):
        home.make()


def test_sockets_lie_in_the_run_folder_where_they_fit(tmp_path: Path) -> None:
    home = Home(tmp_path / "b")
    home.make()

    home.make_sockets(None)

    assert home.ctl_socket == home.run / "ctl.sock"


def test_sockets_of_a_long_home_get_a_short_private_folder_that_is_kept(tmp_path: Path) -> None:
    runtime_dir = tmp_path / "r"
    runtime_dir.mkdir()
    home = Home(tmp_path / ("long" * 30))
    home.make()

    home.make_sockets(str(runtime_dir))
    first = home.sockets
    home.make_sockets(str(runtime_dir))

    assert first.parent == runtime_dir
    assert mode(first) == 0o700
    assert home.sockets == first
    assert list(runtime_dir.iterdir()) == [first]
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(home.ctl_socket))


def test_a_socket_folder_that_is_gone_or_open_to_others_is_replaced(tmp_path: Path) -> None:
    home = Home(tmp_path / ("long" * 30))
    home.make()
    home.make_sockets(str(tmp_path))
    first = home.sockets
    first.chmod(0o755)

    home.make_sockets(str(tmp_path))
    second = home.sockets
    second.rmdir()
    home.make_sockets(str(tmp_path))

    assert len({first, second, home.sockets}) == 3
    assert mode(home.sockets) == 0o700


ids = st.text(max_size=60) | st.sampled_from(
    ["..", ".", "", "/", "a/../..", "\0", "\ud800", "a" * 4000, "用户@im.wechat"]
)


@given(first=st.tuples(ids, ids), second=st.tuples(ids, ids))
def test_no_two_peers_share_a_folder_and_none_leaves_its_parent(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    names = {peer_dirname(*first), peer_dirname(*second)}

    assert len(names) == len({first, second})
    for name in names:
        assert name.isascii()
        assert name.strip(".-") == name
        assert 0 < len(name) <= 64
        assert os.path.basename(name) == name
        assert not name.isspace()


def test_neither_the_border_between_the_ids_nor_letter_case_makes_two_peers_one() -> None:
    assert peer_dirname("a", "bc") != peer_dirname("ab", "c")
    assert peer_dirname("x", "Alice").lower() != peer_dirname("x", "alice").lower()


def test_a_folder_is_readable_by_its_prefix() -> None:
    assert peer_dirname("bot", "alice@im.wechat").startswith("alice-")
    assert peer_dirname("bot", "..").startswith("peer-")
