"""The typing indicator against a channel that may hang or refuse."""

import asyncio

import pytest

from protocol.ids import AccountId, PeerId, PeerKey
from supervisor.channels.base import Refused, Route, TypingState
from supervisor.clock import SystemClock
from supervisor.indicator import Indicator

pytestmark = pytest.mark.anyio

ALICE = PeerKey(AccountId("owner@im.wechat"), PeerId("alice@im.wechat"))
ROUTE = Route(ALICE.account, ALICE.peer, None)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Phone:
    """Takes typing states; holds each call until `go` is set."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.shown: list[TypingState] = []
        self.go = asyncio.Event()
        self.called = asyncio.Event()
        self.refuses = refuses

    async def show_typing(self, route: Route, state: TypingState) -> None:
        self.called.set()
        await self.go.wait()
        if self.refuses:
            raise Refused("sendtyping: -1", code=-1)
        self.shown.append(state)


async def test_what_is_shown_is_ended_once_and_what_was_never_shown_is_not() -> None:
    phone = Phone()
    phone.go.set()

    async with asyncio.TaskGroup() as tasks:
        indicator = Indicator(tasks, lambda _: (phone, ROUTE), SystemClock())  # type: ignore[arg-type, return-value]
        indicator.end(ALICE)
        indicator.show(ALICE)
    async with asyncio.TaskGroup() as tasks:
        indicator._tasks = tasks
        indicator.end(ALICE)
    async with asyncio.TaskGroup() as tasks:
        indicator._tasks = tasks
        indicator.end(ALICE)

    assert phone.shown == [TypingState.TYPING, TypingState.STOPPED]


async def test_what_is_answered_within_a_beat_is_never_shown_as_being_typed() -> None:
    phone = Phone()
    phone.go.set()

    async with asyncio.TaskGroup() as tasks:
        indicator = Indicator(tasks, lambda _: (phone, ROUTE), SystemClock())  # type: ignore[arg-type, return-value]
        indicator.show(ALICE)
        await asyncio.sleep(0)
        indicator.end(ALICE)

    assert phone.shown == []


async def test_a_slow_network_gets_the_latest_wish_and_holds_nobody_up() -> None:
    phone = Phone()

    async with asyncio.TaskGroup() as tasks:
        indicator = Indicator(tasks, lambda _: (phone, ROUTE), SystemClock())  # type: ignore[arg-type, return-value]
        indicator.show(ALICE)
        await phone.called.wait()
        indicator.show(ALICE)
        indicator.show(ALICE)
        indicator.end(ALICE)
        phone.go.set()

    assert phone.shown == [TypingState.TYPING, TypingState.STOPPED]


async def test_b104_a_refusal_is_forgotten_and_the_next_wish_is_tried() -> None:
    phone = Phone(refuses=True)
    phone.go.set()

    async with asyncio.TaskGroup() as tasks:
        indicator = Indicator(tasks, lambda _: (phone, ROUTE), SystemClock())  # type: ignore[arg-type, return-value]
        indicator.show(ALICE)
    phone.refuses = False
    async with asyncio.TaskGroup() as tasks:
        indicator._tasks = tasks
        indicator.show(ALICE)

    assert phone.shown == [TypingState.TYPING]


async def test_without_a_way_to_the_peer_nothing_is_sent() -> None:
    async with asyncio.TaskGroup() as tasks:
        indicator = Indicator(tasks, lambda _: None, SystemClock())
        indicator.show(ALICE)
        indicator.end(ALICE)

    assert indicator._shown == set()
