"""worker/passage.py: what a worker's namespace or connect() leads to, served as the nanny serves it."""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from worker.passage import BUFFER_BYTES, PAIRS, Passage, hand_over
from worker.sandbox.plan import Way

DEADLINE_S = 20.0


class Served:
    """A passage with a listener, served in a thread; gateway: who stands at its other end."""

    def __init__(self) -> None:
        self.gateway = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.gateway.settimeout(DEADLINE_S)
        self.near = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = self.near.getsockname()
        door, theirs = socket.socketpair()
        self.passage = Passage(door, self.gateway.getsockname()[1])
        hand_over(theirs, Way.LISTENER, self.near.detach())
        theirs.close()
        self._over, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self.passage.fileno(), self._over], [], [])
            if self._over in ready:
                return
            self.passage.serve()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=DEADLINE_S)

    def accept(self) -> socket.socket:
        server, _ = self.gateway.accept()
        server.settimeout(DEADLINE_S)
        return server

    def close(self) -> None:
        os.close(self._end)
        self._thread.join()
        os.close(self._over)
        self.passage.close()
        self.gateway.close()


@pytest.fixture
def served() -> Iterator[Served]:
    one = Served()
    yield one
    one.close()


def everything(from_: socket.socket) -> bytes:
    data = b""
    while more := from_.recv(65536):
        data += more
    return data


def in_a_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_bytes_go_both_ways_and_each_sides_end_is_told_to_the_other(served: Served) -> None:
    with served.connect() as client, served.accept() as server:
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        assert everything(server) == b"question"
        server.sendall(b"answer")
        server.close()

        assert everything(client) == b"answer"


def test_more_than_anybody_holds_arrives_whole_in_both_directions_at_once(served: Served) -> None:
    data = os.urandom(5_000_000)
    with served.connect() as client, served.accept() as server:
        senders = [
            in_a_thread(lambda one=one: (one.sendall(data), one.shutdown(socket.SHUT_WR))) for one in (client, server)
        ]
        got: dict[str, bytes] = {}
        readers = [
            in_a_thread(lambda name=name, one=one: got.update({name: everything(one)}))
            for name, one in (("client", client), ("server", server))
        ]
        for thread in (*senders, *readers):
            thread.join(DEADLINE_S)

        assert got == {"client": data, "server": data}


def test_a_side_that_does_not_read_is_not_read_for(served: Served) -> None:
    with served.connect() as client, served.accept() as server:
        client.setblocking(False)
        sent = 0
        quiet = 0
        while quiet < 20:  # until nothing more is taken for a while
            try:
                sent += client.send(b"x" * 65536)
                quiet = 0
            except BlockingIOError:
                quiet += 1
                select.select([], [client], [], 0.01)
        pair = next(iter(served.passage._pairs.values()))

        assert all(len(flow.held) <= 2 * BUFFER_BYTES for flow in pair._flows)
        assert len(server.recv(1)) == 1


def test_one_that_hangs_up_ends_the_other(served: Served) -> None:
    with served.connect() as client, served.accept() as server:
        client.close()

        assert server.recv(10) == b""
    with served.connect() as client, served.accept() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        server.close()  # by a reset

        with contextlib.suppress(ConnectionResetError):
            assert client.recv(10) == b""


def test_only_so_many_are_carried_at_once_and_the_next_one_waits(served: Served) -> None:
    clients = [served.connect() for _ in range(PAIRS + 3)]
    servers = [served.accept() for _ in range(PAIRS)]
    served.gateway.settimeout(0.2)
    with pytest.raises(TimeoutError):
        served.gateway.accept()
    served.gateway.settimeout(DEADLINE_S)

    clients[0].close()
    servers[0].close()
    servers.append(served.accept())

    for one in (*clients, *servers):
        one.close()


def test_without_a_gateway_a_connection_ends_at_once(served: Served) -> None:
    served.gateway.close()

    with served.connect() as client:
        assert client.recv(10) == b""


def test_a_worker_that_dies_before_it_hands_anything_over_is_no_trouble() -> None:
    door, theirs = socket.socketpair()
    passage = Passage(door, 4711)
    theirs.close()

    passage.serve()
    passage.serve()

    assert select.select([passage.fileno()], [], [], 0)[0] == []
    passage.close()


def test_nothing_is_taken_from_the_door_a_second_time() -> None:
    """What is sent later comes from hostile hands."""
    door, theirs = socket.socketpair()
    passage = Passage(door, 4711)
    with socket.create_server(("127.0.0.1", 0)) as first:
        hand_over(theirs, Way.LISTENER, os.dup(first.fileno()))
        passage.serve()
        before = passage._listener

        with pytest.raises(BrokenPipeError):
            socket.send_fds(theirs, [b"listener"], [first.fileno()])
        passage.serve()

        assert passage._listener is before
    passage.close()
    theirs.close()
