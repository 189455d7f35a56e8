"""router: who may speak on the worker bus, and who is reached. The clients are real DEALERs, of this process."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from protocol.codec import FRAME_BYTES, encode
from protocol.errors import BridgeError, ProtocolViolation
from protocol.ids import LeaseKey
from protocol.spec import NannyKeys
from protocol.to_supervisor import Pulse, Remarked, ToSupervisor
from protocol.to_worker import Leave
from supervisor.router import BATCH, Lost, Router
from tests.fakes.workers import DEADLINE_S, in_a_loop, key, until

PULSE = encode(Pulse())


class Ear:
    """All that the router said it heard."""

    def __init__(self, router: Router) -> None:
        self.heard: list[tuple[LeaseKey, ToSupervisor | ProtocolViolation]] = []
        router.attach(lambda lease, message: self.heard.append((lease, message)))

    async def count(self, count: int) -> None:
        await until(lambda: len(self.heard) >= count)


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def dial(
    context: "zmq.Context[zmq.Socket[bytes]]", keys: NannyKeys, *, routing_id: bytes | None = None
) -> "zmq.Socket[bytes]":
    bus = context.socket(zmq.DEALER)
    bus.routing_id = routing_id or keys.routing_id
    bus.curve_serverkey = keys.server_key.encode()
    bus.curve_publickey = keys.public_key.encode()
    bus.curve_secretkey = keys.secret_key.encode()
    bus.linger = 0
    bus.sndhwm = 0  # a full queue would block the very loop that has to read it: libzmq counts what was read in steps
    bus.rcvtimeo = int(DEADLINE_S * 1000)
    bus.connect(keys.endpoint)
    return bus


def with_other_keys(keys: NannyKeys) -> NannyKeys:
    public, secret = zmq.curve_keypair()
    return NannyKeys(keys.endpoint, keys.routing_id, public.decode(), secret.decode(), keys.server_key)


@in_a_loop
async def test_the_holder_of_a_lease_is_heard_and_reached(folder: Path, context: "zmq.Context") -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        bus = dial(context, router.register(key(), os.getpid()))

        bus.send(PULSE)
        await ear.count(1)
        router.send(key(), Leave())

        assert ear.heard == [(key(), Pulse())]
        assert await asyncio.to_thread(bus.recv) == encode(Leave())


@in_a_loop
async def test_an_unknown_key_never_gets_a_byte_through(folder: Path, context: "zmq.Context") -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        stranger = dial(context, with_other_keys(router.register(key(), os.getpid())))

        stranger.send(PULSE)
        await until(lambda: router.refused >= 1)

        assert ear.heard == []
        with pytest.raises(Lost):
            router.send(key(), Leave())


@in_a_loop
async def test_a_key_used_by_another_process_is_refused(folder: Path, context: "zmq.Context") -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        thief = dial(context, router.register(key(), os.getppid()))

        thief.send(PULSE)
        await until(lambda: router.refused >= 1)

        assert ear.heard == []


@pytest.mark.parametrize("first", ["the thief", "the victim"])
@in_a_loop
async def test_another_lease_with_the_victims_routing_id_gets_nothing_of_the_victims(
    folder: Path, context: "zmq.Context", first: str
) -> None:
    """B-001"""
    async with Router.open(folder) as router:
        ear = Ear(router)
        victim_keys, thief_keys = (
            router.register(key("victim"), os.getpid()),
            router.register(key("thief"), os.getpid()),
        )
        buses = {}
        for who in (first, *{"the thief", "the victim"} - {first}):
            keys = victim_keys if who == "the victim" else thief_keys
            buses[who] = dial(context, keys, routing_id=victim_keys.routing_id)
            buses[who].send(PULSE)
            await until(lambda: bool(ear.heard) or router.dropped > 0)

        if first == "the victim":
            router.send(key("victim"), Leave())
            assert await asyncio.to_thread(buses["the victim"].recv) == encode(Leave())
        else:
            # The id is taken, so that the victim is not heard at all: visibly not there, and nothing goes to the thief.
            with pytest.raises(Lost):
                router.send(key("victim"), Leave())
        buses["the thief"].rcvtimeo = 100
        with pytest.raises(zmq.Again):
            buses["the thief"].recv()
        assert all(lease == key("victim") for lease, _ in ear.heard)


@in_a_loop
async def test_after_its_end_a_lease_is_neither_heard_nor_reached(folder: Path, context: "zmq.Context") -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        keys = router.register(key(), os.getpid())
        bus = dial(context, keys)
        bus.send(PULSE)
        await ear.count(1)

        router.revoke(key())
        bus.send(PULSE)
        again = dial(context, keys)
        again.send(PULSE)
        await until(lambda: router.dropped == 1 and router.refused >= 1)

        assert len(ear.heard) == 1
        with pytest.raises(Lost):
            router.send(key(), Leave())


@in_a_loop
async def test_nothing_is_sent_to_a_lease_that_was_not_heard_yet(folder: Path) -> None:
    async with Router.open(folder) as router:
        router.register(key(), os.getpid())

        with pytest.raises(Lost):
            router.send(key(), Leave())


@in_a_loop
async def test_a_link_that_is_gone_is_an_error_for_the_next_message(folder: Path, context: "zmq.Context") -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        bus = dial(context, router.register(key(), os.getpid()))
        bus.send(PULSE)
        await ear.count(1)

        bus.close()

        def lost() -> bool:
            try:
                router.send(key(), Leave())
            except Lost:
                return True
            return False

        await until(lost)


@in_a_loop
async def test_a_worker_that_does_not_read_is_lost_once_its_queue_is_full_and_others_are_not(
    folder: Path, context: "zmq.Context"
) -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        deaf = dial(context, router.register(key("deaf"), os.getpid()))
        deaf.rcvhwm = 1
        well = dial(context, router.register(key("well"), os.getpid()))
        for bus in (deaf, well):
            bus.send(PULSE)
        await ear.count(2)

        with pytest.raises(Lost):
            for _ in range(10_000):
                router.send(key("deaf"), Leave())
        router.send(key("well"), Leave())

        assert await asyncio.to_thread(well.recv) == encode(Leave())


@in_a_loop
async def test_messages_of_any_other_number_of_parts_are_dropped(folder: Path, context: "zmq.Context") -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        bus = dial(context, router.register(key(), os.getpid()))

        bus.send_multipart([PULSE, PULSE])
        bus.send(PULSE)
        await ear.count(1)

        assert (len(ear.heard), router.dropped) == (1, 1)


@pytest.mark.parametrize("payload", [b"", b"\xc1garbage", b"\x81" * 100_000, encode(Leave())])
@in_a_loop
async def test_what_is_no_message_is_told_as_a_violation_of_its_lease(
    folder: Path, context: "zmq.Context", payload: bytes
) -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        bus = dial(context, router.register(key(), os.getpid()))

        bus.send(payload)
        await ear.count(1)

        assert [(lease, type(message)) for lease, message in ear.heard] == [(key(), ProtocolViolation)]


@in_a_loop
async def test_a_message_over_its_size_ends_the_link_unheard(folder: Path, context: "zmq.Context") -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        bus = dial(context, router.register(key(), os.getpid()))
        bus.send(PULSE)
        await ear.count(1)
        watch = bus.get_monitor_socket(zmq.EVENT_DISCONNECTED)

        bus.send(b"x" * (FRAME_BYTES + 1))

        assert await asyncio.to_thread(watch.poll, int(DEADLINE_S * 1000))
        assert len(ear.heard) == 1


@in_a_loop
async def test_one_reading_is_bounded_and_the_rest_is_heard_all_the_same(folder: Path, context: "zmq.Context") -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        bus = dial(context, router.register(key(), os.getpid()))
        bus.send(PULSE)
        await ear.count(1)
        for number in range(1000):
            bus.send(encode(Remarked("info", str(number))))

        heard, longest = len(ear.heard), 0
        while len(ear.heard) < 1001:
            await asyncio.sleep(0)
            longest = max(longest, len(ear.heard) - heard)
            heard = len(ear.heard)

        # One turn of the loop may hold the reading that the descriptor asked for and the one asked for before it.
        assert longest <= 2 * BATCH
        assert [m.text for _, m in ear.heard[1:] if isinstance(m, Remarked)] == [str(n) for n in range(1000)]


@in_a_loop
async def test_a_busy_loop_costs_no_handshake(folder: Path, context: "zmq.Context") -> None:
    """B-055"""
    async with Router.open(folder) as router:
        ear = Ear(router)
        keys = router.register(key(), os.getpid())
        buses: list[zmq.Socket[bytes]] = []

        def start() -> None:
            buses.append(dial(context, keys))
            buses[0].send(PULSE)

        dialling = threading.Timer(0.1, start)
        dialling.start()

        time.sleep(2.5)  # noqa: ASYNC251 - the busy loop; longer than a handshake may take
        await ear.count(1)

        assert router.refused == 0
        dialling.join()


@in_a_loop
async def test_the_socket_of_a_killed_supervisor_is_replaced(folder: Path, context: "zmq.Context") -> None:
    async with Router.open(folder):
        os.link(folder / "bus", folder / "kept")
    os.rename(folder / "kept", folder / "bus")

    async with Router.open(folder) as router:
        ear = Ear(router)
        bus = dial(context, router.register(key(), os.getpid()))
        bus.send(PULSE)
        await ear.count(1)

    assert not (folder / "bus").exists()


@in_a_loop
async def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match="103 bytes"):
        async with Router.open(tmp_path / ("x" * 100)):
            pass


@in_a_loop
async def test_a_folder_that_is_not_there_is_an_error_and_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()

    with pytest.raises(zmq.ZMQError):
        async with Router.open(tmp_path / "none"):
            pass

    assert threading.active_count() == before


@in_a_loop
async def test_closing_with_unsent_messages_does_not_wait(folder: Path, context: "zmq.Context") -> None:
    async with Router.open(folder) as router:
        ear = Ear(router)
        bus = dial(context, router.register(key(), os.getpid()))
        bus.send(PULSE)
        await ear.count(1)
        with contextlib.suppress(Lost):
            for _ in range(1000):
                router.send(key(), Leave())
        began = time.monotonic()

    assert time.monotonic() - began < 2.0
