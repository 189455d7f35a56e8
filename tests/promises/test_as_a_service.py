"""Under a service manager the bridge says when it is ready, that it lives, how it is and that it stops."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.bridge import Bridge

DEADLINE_S = 30.0


class Managed(Bridge):
    """Started as systemd starts a service of Type=notify with a watchdog."""

    address = ""

    def env(self) -> dict[str, str]:
        return {**super().env(), "NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": "300000"}


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"{folder}/notify")
        listening.settimeout(DEADLINE_S)
        yield listening


def until(manager: socket.socket, start: str) -> str:
    while True:
        heard = manager.recv(65536).decode()
        if heard.startswith(start):
            return heard


def test_a_service_manager_hears_ready_signs_of_life_the_state_and_the_stop(
    manager: socket.socket, tmp_path: Path
) -> None:
    nobody = "http://127.0.0.1:1"
    with Managed(tmp_path / "home", base_url=nobody, cdn_url=nobody) as bridge:
        bridge.address = manager.getsockname()
        bridge.start()

        assert until(manager, "READY") == "READY=1"
        for _ in range(3):
            until(manager, "WATCHDOG=1")
        state = until(manager, "STATUS=")
        assert state.removeprefix("STATUS=") == bridge.ctl().stdout.rstrip("\n")

        bridge.stop()
        assert until(manager, "STOPPING").startswith("STOPPING=1\n")
