"""A stranger of the same user at the worker bus: garbage, half a handshake, other mechanisms, foreign and stale keys.

Nobody in a sandbox can make a socket, so that this is a wall behind the wall. Who a message is from, and what a holder of
a key may do: tests/supervisor/test_router.py.
"""

import asyncio
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import zmq

from protocol.codec import FRAME_BYTES, encode
from protocol.ids import LeaseKey
from protocol.spec import NannyKeys
from protocol.to_supervisor import Pulse
from protocol.to_worker import Leave
from supervisor.router import HANDSHAKE_MS, Lost, Router
from tests.fakes.workers import DEADLINE_S, in_a_loop, key, until

PULSE = encode(Pulse())
GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01"
MECHANISM = {name: GREETING + name.ljust(20, b"\0") + b"\0" * 32 for name in (b"CURVE", b"NULL", b"PLAIN")}
HELLO_OF_NONSENSE = b"\x04\xc8" + b"\x05HELLO" + b"\x01\x00" + b"x" * 192
READY_OF_NONSENSE = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
LONG_COMMAND = b"\x06" + (1 << 40).to_bytes(8, "big")
LONG_MESSAGE = b"\x02" + (1 << 62).to_bytes(8, "big")

GARBAGE = {
    "nothing": b"",
    "one byte": b"\xff",
    "half a greeting": GREETING,
    "a greeting": MECHANISM[b"CURVE"],
    "another mechanism": MECHANISM[b"NULL"] + READY_OF_NONSENSE,
    "a password": MECHANISM[b"PLAIN"] + b"\x04\x0a\x05HELLO\x01x\x01x",
    "an old protocol": b"\x01\x00" * 40,
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "random": bytes(range(256)) * 64,
    "a hello of nonsense": MECHANISM[b"CURVE"] + HELLO_OF_NONSENSE,
    "a command without end": MECHANISM[b"CURVE"] + LONG_COMMAND,
    "a message without end": MECHANISM[b"CURVE"] + LONG_MESSAGE,
    "a message before the handshake": MECHANISM[b"CURVE"] + b"\x00\x05hello",
}


@dataclass
class Bus:
    """member: what one lease's nanny would hold; it has been heard once."""

    router: Router
    context: "zmq.Context[zmq.Socket[bytes]]"
    path: Path
    member: "zmq.Socket[bytes]"
    keys: NannyKeys
    heard: list[LeaseKey]

    def dial(self, keys: NannyKeys, **options: object) -> "zmq.Socket[bytes]":
        client = self.context.socket(zmq.DEALER)
        client.linger = 0
        client.routing_id = keys.routing_id
        client.curve_serverkey = keys.server_key.encode()
        client.curve_publickey = keys.public_key.encode()
        client.curve_secretkey = keys.secret_key.encode()
        client.rcvtimeo = int(DEADLINE_S * 1000)
        for name, value in options.items():
            setattr(client, name, value)
        client.connect(keys.endpoint)
        return client

    def knock(self, keys: NannyKeys) -> "zmq.Socket[bytes]":
        """With a key that nobody takes: once it is refused there is no one to send to, and `send` would wait for ever."""
        client = self.dial(keys)
        with contextlib.suppress(zmq.Again):
            client.send(PULSE, zmq.DONTWAIT)
        return client

    def stranger(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(str(self.path))  # blocks while the queue of those who wait to be accepted is full
        made.settimeout(DEADLINE_S)
        return made

    async def serves(self) -> None:
        """Its member is heard and reached, and a new one too."""
        before = len(self.heard)
        self.member.send(PULSE)
        await until(lambda: len(self.heard) > before)
        self.router.send(key(), Leave())
        assert await asyncio.to_thread(self.member.recv) == encode(Leave())
        late = key("late", before + 1)
        newcomer = self.dial(self.router.register(late, os.getpid()))
        newcomer.send(PULSE)
        await until(lambda: late in self.heard)
        newcomer.close()


@contextlib.asynccontextmanager
async def bus() -> AsyncIterator[Bus]:
    with tempfile.TemporaryDirectory(prefix="bus-") as folder:
        async with Router.open(Path(folder)) as router:
            heard: list[LeaseKey] = []
            router.attach(lambda lease, message: heard.append(lease))
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            try:
                keys = router.register(key(), os.getpid())
                made = Bus(router, context, Path(folder) / "bus", None, keys, heard)  # type: ignore[arg-type]
                made.member = made.dial(keys)
                made.member.send(PULSE)
                await until(lambda: bool(heard))
                yield made
            finally:
                context.destroy(linger=0)


@contextlib.contextmanager
def strangers(made: Bus, count: int, say: bytes) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as closing:
        held = [closing.enter_context(made.stranger()) for _ in range(count)]
        for one in held:
            with contextlib.suppress(OSError):
                one.sendall(say)
        yield held


@pytest.mark.parametrize("say", GARBAGE.values(), ids=GARBAGE.keys())
@in_a_loop
async def test_garbage_is_heard_by_nobody_and_disturbs_nobody(say: bytes) -> None:
    async with bus() as made:
        with strangers(made, 20, say):
            await made.serves()

        assert {lease.peer for lease in made.heard} == {"alice", "late"}


@in_a_loop
async def test_half_open_connections_are_closed_when_their_time_is_over() -> None:
    async with bus() as made:
        me = psutil.Process()
        with strangers(made, 100, GREETING) as held:
            began = time.monotonic()
            for one in held:
                while await asyncio.to_thread(one.recv, 1024):
                    pass
            assert time.monotonic() - began < HANDSHAKE_MS / 1000 + DEADLINE_S

            await made.serves()
        assert me.num_fds() < 200


@in_a_loop
async def test_a_crowd_that_comes_and_goes_leaves_no_memory_behind() -> None:
    async with bus() as made:
        me = psutil.Process()
        with strangers(made, 50, MECHANISM[b"CURVE"]):
            await made.serves()
        before = me.memory_info().rss
        for _ in range(20):
            with strangers(made, 50, MECHANISM[b"CURVE"] + HELLO_OF_NONSENSE):
                pass

        await made.serves()

        assert me.memory_info().rss - before < 16 << 20


@pytest.mark.parametrize("mechanism", ["none", "password"])
@in_a_loop
async def test_who_comes_without_a_key_is_heard_under_no_name(mechanism: str) -> None:
    async with bus() as made:
        client = made.context.socket(zmq.DEALER)
        client.linger = 0
        client.routing_id = made.keys.routing_id
        if mechanism == "password":
            client.plain_username, client.plain_password = b"x", b"y"
        client.connect(made.keys.endpoint)
        client.send(PULSE)

        await made.serves()

        assert made.heard.count(key()) == 2
        with pytest.raises(zmq.Again):
            client.recv(zmq.DONTWAIT)


@in_a_loop
async def test_a_key_that_was_never_minted_is_refused_whatever_name_it_takes() -> None:
    async with bus() as made:
        public, secret = zmq.curve_keypair()
        forged = NannyKeys(
            made.keys.endpoint, made.keys.routing_id, public.decode(), secret.decode(), made.keys.server_key
        )
        clients = [made.knock(forged) for _ in range(20)]
        await until(lambda: made.router.refused >= len(clients))

        await made.serves()

        assert made.heard.count(key()) == 2


@in_a_loop
async def test_a_key_used_twice_takes_nothing_from_its_holder() -> None:
    """As if it had leaked into a process with the same pid: the first one on the bus stays the only one."""
    async with bus() as made:
        second = made.dial(made.keys)
        second.send(PULSE)

        await made.serves()

        with pytest.raises(zmq.Again):
            second.recv(zmq.DONTWAIT)


@in_a_loop
async def test_the_key_of_an_earlier_generation_opens_nothing() -> None:
    async with bus() as made:
        old = key("bob", 1)
        stale = made.router.register(old, os.getpid())
        made.router.revoke(old)
        fresh = key("bob", 2)
        made.router.register(fresh, os.getpid())

        client = made.knock(stale)
        await until(lambda: made.router.refused >= 1)
        await made.serves()
        client.close()

        assert old not in made.heard and fresh not in made.heard
        with pytest.raises(Lost):
            made.router.send(fresh, Leave())


@in_a_loop
async def test_frames_over_their_size_and_floods_of_a_member_cost_that_member_alone() -> None:
    async with bus() as made:
        me = psutil.Process()
        greedy = key("greedy")
        client = made.dial(made.router.register(greedy, os.getpid()), sndtimeo=int(DEADLINE_S * 1000))
        client.send(PULSE)
        await until(lambda: greedy in made.heard)
        before = me.memory_info().rss

        flood = b"\xc1" + b"x" * (FRAME_BYTES - 1)
        for _ in range(100):
            with contextlib.suppress(zmq.Again):
                client.send(flood, zmq.DONTWAIT)
        client.send(b"x" * (FRAME_BYTES + 1))
        await made.serves()

        assert me.memory_info().rss - before < 150 << 20  # both ends are in this process
