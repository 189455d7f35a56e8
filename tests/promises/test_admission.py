"""Who may speak: the owner and whom the operator has admitted; nobody else gets so much as a reply."""

from collections.abc import Callable

from supervisor.peersfile import PeersFile
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def test_a_stranger_gets_no_reply_of_any_kind_and_is_counted_and_named_with_the_command_that_admits_them(
    stage: Stages,
) -> None:
    """B-013, B-029"""
    with stage() as bridge:
        bridge.begin()
        stranger = bridge.wechat.add_person(name="stranger")

        bridge.say(stranger, "hello", "/status", "yes", "你好")
        bridge.wechat.attach(stranger, "image", b"\x89PNG picture")
        bridge.wechat.attach(stranger, "voice", b"voice")
        bridge.answer_to(bridge.me, "after it")

        status = bridge.bridge.status()
        assert [(row["peer"], row["count"]) for row in status["refused"]] == [(stranger, 6)]
        assert status["counters"]["refused"] == 6
        assert status["counters"]["workers_started"] == 1
        assert [row["peer"] for row in status["peers"]] == [bridge.me]
        view = bridge.wechat.view()
        assert view.texts(stranger) == []
        assert view.phone(stranger)["typing_log"] == []
        assert {send["to"] for send in bridge.wechat.sends()} == {bridge.me}
        assert all(request["path"] not in ("cdn/download", "getuploadurl") for request in bridge.wechat.requests())
        named = bridge.bridge.wait_log("sender_refused")
        assert f"bridge-ctl allow {stranger}" in named[0]
        assert sum("sender_refused" in line for line in bridge.bridge.lines) == 1


def test_allow_takes_effect_at_once_and_lasts_over_a_restart(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        stranger = bridge.wechat.add_person()
        bridge.say(stranger, "refused")
        bridge.bridge.wait_log("sender_refused")

        asked = bridge.bridge.ctl("allow", stranger, check=False)
        assert asked.returncode != 0
        assert "--yes" in asked.stderr
        allowed = bridge.bridge.ctl("allow", stranger, "--yes", "--tools", "read", "--access", "readonly")

        assert "admitted" in allowed.stdout
        bridge.answer_to(stranger, "hello")
        assert bridge.wechat.view().texts(stranger) == ["hello"]  # what was refused stays refused
        assert bridge.bridge.status()["refused"] == []
        assert stranger in PeersFile(bridge.bridge.home / "peers.toml").path.read_text()
        bridge.bridge.kill()
        bridge.bridge.start()
        bridge.answer_to(stranger, "still here")


def test_deny_ends_the_turn_without_a_word_drops_what_waits_and_holds_after_a_restart(stage: Stages) -> None:
    """B-021"""
    with stage(agent=FAKE_AGENT, guests=1) as bridge:
        bridge.begin()
        (guest,) = bridge.guests
        bridge.say(guest, "WAIT")
        bridge.running(guest)
        bridge.say(guest, "SAY two", "SAY three")
        bridge.bridge.wait_status(lambda status: sum(row["queued"] for row in status["peers"]) == 2)

        bridge.bridge.ctl("deny", guest, "--yes")

        status = bridge.bridge.wait_status(lambda status: all(row["worker"] is None for row in status["peers"]))
        assert (status["counters"]["turns_stopped"], status["counters"]["dropped"]) == (1, 2)
        bridge.say(guest, "SAY four")
        bridge.bridge.wait_status(lambda status: status["counters"]["refused"] == 1)
        bridge.bridge.stop()
        bridge.bridge.start()
        bridge.say(guest, "SAY five")
        bridge.bridge.wait_status(lambda status: status["counters"]["refused"] == 2)
        assert bridge.wechat.view().texts(guest) == []
        assert bridge.wechat.wait_for(lambda view: not view.typing(guest))


def test_a_peer_removed_from_the_settings_is_refused_after_a_reload(stage: Stages) -> None:
    """B-021"""
    with stage(guests=1) as bridge:
        bridge.begin()
        (guest,) = bridge.guests
        bridge.answer_to(guest, "hello")
        toml = (bridge.bridge.home / "bridge.toml").read_text()

        bridge.bridge.configure(toml.replace(f'"{guest}"', ""))
        bridge.bridge.ctl("reload")
        bridge.say(guest, "again")

        bridge.bridge.wait_status(lambda status: status["counters"].get("refused", 0) == 1)
        assert bridge.wechat.view().texts(guest) == ["hello"]


def test_the_owner_of_an_account_is_always_admitted(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "hello")

        denied = bridge.bridge.ctl("deny", bridge.me, "--yes", check=False)
        bridge.answer_to(bridge.me, "still here")

        assert denied.returncode == 1
        assert "logout" in denied.stderr


def test_a_wrong_reload_changes_nothing_and_says_why(stage: Stages) -> None:
    with stage(guests=1) as bridge:
        bridge.begin()
        (guest,) = bridge.guests
        toml = (bridge.bridge.home / "bridge.toml").read_text()

        bridge.bridge.configure(toml.replace(f'["{guest}"]', f'"{guest}"'))
        refused = bridge.bridge.ctl("reload", check=False)

        assert refused.returncode == 1
        assert "admission.allowed_peers" in refused.stderr
        bridge.answer_to(guest, "still here")


def test_a_message_in_a_group_gets_no_reply_whoever_wrote_it(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        stranger = bridge.wechat.add_person()

        bridge.wechat.say(bridge.me, "in a group", group_id="g1@chatroom")
        bridge.wechat.say(stranger, "in a group", group_id="g1@chatroom")
        bridge.answer_to(bridge.me, "in private")

        assert bridge.wechat.view().texts(bridge.me) == ["in private"]
        assert bridge.wechat.view().texts(stranger) == []
        assert bridge.counters().get("refused", 0) == 0


def test_the_hourly_limit_of_a_guest_turns_away_in_one_line_and_survives_a_restart(stage: Stages) -> None:
    with stage(guests=1, settings="[guests]\nmax_turns_per_hour = 2") as bridge:
        bridge.begin()
        (guest,) = bridge.guests
        bridge.answer_to(guest, "one")
        bridge.answer_to(guest, "two")

        bridge.say(guest, "three", "four")

        line = bridge.answers(guest, 3)[2]
        assert line.startswith("The limit for this hour is reached.")
        bridge.bridge.wait_status(lambda status: status["counters"].get("turned_away", 0) == 2)
        bridge.bridge.kill()
        bridge.bridge.start()
        bridge.say(guest, "five", "/help")
        bridge.wechat.wait_for(lambda view: any("/help" in text for text in view.texts(guest)))
        assert bridge.counters()["turned_away"] == 3
        said = bridge.wechat.view().texts(guest)
        assert "five" not in said
        assert [text for text in said if text.startswith("The limit for this hour")] == [line], "once a window"
