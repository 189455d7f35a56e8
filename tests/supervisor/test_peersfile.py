from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.content import Access
from supervisor.config import ConfigError, load, read_peers
from supervisor.core.policy import AgentOverrides, Auth, PeerOverrides
from supervisor.home import Home
from supervisor.peersfile import PeersFile, PeersUnwritable, write

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0*"), min_size=1, max_size=20)
overrides = st.builds(
    PeerOverrides,
    admitted=st.none() | st.booleans(),
    tools=st.none() | st.lists(st.sampled_from(["read", "todo", "mcp:x"])).map(tuple),
    access=st.none() | st.sampled_from(Access),
    max_turns_per_hour=st.none() | st.integers(0, 1000),
    network=st.none() | st.booleans(),
    agent=st.none() | st.builds(AgentOverrides, model=st.none() | texts, auth=st.none() | st.sampled_from(Auth)),
)


@given(peers=st.dictionaries(texts.filter(str.strip), overrides, max_size=4))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, peers: dict[str, PeerOverrides]
) -> None:
    file = tmp_path_factory.mktemp("home") / "peers.toml"

    write(file, peers)

    assert read_peers(file) == peers
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_entry_that_is_written_counts_at_once_and_after_the_next_load(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.bridge_toml.write_text("[peers.'a/alice']\nmax_turns_per_hour = 2\n")
    file = PeersFile(home.peers_toml)
    admitted = PeerOverrides(admitted=True, tools=("read",))

    at_once = load(home).with_stored_peers(file.with_entry("a/alice", admitted))
    assert not home.peers_toml.exists()
    file.write("a/alice", admitted)

    assert at_once.peers == {"a/alice": PeerOverrides(admitted=True, tools=("read",), max_turns_per_hour=2)}
    assert load(home) == at_once


def test_a_later_change_of_the_same_peer_keeps_the_keys_it_does_not_name(tmp_path: Path) -> None:
    file = PeersFile(tmp_path / "peers.toml")
    file.write("alice", PeerOverrides(admitted=True, access=Access.CHAT))
    file.write("bob", PeerOverrides(admitted=True))

    file.write("alice", PeerOverrides(admitted=False))

    assert read_peers(file.path) == {
        "alice": PeerOverrides(admitted=False, access=Access.CHAT),
        "bob": PeerOverrides(admitted=True),
    }


def test_a_file_that_was_damaged_by_hand_is_not_written_over(tmp_path: Path) -> None:
    file = PeersFile(tmp_path / "peers.toml")
    file.path.write_text("[peers.alice]\naccess = 'root'\n")

    with pytest.raises(ConfigError, match=r"^peers\.toml: peers\.alice\.access: expected one of"):
        file.write("bob", PeerOverrides(admitted=True))

    assert "root" in file.path.read_text()


def test_a_disk_that_refuses_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    file = tmp_path / "peers.toml"
    file.mkdir()  # a folder in its place cannot be replaced by a file

    with pytest.raises(PeersUnwritable, match=r"peers\.toml: cannot be written: "):
        write(file, {"alice": PeerOverrides(admitted=True)})

    assert [entry.name for entry in tmp_path.iterdir()] == ["peers.toml"]
