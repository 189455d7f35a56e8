"""One message's life in order, and where its time went. Pure: the journal's rows in, what `bridge-ctl trace` shows out."""

from collections.abc import Mapping, Sequence

from protocol.ctl import EventRow, LatencyRow, TraceReply, TraceStep
from protocol.ids import MessageId
from supervisor.core.states import EventRecord, PartKind, PartState, Traced

_ANSWER = frozenset({PartKind.REPLY})
_OVER = frozenset({PartState.ACCEPTED, PartState.UNCONFIRMED, PartState.REJECTED})


def told(message_id: MessageId, account: str, traced: Traced, shown: Sequence[EventRow]) -> TraceReply:
    """account: the bot id to show. shown: traced.events as they are shown, one for one"""
    steps: list[tuple[float, str, Mapping[str, str | int | float | bool | None]]] = [
        (traced.received_at, "recorded", {})
    ]
    if traced.written_at is not None:
        steps.append((min(traced.written_at, traced.received_at), "written", {}))
    steps += [
        (event.at, event.event, row.data)
        for event, row in zip(traced.events, shown, strict=True)
        if event.event != "message_received"
    ]
    for number, part in enumerate(traced.parts, start=1):
        name: dict[str, str | int] = {"part": number, "kind": part.kind.value}
        steps.append((part.at, "part_made", name))
        if part.state_at > part.at or part.state in _OVER:
            steps.append((part.state_at, f"part_{part.state.value}", {**name, "attempts": part.attempts}))
    steps.sort(key=lambda step: step[0])
    return TraceReply(
        message_id=message_id,
        account=account,
        peer=traced.who.peer,
        state=traced.state.value,
        latency=_latency(traced),
        steps=[TraceStep(_ms(at - traced.received_at), what, dict(data)) for at, what, data in steps],
    )


def _latency(traced: Traced) -> LatencyRow:
    began = _first(traced.events, "turn_started")
    ended = _first(traced.events, "message_closed")
    answer = [part for part in traced.parts if part.kind in _ANSWER]
    start = _waited_for_a_start(traced, began)
    return LatencyRow(
        hold_ms=None if traced.written_at is None else max(0.0, _ms(traced.received_at - traced.written_at)),
        queue_ms=None if began is None else max(0.0, _ms(began - traced.received_at - start)),
        start_ms=None if began is None else _ms(start),
        agent_ms=None if began is None or ended is None else _ms(ended - began),
        send_ms=(
            _ms(max(part.state_at for part in answer) - min(part.at for part in answer))
            if answer and all(part.state in _OVER for part in answer)
            else None
        ),
    )


def _first(events: Sequence[EventRecord], name: str) -> float | None:
    return next((one.at for one in events if one.event == name), None)


def _waited_for_a_start(traced: Traced, began: float | None) -> float:
    """Seconds between the order to start a worker and its agent being open, as far as they lie before the turn."""
    ready = [
        one.at for one in traced.events if one.event == "worker_starting" and began is not None and one.at <= began
    ]
    opened = [one.at for one in traced.events if one.event == "worker_opened" and began is not None and one.at <= began]
    if not ready or not opened:
        return 0.0
    return max(0.0, opened[-1] - max(ready[-1], traced.received_at))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
