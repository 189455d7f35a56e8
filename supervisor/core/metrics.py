"""The bridge's state as Prometheus reads it: text format 0.0.4, names beginning with bridge_. Pure.

Counters are totals of this home, kept over restarts; peers are counted by state and never named, so that no id leaves by
this door and the number of series stays small.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from protocol.ctl import StatusReply

PEER_STATES = ("idle", "queued", "starting", "running", "asking", "stopping")
Labels = Mapping[str, str]


def prometheus(status: StatusReply) -> str:
    workers = [row.worker for row in status.peers if row.worker is not None]
    states = Counter(row.state for row in status.peers)
    accounts = [({"account": row.account, "name": row.name, "state": row.state}, 1.0) for row in status.accounts]
    by_account = [({"account": row.account}, row) for row in status.accounts]
    gauges: list[tuple[str, str, Iterable[tuple[Labels, float | None]]]] = [
        ("info", "Version and isolation level.", [({"version": status.version, "level": status.isolation.level}, 1.0)]),
        ("uptime_seconds", "Since the supervisor started.", [({}, status.uptime_s)]),
        ("account_state", "1 for the state that each account is in.", accounts),
        ("account_last_poll_age_seconds", "Since its last good poll.", [(k, r.last_poll_age_s) for k, r in by_account]),
        ("account_poll_failures", "Polls failed in a row.", [(k, float(r.poll_failures)) for k, r in by_account]),
        ("peers", "Admitted peers by state.", [({"state": one}, float(states[one])) for one in PEER_STATES]),
        ("queued_messages", "Waiting for a turn.", [({}, float(sum(row.queued for row in status.peers)))]),
        ("parked_parts", "Waiting for their peer to write.", [({}, float(sum(r.parked_parts for r in status.peers)))]),
        ("dialogs", "Questions that wait for an answer.", [({}, float(len(status.dialogs)))]),
        ("workers", "Worker processes alive.", [({}, float(len(workers)))]),
        (
            "workers_resident_bytes",
            "Their resident memory, all trees.",
            [({}, float(sum(w.rss_bytes for w in workers)))],
        ),
        ("problems", "Lines that bridge-ctl shows as wrong.", [({}, float(len(status.problems)))]),
    ]
    lines = [line for name, text, values in gauges for line in _family(name, "gauge", text, values)]
    for name, value in sorted(status.counters.items()):
        lines += _family(f"{name}_total", "counter", f"{name.replace('_', ' ').capitalize()}.", [({}, float(value))])
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, values: Iterable[tuple[Labels, float | None]]) -> list[str]:
    known = [(labels, value) for labels, value in values if value is not None]
    if not known:
        return []
    full = f"bridge_{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} {kind}", *(f"{full}{_labels(k)} {_number(v)}" for k, v in known)]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
