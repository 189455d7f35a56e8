"""events, trace and metrics through the control socket of a real bridge."""

import json
import signal
from collections.abc import Callable

from tests.fakes.stage import Stage

Stages = Callable[..., Stage]


def test_what_happened_is_told_numbered_replayed_over_a_restart_and_followed(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        follower = bridge.bridge.popen_ctl("events", "--follow", "--since", "0", "--json")
        assert follower.stdout is not None
        bridge.answer_to(bridge.me, "hello there")

        followed = []
        for line in follower.stdout:
            followed.append(json.loads(line))
            if followed[-1]["event"] == "part_sent":
                break
        follower.send_signal(signal.SIGINT)
        assert follower.wait(30) == 0
        names = [event["event"] for event in followed if event["peer"] == bridge.me]
        order = [
            "message_received",
            "worker_starting",
            "worker_ready",
            "worker_opened",
            "turn_started",
            "message_closed",
        ]
        assert [name for name in names if name in order] == order
        assert [event["seq"] for event in followed] == list(range(followed[0]["seq"], followed[-1]["seq"] + 1))
        assert "hello there" not in json.dumps(followed)
        (closed,) = (event for event in followed if event["event"] == "message_closed")
        assert (closed["peer"], closed["data"]) == (bridge.me, {"state": "answered"})

        bridge.bridge.kill()
        bridge.bridge.start()
        again = bridge.bridge.ctl("events", "--since", str(closed["seq"] - 1), "--json").stdout.splitlines()
        assert json.loads(again[0]) == closed
        assert json.loads(again[-1])["seq"] > followed[-1]["seq"]

        trace = json.loads(bridge.bridge.ctl("trace", closed["message_id"], "--json").stdout)
        assert trace["state"] == "answered"
        assert [step["what"] for step in trace["steps"]][-1] == "part_accepted"
        assert all(trace["latency"][name] is not None for name in trace["latency"])
        shown = bridge.bridge.ctl("trace", closed["message_id"]).stdout
        assert "hello there" not in shown and "turn_started" in shown
        unknown = bridge.bridge.ctl("trace", "12345", check=False)
        assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)

        metrics = bridge.bridge.ctl("metrics").stdout
        assert "bridge_turns_answered_total 1\n" in metrics
        assert bridge.me not in metrics
