"""trace: the order of steps, and where a message's time went."""

from protocol.ctl import EventRow
from protocol.ids import AccountId, MessageId, PeerId, PeerKey
from supervisor.core.states import EventRecord, MessageState, PartKind, PartState, Traced, TracedPart
from supervisor.core.trace import told

WHO = PeerKey(AccountId("me@im.wechat"), PeerId("alice@im.wechat"))


def event(at: float, name: str, seq: int = 0) -> EventRecord:
    return EventRecord(seq, at, name, WHO.account, WHO.peer, None, "{}")


def traced(
    *events: EventRecord, parts: tuple[TracedPart, ...] = (), state: MessageState = MessageState.ANSWERED
) -> Traced:
    return Traced(WHO, 1, state, 100.0, 103.0, 99.75, parts, events)


def reply(one: Traced):  # type: ignore[no-untyped-def]
    shown = [EventRow(e.seq, "", e.event, "bot", e.peer, None, {}) for e in one.events]
    return told(MessageId("7"), "bot@im.bot", one, shown)


def part(at: float, state_at: float, state: PartState = PartState.ACCEPTED) -> TracedPart:
    return TracedPart(PartKind.REPLY, state, 1, at, state_at)


def test_the_time_of_a_cold_turn_is_divided_among_its_stages() -> None:
    found = reply(
        traced(
            event(100.1, "worker_starting"),
            event(100.3, "worker_opened"),
            event(100.35, "turn_started"),
            event(102.0, "message_closed"),
            parts=(part(101.0, 101.2), part(102.0, 102.5)),
        )
    )

    times = found.latency
    assert (times.hold_ms, times.queue_ms, times.start_ms, times.agent_ms, times.send_ms) == (250, 150, 200, 1650, 1500)


def test_a_warm_turn_waited_for_no_start() -> None:
    times = reply(
        traced(event(100.5, "turn_started"), event(101.0, "message_closed"), parts=(part(101.0, 101.1),))
    ).latency

    assert (times.queue_ms, times.start_ms, times.agent_ms, times.send_ms) == (500, 0, 500, 100)


def test_what_has_not_happened_yet_takes_no_time() -> None:
    running = reply(
        traced(event(100.5, "turn_started"), state=MessageState.RUNNING, parts=(part(101, 101, PartState.PENDING),))
    )
    refused = reply(traced(state=MessageState.REFUSED))

    assert (running.latency.agent_ms, running.latency.send_ms) == (None, None)
    assert (refused.latency.queue_ms, refused.latency.start_ms, refused.state) == (None, None, "refused")


def test_steps_stand_in_the_order_of_time() -> None:
    found = reply(
        traced(
            event(100.5, "turn_started"), event(101.0, "message_closed"), parts=(part(101.0, 101.5), part(100.7, 100.8))
        )
    )

    assert [step.what for step in found.steps] == [
        *(
            "written",
            "recorded",
            "turn_started",
            "part_made",
            "part_accepted",
            "message_closed",
            "part_made",
            "part_accepted",
        )
    ]
    assert found.steps[0].after_ms == -250
