"""bridge-ctl doctor: says what is wrong with the bridge as it runs, and what mends it."""

import json
from collections.abc import Callable
from typing import Any

from protocol.probe import Attempt
from tests.fakes.stage import FAKE_AGENT, Stage
from tests.fakes.wechat import SimulatedWeChat

Stages = Callable[..., Stage]


def examine(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = stage.bridge.ctl("doctor", "--json", *arguments, check=False)
    assert done.stderr == ""
    loaded: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, loaded


def not_ok(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["id"]: finding for finding in told["findings"] if finding["severity"] != "ok"}


def test_a_bridge_that_is_well_is_told_so_and_exit_0(stage: Stages) -> None:
    s = stage().begin()
    s.answer_to(s.me, "hello")

    code, told = examine(s)

    assert code == 0
    assert list(told) == ["ok", "level", "findings"]
    assert told["ok"] is True
    assert told["level"] == s.bridge.status()["isolation"]["level"]
    assert set(told["findings"][0]) == {"id", "severity", "account", "peer", "text", "fix"}
    assert not [one for one in told["findings"] if one["severity"] == "error"]
    assert {"account_state", "token_age", "queue", "agent", "isolation", "disk"} <= {
        one["id"] for one in told["findings"]
    }
    plain = s.bridge.ctl("doctor").stdout
    assert "ok     default: running" in plain


def test_an_expired_login_and_a_missing_agent_program_are_errors_with_their_remedies(
    wechat: SimulatedWeChat, stage: Stages
) -> None:
    s = stage(agent='[agent]\nhost = "acp"\ncommand = ["no-such-agent-program"]\n').begin()
    bot = wechat.view().bots[-1]["bot"]
    wechat.revoke(bot)
    s.bridge.wait_log(r"account_expired")

    code, told = examine(s)

    assert code == 1
    assert told["ok"] is False
    found = not_ok(told)
    assert (found["account_state"]["severity"], found["account_state"]["fix"]) == ("error", "bridge-ctl login")
    assert found["account_state"]["account"] == bot
    assert "no-such-agent-program is not found" in found["agent_missing"]["text"]
    plain = s.bridge.ctl("doctor", check=False)
    assert plain.returncode == 1
    assert "       bridge-ctl login\n" in plain.stdout


def test_what_waits_for_a_peer_and_what_failed_is_told_with_its_age(stage: Stages) -> None:
    s = stage(agent=FAKE_AGENT, wechat_keys="send_budget = 3\nsend_budget_reserve = 1\nmax_reply_chars = 50").begin()
    s.say(s.me, "SAY " + "word " * 200)
    s.bridge.wait_status(lambda status: status["peers"] and status["peers"][0]["parked_parts"])
    s.say(s.me, "DIE")
    s.bridge.wait_log(r"message_closed .* state=failed")

    code, told = examine(s)

    found = not_ok(told)
    assert code == 0, "answers that wait and a failed turn are no fault of the bridge"
    assert found["parked"]["peer"] == s.me
    assert "wait until they write again, the oldest for" in found["parked"]["text"]
    assert "1 message failed within a day" in found["failed_turns"]["text"]
    assert found["agent_contract"]["severity"] == "warn"


def test_what_was_set_aside_at_the_start_a_full_disk_and_the_proxy_are_named(stage: Stages) -> None:
    s = stage(
        settings="[workers]\nmin_free_mb = 1073741824\n", wechat_keys='proxy = "http://me:canary-password@127.0.0.1:9"'
    )
    (s.bridge.home / "peers.toml").write_text("not toml", encoding="utf-8")
    s.begin()

    code, told = examine(s)

    texts = {one["id"]: one["text"] for one in told["findings"]}
    assert code == 1
    assert "set aside as peers.toml.damaged-" in texts["found_odd"]
    assert "no turn starts" in texts["disk"]
    assert texts["proxy"].endswith("http://127.0.0.1:9")
    assert "canary-password" not in json.dumps(told)


def test_without_an_account_it_says_how_to_sign_in(stage: Stages) -> None:
    s = stage()
    s.bridge.start()

    code, told = examine(s)

    assert code == 0
    assert not_ok(told)["no_account"]["fix"] == "bridge-ctl login"


def test_the_probe_shows_for_each_access_level_what_stopped_each_attempt(stage: Stages) -> None:
    s = stage().begin()

    done = s.bridge.ctl("doctor", "--probe", check=False)
    code, told = examine(s, "--probe")

    assert done.returncode == code == 0, done.stdout
    ids = [one["id"] for one in told["findings"]]
    for attempt in set(Attempt) - {Attempt.KNOW_USERS, Attempt.READ_WORKSPACE, Attempt.CHANGE_WORKSPACE}:
        assert ids.count(f"probe_{attempt.value}") == 3
    for level in ("chat", "readonly", "workspace"):
        assert f"{level}: read the bridge's journal: stopped by " in done.stdout
    assert "full: not tried" in done.stdout
    assert all(row["peer"] != "probe" for row in s.bridge.status()["peers"])


def test_the_probe_exits_1_where_nothing_holds(stage: Stages) -> None:
    s = stage(settings='[workers]\nisolation = "off"\n').begin()

    code, told = examine(s, "--probe")

    assert code == 1
    worked = {one["id"] for one in told["findings"] if one["severity"] == "error"}
    assert {"probe_read_journal", "probe_connect_tcp", "probe_signal_bridge", "probe_trace"} <= worked
    assert told["level"] == "weak"


def test_no_setting_makes_a_peers_agent_the_probes(stage: Stages) -> None:
    s = stage(agent='[agent]\nhost = "probe"\n')

    s.bridge.start(wait=False)

    assert s.bridge.process is not None
    assert s.bridge.process.wait(30) == 2
