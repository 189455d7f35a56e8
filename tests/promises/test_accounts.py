"""Accounts side by side: pause, logout, expiry and a new login; one poller per account, whatever else runs."""

import json
import signal
from collections.abc import Callable

import pytest

from supervisor import notices
from tests.fakes.bridge import DEADLINE_S
from tests.fakes.stage import FAKE_AGENT, Stage
from tests.fakes.wechat import SimulatedWeChat

Stages = Callable[..., Stage]


def polls(wechat: SimulatedWeChat, bot: str) -> int:
    return sum(request["bot"] == bot for request in wechat.requests("getupdates"))


def account_state(bridge: Stage, name: str = "default") -> str:
    return next(str(row["state"]) for row in bridge.bridge.status()["accounts"] if row["name"] == name)


def until_account(bridge: Stage, state: str, name: str = "default") -> None:
    bridge.bridge.wait_status(
        lambda status: any(row["name"] == name and row["state"] == state for row in status["accounts"])
    )


# --- pause ----------------------------------------------------------------------------------------------------


def test_a_paused_account_is_not_polled_over_a_restart_until_it_is_resumed(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "before")

        bridge.bridge.ctl("pause")
        (account,) = bridge.bridge.status()["accounts"]
        assert (account["state"], account["lock"]["held"]) == ("paused", False)
        assert bridge.wechat.view().polls_in_flight() == 0
        bridge.say(bridge.me, "while paused")
        bridge.bridge.stop()
        bridge.bridge.start()
        assert account_state(bridge) == "paused"
        assert bridge.wechat.view().texts(bridge.me) == ["before"]
        assert "already" in bridge.bridge.ctl("pause").stdout

        bridge.bridge.ctl("resume")

        assert bridge.answers(bridge.me, 2) == ["before", "while paused"]
        assert "already running" in bridge.bridge.ctl("resume").stdout


def test_a_turn_that_runs_while_its_account_is_paused_is_still_answered(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "UNTIL gate\nSAY one", "SAY two")
        bridge.running(bridge.me)
        bridge.bridge.wait_status(lambda status: status["peers"][0]["queued"] == 1)

        bridge.bridge.ctl("pause")
        bridge.open_gate(bridge.me, "gate")

        assert bridge.answers(bridge.me, 2) == ["one", "two"]


# --- logout and login -----------------------------------------------------------------------------------------


def test_a_logout_says_what_it_cuts_forgets_the_token_and_keeps_the_conversation(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "HISTORY")
        bridge.answers(bridge.me, 1)
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)
        bridge.say(bridge.me, "SAY dropped")
        bridge.bridge.wait_status(lambda status: status["peers"][0]["queued"] == 1)

        asked = bridge.bridge.ctl("logout", check=False)
        assert asked.returncode != 0
        assert "1 running turn will be cut and 1 waiting message dropped" in asked.stderr + asked.stdout
        bridge.bridge.ctl("logout", "--yes")

        assert bridge.answers(bridge.me, 2)[1:] == [notices.logged_out(waiting=1).en]
        status = bridge.bridge.status()
        assert status["accounts"] == []
        assert "bridge-ctl login" in bridge.bridge.ctl("status").stdout
        assert json.loads((bridge.bridge.home / "credentials.json").read_text()).get("accounts", []) in ([], {})
        assert (status["counters"]["turns_stopped"], status["counters"]["dropped"]) == (1, 1)
        bridge.sign_in(bridge.me, "--name", "default")
        bridge.say(bridge.me, "HISTORY")
        assert bridge.answers(bridge.me, 3)[2] == "5"


def test_the_same_person_under_a_new_bot_id_goes_on_with_their_conversation(stage: Stages) -> None:
    """B-032"""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "HISTORY")
        bridge.answers(bridge.me, 1)

        bot = bridge.sign_in(bridge.me)

        bridge.wechat.say(bridge.me, "HISTORY", to=bot)
        assert bridge.answers(bridge.me, 2) == ["1", "3"]
        (account,) = bridge.bridge.status()["accounts"]
        assert (account["account"], account["name"], account["state"]) == (bot, "default", "running")


def test_a_login_in_mid_turn_lets_the_turn_go_on_and_answer_with_the_new_token(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "UNTIL gate\nSAY answered")
        bridge.running(bridge.me)

        bot = bridge.sign_in(bridge.me)
        bridge.wechat.say(bridge.me, "SAY after it", to=bot)
        bridge.bridge.wait_status(lambda status: status["peers"][0]["queued"] == 1)
        bridge.open_gate(bridge.me, "gate")

        assert bridge.answers(bridge.me, 2) == ["answered", "after it"]
        assert {send["bot"] for send in bridge.wechat.sends()} == {bot}


# --- expiry ---------------------------------------------------------------------------------------------------


def test_an_expired_login_is_not_polled_is_named_and_a_new_login_answers_what_waited(stage: Stages) -> None:
    """B-010, B-032, B-047"""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bot = bridge.wechat.view().bots[0]["bot"]
        bridge.say(bridge.me, "UNTIL gate\nSAY one", "SAY two")
        bridge.running(bridge.me)
        bridge.bridge.wait_status(lambda status: status["peers"][0]["queued"] == 1)

        bridge.wechat.revoke(bot)

        until_account(bridge, "expired")
        count = polls(bridge.wechat, bot)
        bridge.open_gate(bridge.me, "gate")
        status = bridge.bridge.wait_status(lambda status: status["peers"][0]["state"] == "queued")
        assert status["peers"][0]["queued"] == 1
        assert "the login has expired: bridge-ctl login" in bridge.bridge.ctl("status").stdout
        assert bridge.bridge.ctl("resume", check=False).returncode == 1

        bridge.bridge.stop()
        bridge.bridge.start()
        assert account_state(bridge) == "expired"
        assert polls(bridge.wechat, bot) == count
        assert bridge.wechat.view().texts(bridge.me) == []

        new = bridge.sign_in(bridge.me)
        bridge.wechat.say(bridge.me, "SAY three", to=new)
        texts = bridge.answers(bridge.me, 3)

        assert texts == ["one", "two", "three"]
        assert account_state(bridge) == "running"


@pytest.mark.parametrize("envelope", ["errcode", "ret", "both"])
def test_every_form_of_the_refusal_of_a_token_expires_the_login(stage: Stages, envelope: str) -> None:
    """B-010"""
    with stage() as bridge:
        bridge.begin()
        bot = bridge.wechat.view().bots[0]["bot"]

        bridge.wechat.set_fault("stale_session", envelope=envelope)
        bridge.wechat.change_settings(hold_s=0.1)

        until_account(bridge, "expired")
        assert bridge.wechat.requests("msg/notifystart")
        count = polls(bridge.wechat, bot)
        bridge.wechat.clear_faults()
        bridge.say(bridge.me, "nobody reads this")
        bridge.bridge.ctl("status")
        assert polls(bridge.wechat, bot) == count


def test_a_token_that_is_taken_again_after_one_notifystart_has_not_expired(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()

        bridge.wechat.set_fault("stale_session", until="notifystart")

        bridge.answer_to(bridge.me, "hello")
        assert account_state(bridge) == "running"


# --- side by side ---------------------------------------------------------------------------------------------


def test_two_accounts_are_polled_by_one_loop_each_and_the_second_one_is_a_guests(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        friend = bridge.wechat.add_person(name="friend")
        bot = bridge.sign_in(friend, "--name", "friend")

        bridge.answer_to(bridge.me, "mine")
        bridge.wechat.say(friend, "the friend's", to=bot)
        bridge.hears(friend, "the friend's")

        rows = {row["name"]: row for row in bridge.bridge.status()["accounts"]}
        assert {name: (row["role"], row["state"]) for name, row in rows.items()} == {
            "default": ("operator", "running"),
            "friend": ("guest", "running"),
        }
        view = bridge.wechat.wait_for(lambda view: all(one["polls_in_flight"] == 1 for one in view.bots))
        assert all(one["polls_in_flight_max"] == 1 for one in view.bots)
        assert {row["peer"]: row["access"] for row in bridge.bridge.status()["peers"]} == {
            bridge.me: "workspace",
            friend: "readonly",
        }


def test_the_same_person_writing_to_two_accounts_has_two_conversations(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        friend = bridge.wechat.add_person(name="friend")
        bot = bridge.sign_in(friend, "--name", "friend")
        toml = (bridge.bridge.home / "bridge.toml").read_text()
        bridge.bridge.configure(toml.replace("allowed_peers = []", f'allowed_peers = ["{bridge.me}"]'))
        bridge.bridge.ctl("reload")

        bridge.say(bridge.me, "HISTORY")
        bridge.answers(bridge.me, 1)
        bridge.wechat.say(bridge.me, "HISTORY", to=bot)

        assert bridge.answers(bridge.me, 2) == ["1", "1"]
        assert len([row for row in bridge.bridge.status()["peers"] if row["peer"] == bridge.me]) == 2
        refused = bridge.bridge.ctl("stop", bridge.me, check=False)
        assert (refused.returncode, "friend/" in refused.stderr) == (2, True)


def test_an_outage_of_the_service_is_waited_out_and_nothing_is_lost(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "before")

        bridge.wechat.go_down()
        bridge.bridge.wait_log("poll_outage|outage")
        bridge.wechat.come_back()

        bridge.answer_to(bridge.me, "after")


# --- locks ----------------------------------------------------------------------------------------------------


def test_a_second_bridge_on_the_same_home_ends_with_3_and_names_the_holder(stage: Stages) -> None:
    """B-094"""
    with stage() as bridge:
        bridge.begin()
        first = bridge.bridge.process
        assert first is not None

        with stage(home=bridge.bridge.home) as second:
            second.bridge.start(wait=False)
            assert second.bridge.process is not None
            code = second.bridge.process.wait(DEADLINE_S)
            second.bridge.wait_log(f"{first.pid}")

        assert code == 3
        bridge.answer_to(bridge.me, "still here")


def test_an_account_held_by_another_bridge_is_locked_out_and_a_bridge_without_any_other_ends_with_3(
    stage: Stages,
) -> None:
    with stage() as bridge, stage() as other:
        bridge.begin()
        friend = bridge.wechat.add_person(name="friend")
        other.bridge.start()
        other.sign_in(friend, "--name", "friend")
        # The other bridge has signed in the person whose account the first one polls: it stays locked out.
        new = other.sign_in(bridge.me, "--name", "taken")
        rows = {row["name"]: row for row in other.bridge.status()["accounts"]}
        assert bridge.bridge.process is not None
        assert rows["friend"]["state"] == "running"
        assert (rows["taken"]["state"], rows["taken"]["lock"]) == (
            "locked_out",
            {"held": False, "pid": bridge.bridge.process.pid},
        )
        assert polls(bridge.wechat, new) == 0

        other.bridge.ctl("logout", "friend", "--yes")
        other.bridge.stop(signal.SIGTERM)
        other.bridge.start(wait=False)
        assert other.bridge.process is not None
        assert other.bridge.process.wait(DEADLINE_S) == 3
        other.bridge.wait_log(f"every stored account is in use by process {bridge.bridge.process.pid}")
        assert "Traceback" not in "\n".join(other.bridge.lines)
