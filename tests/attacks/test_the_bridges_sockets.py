"""A hostile worker goes for the bridge's own sockets: the workers' bus, the control socket, names without a file."""

import errno
import socket
from pathlib import Path

import pytest

from tests.attacks.sandboxed import Attack, Stage, outside


def connecting(address: str) -> Attack:
    def attack() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(5)
            client.connect(address)

    return attack


@pytest.mark.parametrize("name", ["ctl", "bus"])
def test_a_socket_of_the_bridge_accepts_nobody_from_a_worker(stage: Stage, name: str) -> None:
    """Stand-ins, which count."""
    address = str(stage.home / name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(address)
        listening.listen()
        listening.settimeout(0)

        assert stage.inside(connecting(address)).code == errno.EACCES
        with pytest.raises(BlockingIOError):
            listening.accept()

        assert outside(connecting(address)).code is None
        listening.accept()[0].close()


def test_the_real_bus_is_not_reached_either(stage: Stage) -> None:
    assert stage.cage is not None
    address = str(stage.cage.bus)
    assert Path(address).is_socket()

    assert stage.inside(connecting(address)).code == errno.EACCES
    assert outside(connecting(address)).code is None
