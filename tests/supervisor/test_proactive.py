"""When something that nobody asked for would be shown."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.ids import AccountId, PeerId, PeerKey
from supervisor.config import Settings
from supervisor.proactive import closed
from tests.fakes.clock import FakeClock

ALICE = PeerKey(AccountId("alice@im.wechat"), PeerId("alice@im.wechat"))


@dataclass
class Book:
    last_inbound_at: float | None
    known: bool = True
    settings: Settings = Settings()

    def record(self, who: PeerKey) -> Any:
        return SimpleNamespace(last_inbound_at=self.last_inbound_at) if self.known else None


@dataclass
class Budget:
    left: int

    def budget_left(self, who: PeerKey) -> int:
        return self.left


@pytest.mark.parametrize(
    ("known", "hours_ago", "left", "why"),
    [
        (True, 1.0, 3, ""),
        (True, 23.9, 1, ""),
        (False, None, 10, "has not written yet"),
        (True, None, 10, "has not written yet"),
        (True, 24.0, 10, "over 24 hours ago"),
        (True, 1.0, 0, "10 messages went out"),
    ],
)
def test_it_is_shown_after_they_wrote_within_the_window_and_the_budget(
    known: bool, hours_ago: float | None, left: int, why: str
) -> None:
    clock = FakeClock()
    at = None if hours_ago is None else clock.wall() - hours_ago * 3600

    said = closed(ALICE, Book(at, known), Budget(left), clock)  # type: ignore[arg-type]

    assert (why in said) if why else said == ""
