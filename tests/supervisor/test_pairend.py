"""supervisor/pairend.py: framed messages over a socketpair, in order, to the end."""

import asyncio
import socket

from protocol.gateway import AskedForMore, FromGateway, Serving, Spent, from_gateway
from protocol.ids import AccountId, Generation, LeaseKey, PeerId
from supervisor.pairend import PairEnd
from tests.fakes.workers import in_a_loop

KEY = LeaseKey(AccountId("a"), PeerId("p"), Generation(1))


class Both:
    def __init__(self) -> None:
        one, two = socket.socketpair()
        self.heard: list[FromGateway] = []
        self.more = asyncio.Event()
        self.ended = asyncio.Event()
        self.speaking = PairEnd(one, from_gateway, lambda message: None, lambda: None)
        self.hearing = PairEnd(two, from_gateway, self._hear, self.ended.set)
        self.raw = one

    def _hear(self, message: FromGateway) -> None:
        self.heard.append(message)
        self.more.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.heard) < count:
                self.more.clear()
                await self.more.wait()


@in_a_loop
async def test_more_than_a_socket_holds_arrives_in_order() -> None:
    both = Both()

    for number in range(20_000):
        both.speaking.send(Spent(KEY, number, 0))
    await both.until(20_000)

    assert [message.input_tokens for message in both.heard if isinstance(message, Spent)] == list(range(20_000))
    both.speaking.close()
    both.hearing.close()


@in_a_loop
async def test_what_has_arrived_can_be_taken_without_waiting_for_the_loop() -> None:
    both = Both()

    both.speaking.send(Serving())
    both.hearing.read()

    assert both.heard == [Serving()]
    both.speaking.close()
    both.hearing.close()


@in_a_loop
async def test_the_end_comes_after_the_last_word_and_once() -> None:
    both = Both()
    both.speaking.send(AskedForMore(KEY))
    both.speaking.close()

    async with asyncio.timeout(20):
        await both.ended.wait()

    assert both.heard == [AskedForMore(KEY)]
    both.hearing.send(Serving())  # nobody is there, and nobody minds
    both.hearing.close()


@in_a_loop
async def test_nonsense_is_the_end() -> None:
    both = Both()
    both.raw.send(b"\xff\xff\xff\x7f")

    async with asyncio.timeout(20):
        await both.ended.wait()

    assert both.heard == []
    both.speaking.close()
