"""The client without a good supervisor; with one: tests/supervisor/test_ctlserver.py."""

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from protocol.ctl import Status
from supervisor.console.client import Client, NoSupervisor, NotAdmitted
from supervisor.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "b")
    home.make()
    return home


@pytest.fixture
def held(home: Home) -> Iterator[Home]:
    with open(home.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield home


def write_keys(home: Home) -> None:
    server, _ = zmq.curve_keypair()
    public, secret = zmq.curve_keypair()
    (home.run / "ctl-server.pub").write_bytes(server + b"\n")
    (home.run / "ctl-client.key").write_bytes(public + b"\n" + secret + b"\n")


def test_without_a_lock_there_is_no_supervisor(tmp_path: Path) -> None:
    with pytest.raises(NoSupervisor, match=f"no supervisor runs on {tmp_path}"):
        Client(tmp_path)


def test_a_home_that_is_a_file_has_no_supervisor(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(NoSupervisor, match="no supervisor runs on"):
        Client(tmp_path / "file")


def test_a_lock_that_nobody_holds_means_no_supervisor_at_once_and_stays_free(home: Home) -> None:
    home.lock.write_text("4242")
    write_keys(home)

    with pytest.raises(NoSupervisor, match="no supervisor runs on"):
        Client(home.path)

    with open(home.lock) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert lock.read() == "4242"


def test_a_held_lock_without_keys_is_a_supervisor_that_does_not_answer(held: Home) -> None:
    with pytest.raises(NoSupervisor, match="does not answer"):
        Client(held.path, silence_s=0.2)


def test_a_held_lock_without_a_socket_is_a_supervisor_that_does_not_answer(held: Home) -> None:
    write_keys(held)

    with Client(held.path, silence_s=0.3) as client, pytest.raises(NoSupervisor, match="does not answer"):
        list(client.ask(Status()))


def test_a_supervisor_that_goes_while_we_wait_is_gone(home: Home) -> None:
    write_keys(home)
    with open(home.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = Client(home.path, silence_s=0.3)

    with client, pytest.raises(NoSupervisor, match="no supervisor runs on"):
        list(client.ask(Status()))


def test_a_key_file_without_a_key_is_named(held: Home) -> None:
    (held.run / "ctl-server.pub").write_text("nonsense\n")
    (held.run / "ctl-client.key").write_text("")

    with pytest.raises(NotAdmitted, match=r"ctl-client\.key: holds no key"):
        Client(held.path)
