"""A hostile worker that may reach the gateway goes for everything else, by both ways that lead there."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest

from protocol.spec import IsolationMode, Layer, NetworkMode, WorkerPlan
from tests.attacks.sandboxed import Attack, Stage, inside, outside
from tests.attacks.test_sockets import FAMILIES, MSG_FASTOPEN, opening
from worker.sandbox.facts import facts
from worker.sandbox.plan import NO_WAY

WAYS = ("listener", "asked")


class Gateway:
    """Answers each connection with what it heard, in capitals; counts them."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._socket.getsockname()[1]
        self.accepted = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    @staticmethod
    def _answer(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data.upper())

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    one = Gateway()
    yield one
    one.close()


@pytest.fixture
def elsewhere() -> Iterator[socket.socket]:
    """Something of this machine's that is not the gateway."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        yield listening


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, stage: Stage) -> str:
    if request.param == "listener" and not (stage.has(Layer.USER_NS) or stage.has(Layer.OWN_UID)):
        pytest.skip("a network namespace needs a user namespace or root")
    if request.param == "asked" and not facts().notifies:
        pytest.skip("seccomp cannot hand descriptors over here")
    found: str = request.param
    return found


def plan(stage: Stage, way: str, port: int) -> WorkerPlan:
    also = (Layer.NET_NS,) if way == "listener" else ()
    return stage.plan(network=NetworkMode.GATEWAY, also=also, gateway_port=port)


def talking(port: int, host: str = "127.0.0.1") -> Attack:
    def attack() -> str:
        with socket.socket() as client:
            client.settimeout(10)
            client.connect((host, port))
            client.sendall(b"hello")
            return client.recv(100).decode()

    return attack


def each(*attacks: tuple[str, Callable[[], object]]) -> Attack:
    """All of them, one after the other: name and errno, 0 = it worked."""

    def attack() -> dict[str, int]:
        ends = {}
        for name, one in attacks:
            try:
                one()
                ends[name] = 0
            except OSError as error:
                ends[name] = error.errno or errno.EIO
        return ends

    return attack


def accepted_by(listening: socket.socket) -> int:
    try:
        listening.accept()[0].close()
    except BlockingIOError:
        return 0
    return 1


def test_the_gateway_is_reached(stage: Stage, way: str, gateway: Gateway) -> None:
    assert stage.inside(talking(gateway.port), plan(stage, way, gateway.port)).value == "HELLO"


def test_no_other_address_or_port_is(stage: Stage, way: str, gateway: Gateway, elsewhere: socket.socket) -> None:
    other = elsewhere.getsockname()[1]
    addresses = {
        "another port": ("127.0.0.1", other),
        "this port of another loopback": ("127.0.0.2", gateway.port),
        "this machine by another name": (_own_address(), other),
        "this port of the world": ("192.0.2.1", gateway.port),
        "metadata": ("169.254.169.254", 80),
        "any": ("0.0.0.0", other),
    }

    def connecting(address: tuple[str, int]) -> Callable[[], object]:
        def connect() -> None:
            with socket.socket() as client:
                client.settimeout(5)
                client.connect(address)

        return connect

    attack = each(*((name, connecting(address)) for name, address in addresses.items()))
    ends = stage.inside(attack, plan(stage, way, gateway.port)).value

    assert isinstance(ends, dict)
    allowed = {errno.EACCES, errno.ECONNREFUSED, errno.ENETUNREACH}
    if way == "listener":  # all of 127/8 is this worker's own loopback, where the passage listens at 127.0.0.1 alone
        assert ends["this port of another loopback"] == errno.ECONNREFUSED
    assert set(ends.values()) <= allowed, ends
    assert accepted_by(elsewhere) == 0
    assert gateway.accepted == 0
    assert outside(connecting(("127.0.0.1", other))).code is None


def _own_address() -> str:
    """Of this machine's, if it has any beside loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        address: str = any_socket.getsockname()[0]
        return address


def test_every_other_kind_of_socket_stays_shut(stage: Stage, way: str, gateway: Gateway) -> None:
    ends = stage.inside(opening(*FAMILIES), plan(stage, way, gateway.port)).value

    assert ends == {**dict.fromkeys(FAMILIES, errno.EACCES), "tcp": 0}


def test_nothing_gets_out_past_connect(stage: Stage, way: str, gateway: Gateway, elsewhere: socket.socket) -> None:
    address, port = elsewhere.getsockname(), gateway.port
    fast_open_connect, multipath = 30, 42

    def by_fast_open() -> None:
        with socket.socket() as client:
            client.sendto(b"x", MSG_FASTOPEN, address)

    def by_fast_open_message() -> None:
        with socket.socket() as client:
            client.sendmsg([b"x"], [], MSG_FASTOPEN, address)

    def by_a_delayed_connect() -> None:
        with socket.socket() as client:
            client.setsockopt(socket.IPPROTO_TCP, fast_open_connect, 1)
            client.connect(address)
            client.send(b"x")

    def by_multipath() -> None:
        with socket.socket() as client:
            client.setsockopt(socket.IPPROTO_TCP, multipath, 1)
            client.connect(address)

    def by_sending_unconnected() -> None:
        with socket.socket() as client:
            client.sendto(b"x", address)

    def by_connecting_again() -> None:
        """From the gateway to somebody else: AF_UNSPEC dissolves a connection."""
        import ctypes

        with socket.socket() as client:
            client.connect(("127.0.0.1", port))
            libc = ctypes.CDLL(None, use_errno=True)
            libc.connect(client.fileno(), (b"\0" * 16), 16)
            client.connect(address)

    attacks = [
        by_fast_open,
        by_fast_open_message,
        by_a_delayed_connect,
        by_multipath,
        by_sending_unconnected,
        by_connecting_again,
    ]
    ends = stage.inside(each(*((one.__name__, one) for one in attacks)), plan(stage, way, port)).value

    assert isinstance(ends, dict)
    assert all(ends.values()), ends
    assert accepted_by(elsewhere) == 0
    assert outside(by_fast_open).code is None


def test_nobody_gets_in(stage: Stage, way: str, gateway: Gateway) -> None:
    """A port that a worker opens would be a way in, from this machine or from the whole network."""

    def by_bind() -> None:
        with socket.socket() as server:
            server.bind(("0.0.0.0", 0))

    def by_listen_alone() -> int:
        server = socket.socket()
        server.listen()
        port: int = server.getsockname()[1]
        return port

    outcome = stage.inside(by_listen_alone, plan(stage, way, gateway.port))
    if way == "asked":
        assert outcome.code == errno.EACCES
        assert stage.inside(by_bind, plan(stage, way, gateway.port)).code == errno.EACCES
    else:  # in a network of its own there is nobody who could come
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(str(outcome.value or 1))), timeout=5)
    assert outside(by_bind).code is None


def test_an_address_that_changes_while_it_is_looked_at_leads_nowhere_else(
    stage: Stage, gateway: Gateway, elsewhere: socket.socket
) -> None:
    """A thread swaps the named address as fast as it can: it ends at the gateway or nowhere."""
    if not facts().notifies:
        pytest.skip("seccomp cannot hand descriptors over here")
    other, port = elsewhere.getsockname()[1], gateway.port

    def attack() -> list[int]:
        import ctypes

        def named(number: int) -> bytes:
            return b"\2\0" + number.to_bytes(2, "big") + b"\x7f\0\0\1" + b"\0" * 8

        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.create_string_buffer(named(port), 16)
        stop = threading.Event()

        def swap() -> None:
            while not stop.is_set():
                ctypes.memmove(address, named(other), 16)
                ctypes.memmove(address, named(port), 16)

        swapping = threading.Thread(target=swap)
        swapping.start()
        peers = []
        for _ in range(60):
            with socket.socket() as client:
                if libc.connect(client.fileno(), address, 16) == 0:
                    peers.append(client.getpeername()[1])
        stop.set()
        swapping.join()
        return peers

    peers = stage.inside(attack, plan(stage, "asked", port)).value

    assert isinstance(peers, list) and set(peers) <= {port}
    assert accepted_by(elsewhere) == 0


def test_agents_of_every_kind_get_through(stage: Stage, way: str, gateway: Gateway) -> None:
    """A client that blocks, one with a deadline, asyncio, and a program of its own; many at once; all bytes."""
    if stage.hides_our_interpreter:
        pytest.skip("a uid of its own without mounts of its own cannot start our interpreter here")
    port = gateway.port

    def attack() -> list[object]:
        import asyncio

        def ask(timeout: float | None) -> str:
            with socket.socket() as client:
                client.settimeout(timeout)
                client.connect(("127.0.0.1", port))
                client.sendall(b"blocking")
                return client.recv(100).decode()

        async def ask_all() -> list[int]:
            async def one(number: int) -> int:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                data = bytes([97 + number]) * 300_000
                writer.write(data)
                got = await reader.readexactly(len(data))
                writer.close()
                return int(got == data.upper())

            return await asyncio.gather(*(one(number) for number in range(8)))

        def in_a_loop_of_its_own() -> list[int]:
            found: list[list[int]] = []
            thread = threading.Thread(target=lambda: found.append(asyncio.run(ask_all())))
            thread.start()
            thread.join()
            return found[0]

        code = (
            f"import socket; c = socket.create_connection(('127.0.0.1', {port})); c.sendall(b'child'); print(c.recv(9))"
        )
        child = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
        return [ask(None), ask(20), in_a_loop_of_its_own(), child.stdout.strip() or child.stderr[-300:]]

    told = stage.inside(attack, plan(stage, way, gateway.port)).value

    assert told == ["BLOCKING", "BLOCKING", [1] * 8, "b'CHILD'"]


def test_a_flood_of_connects_costs_the_worker_and_not_its_nanny(stage: Stage, way: str, gateway: Gateway) -> None:
    port = gateway.port

    def attack() -> str:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for _ in range(600):
            with socket.socket() as client:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
        return "still here"

    with stage.another(plan(stage, way, port)) as worker:
        assert worker.attempt(attack).value == "still here"
        assert worker.attempt(lambda: 1).value == 1  # its nanny still relays
        held = len(os.listdir(f"/proc/{worker.pids['nanny']}/fd")) if os.geteuid() == 0 else 0

    assert held < 250


def test_a_stopped_worker_whose_connect_waits_is_gone_at_once(stage: Stage, gateway: Gateway) -> None:
    """Killed in the middle of a connect() that its nanny has to answer."""
    if not facts().notifies:
        pytest.skip("seccomp cannot hand descriptors over here")
    port = gateway.port

    def attack() -> None:
        def connect_for_ever() -> None:
            while True:
                with socket.socket() as client:
                    client.connect_ex(("127.0.0.1", port))

        for _ in range(4):
            threading.Thread(target=connect_for_ever, daemon=True).start()

    with stage.another(plan(stage, "asked", port)) as worker:
        worker.attempt(attack)
        pid = worker.pids["worker"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def test_a_machine_without_a_way_lets_nobody_out_and_says_what_would_help(stage: Stage) -> None:
    machine = replace(facts(), notifies=False)
    wanted = plan(stage, "asked", 4711)

    refused = inside(opening("tcp"), wanted, machine=machine)
    at_best = msgspec.structs.replace(wanted, mode=IsolationMode.BEST_EFFORT, required=())
    without = inside(opening("tcp"), at_best, machine=machine)

    assert NO_WAY in refused.broke
    assert without.value == {"tcp": errno.EACCES}
