"""metrics: Prometheus' text format, and that no peer's name is in it."""

import re

from protocol.ctl import AccountRow, IsolationRow, LockRow, PeerRow, StatusReply, WorkerRow
from supervisor.core.metrics import prometheus

LINE = re.compile(r'^bridge_[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"(,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? -?[0-9.e+]+$')


def status(name: str = "default", failures: int = 0) -> StatusReply:
    account = AccountRow(
        account="bot@im.bot",
        name=name,
        owner="me@im.wechat",
        role="operator",
        state="running",
        token_age_s=1.0,
        last_poll_age_s=None,
        last_hold_s=None,
        poll_failures=failures,
        last_error=None,
        lock=LockRow(True, 1),
    )
    return StatusReply(
        version="0.1.0",
        pid=1,
        uptime_s=1.5,
        home="/h",
        isolation=IsolationRow("required", "strong", []),
        accounts=[account],
        peers=[peer("alice@im.wechat", "running"), peer("bob@im.wechat", "running"), peer("carol@im.wechat", "idle")],
        refused=[],
        dialogs=[],
        counters={"turns_answered": 7},
        problems=[],
    )


def peer(name: str, state: str) -> PeerRow:
    worker = WorkerRow(pid=2, generation=1, idle_s=0.0, rss_bytes=1000, isolation=[], isolation_missing=[], limits={})
    return PeerRow(
        peer=name,
        label=name.partition("@")[0],
        account="bot@im.bot",
        role="guest",
        agent="echo",
        access="readonly",
        state=state,
        turn=None,
        queued=2,
        turns=3,
        budget_left=4,
        parked_parts=5,
        session_age_s=None,
        media_bytes=0,
        worker=worker,
    )


def test_every_line_is_one_that_prometheus_reads() -> None:
    lines = prometheus(status()).splitlines()

    assert all(LINE.match(line) for line in lines if not line.startswith("#"))
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families)) > 10
    assert "# TYPE bridge_turns_answered_total counter" in lines
    assert "bridge_turns_answered_total 7" in lines


def test_peers_are_counted_and_never_named() -> None:
    text = prometheus(status())

    assert 'bridge_peers{state="running"} 2' in text
    assert "bridge_queued_messages 6" in text and "bridge_parked_parts 15" in text
    assert "bridge_workers_resident_bytes 3000" in text
    assert not re.search("alice|bob|carol", text)


def test_what_is_not_known_is_left_out() -> None:
    assert "last_poll_age" not in prometheus(status())


def test_a_name_with_quotes_and_line_breaks_stays_one_label() -> None:
    text = prometheus(status('a"b\\c\nd'))

    assert 'name="a\\"b\\\\c\\nd"' in text
