"""A hostile worker goes for sockets: the bridge's own, the operator's, the network."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.content import Access
from protocol.spec import Layer, NetworkMode
from tests.attacks.sandboxed import Attack, Stage, outside
from worker.sandbox.facts import facts

MPTCP = 262
MSG_FASTOPEN = 0x20000000


class Listener:
    """Counts who connects."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._socket.listen(16)
        self._socket.settimeout(0)

    @property
    def accepted(self) -> int:
        count = 0
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.bind(("127.0.0.1", 0))
        yield listening


def stream_to(family: int, address: object) -> Attack:
    def attack() -> None:
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(5)
            client.connect(address)  # type: ignore[arg-type]

    return attack


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_no_unix_socket_of_the_bridge_is_reached(stage: Stage, kind: str) -> None:
    address = str(stage.home / "ctl") if kind == "path" else f"\0attacked-{stage.home.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(address)
        listener = Listener(listening)
        attack = stream_to(socket.AF_UNIX, address)

        assert stage.inside(attack).code == errno.EACCES
        assert listener.accepted == 0
        assert outside(attack).code is None
        assert listener.accepted == 1


def test_a_datagram_pair_is_no_way_to_a_sockets_path(stage: Stage) -> None:
    """Each end of such a pair may send to any other socket: the log daemon's, the service manager's."""
    address = str(stage.workspace / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        os.chmod(address, 0o777)
        listening.settimeout(0)

        def attack() -> int:
            ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            return ours.sendto(b"<0>forged", address)

        assert stage.inside(attack).code == errno.EACCES
        with pytest.raises(BlockingIOError):
            listening.recv(100)
        assert outside(attack).value == 9
        assert listening.recv(100) == b"<0>forged"


FAMILIES = {
    "tcp": (socket.AF_INET, socket.SOCK_STREAM, 0),
    "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, 0),
    "udp": (socket.AF_INET, socket.SOCK_DGRAM, 0),
    "mptcp": (socket.AF_INET, socket.SOCK_STREAM, MPTCP),
    "icmp": (socket.AF_INET, socket.SOCK_RAW, 1),
    "vsock": (40, socket.SOCK_STREAM, 0),
    "netlink": (socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "kernel crypto": (38, socket.SOCK_SEQPACKET, 0),
    "unix": (socket.AF_UNIX, socket.SOCK_STREAM, 0),
}


def opening(*names: str) -> Attack:
    """Each of them: name and errno, 0 = it opened."""

    def attack() -> dict[str, int]:
        ends = {}
        for name in names:
            try:
                socket.socket(*FAMILIES[name]).close()
                ends[name] = 0
            except OSError as error:
                ends[name] = error.errno or errno.EIO
        return ends

    return attack


def test_a_worker_without_a_model_opens_no_socket_at_all(stage: Stage) -> None:
    assert stage.inside(opening(*FAMILIES)).value == dict.fromkeys(FAMILIES, errno.EACCES)

    ends = outside(opening(*FAMILIES)).value
    assert isinstance(ends, dict)
    assert errno.EACCES not in ends.values()


def test_gateway_mode_opens_plain_tcp_and_nothing_else(stage: Stage) -> None:
    plan = stage.plan(network=NetworkMode.GATEWAY, also=(Layer.NET_NS,), gateway_port=4711)
    if not (stage.has(Layer.USER_NS) or stage.has(Layer.OWN_UID)):
        pytest.skip("a network namespace needs a user namespace or root")

    assert stage.inside(opening(*FAMILIES), plan).value == {**dict.fromkeys(FAMILIES, errno.EACCES), "tcp": 0}


def test_in_gateway_mode_nothing_of_this_machine_is_reached(stage: Stage, tcp: socket.socket) -> None:
    if not (stage.has(Layer.USER_NS) or stage.has(Layer.OWN_UID)):
        pytest.skip("a network namespace needs a user namespace or root")
    listener = Listener(tcp)
    port = tcp.getsockname()[1]
    plan = stage.plan(network=NetworkMode.GATEWAY, also=(Layer.NET_NS,), gateway_port=4711)
    attack = stream_to(socket.AF_INET, ("127.0.0.1", port))

    assert stage.inside(attack, plan).code in {errno.ECONNREFUSED, errno.EACCES}
    assert stage.inside(stream_to(socket.AF_INET, ("192.0.2.1", 4711)), plan).code in {errno.ENETUNREACH, errno.EACCES}
    assert listener.accepted == 0
    assert outside(attack).code is None


def test_a_first_packet_with_data_does_not_pass_by_connect(stage: Stage, tcp: socket.socket) -> None:
    if not (stage.has(Layer.USER_NS) or stage.has(Layer.OWN_UID)):
        pytest.skip("a network namespace needs a user namespace or root")
    listener = Listener(tcp)
    address = tcp.getsockname()

    def attack() -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
            return client.sendto(b"hello", MSG_FASTOPEN, address)

    plan = stage.plan(network=NetworkMode.GATEWAY, also=(Layer.NET_NS,), gateway_port=4711)

    assert stage.inside(attack, plan).code == errno.EACCES
    assert listener.accepted == 0
    assert outside(attack).code is None


def test_landlock_knows_the_gateways_port_alone(stage: Stage, tcp: socket.socket) -> None:
    if not stage.has(Layer.LANDLOCK) or facts().landlock_abi < 4:
        pytest.skip("TCP rules need Landlock ABI 4")
    if not (stage.has(Layer.USER_NS) or stage.has(Layer.OWN_UID)):
        pytest.skip("a network namespace needs a user namespace or root")

    def bind() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            server.bind(("127.0.0.1", 0))

    plan = stage.plan(network=NetworkMode.GATEWAY, also=(Layer.NET_NS,), gateway_port=4711)

    assert stage.inside(stream_to(socket.AF_INET, ("127.0.0.1", 4712)), plan).code == errno.EACCES
    assert stage.inside(stream_to(socket.AF_INET, ("127.0.0.1", 4711)), plan).code is None
    assert stage.inside(bind, plan).code == errno.EACCES


def test_full_opens_the_internet_but_no_unix_socket(stage: Stage, tcp: socket.socket) -> None:
    Listener(tcp)
    plan = stage.plan(Access.FULL, network=NetworkMode.OPEN)

    ends = stage.inside(opening(*FAMILIES), plan).value

    assert isinstance(ends, dict)
    opens = {"tcp", "tcp6", "udp", "netlink"}
    assert {ends[name] for name in opens} <= {0, errno.EAFNOSUPPORT}
    assert {name for name, code in ends.items() if code == errno.EACCES} == set(FAMILIES) - opens
    assert stage.inside(stream_to(socket.AF_INET, tcp.getsockname()), plan).code is None


def test_open_network_below_full_is_no_network(stage: Stage) -> None:
    assert stage.inside(opening("tcp"), stage.plan(network=NetworkMode.OPEN)).value == {"tcp": errno.EACCES}


def test_a_path_below_the_workspace_is_no_socket_either(stage: Stage) -> None:
    def attack() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(str(Path(stage.workspace) / "server"))

    assert stage.inside(attack).code == errno.EACCES
