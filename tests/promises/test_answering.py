"""One message is one turn and one answer; two turns at once; the peers' own commands need no worker."""

from collections.abc import Callable

from supervisor import notices
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def test_a_message_is_answered(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()

        bridge.say(bridge.me, "hello there")

        assert bridge.answers(bridge.me, 1) == ["hello there"]


def test_five_messages_to_a_cold_worker_are_answered_in_order_by_one_worker(stage: Stages) -> None:
    """B-046"""
    with stage() as bridge:
        bridge.begin()
        words = [f"number {number}" for number in range(5)]

        bridge.say_at_once(*((bridge.me, word) for word in words))

        assert bridge.answers(bridge.me, 5) == words
        counters = bridge.counters()
        assert (counters["turns_answered"], counters["workers_started"]) == (5, 1)


def test_messages_one_after_the_other_to_a_cold_worker_are_answered_in_order(stage: Stages) -> None:
    """B-046"""
    with stage() as bridge:
        bridge.begin()
        words = [f"number {number}" for number in range(5)]

        bridge.say(bridge.me, *words)

        assert bridge.answers(bridge.me, 5) == words
        assert bridge.counters()["workers_started"] == 1


def test_the_third_peer_waits_sees_typing_and_one_line_and_is_answered_when_a_slot_is_free(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, guests=2, settings="[timers]\nack_s = 0.2\nack_again_s = 600") as bridge:
        bridge.begin()
        first, second = bridge.guests
        bridge.say(bridge.me, "UNTIL gate\nSAY mine")
        bridge.say(first, "UNTIL gate\nSAY first's")
        bridge.running(bridge.me)
        bridge.running(first)

        bridge.say(second, "SAY second's")

        line = notices.waiting_behind_others().en
        assert bridge.answers(second, 1) == [line]
        assert bridge.wechat.wait_for(lambda view: view.typing(second))
        assert bridge.state(second) == "queued"
        bridge.open_gate(first, "gate")
        assert bridge.answers(second, 2) == [line, "second's"]
        bridge.hears(first, "first's")
        assert "mine" not in bridge.wechat.view().texts(bridge.me)
        assert bridge.wechat.wait_for(lambda view: not view.typing(second))
        bridge.open_gate(bridge.me, "gate")
        bridge.hears(bridge.me, "mine")


def test_a_second_message_waits_behind_the_first_of_the_same_peer_and_is_told_so_once(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings="[timers]\nack_s = 0.2\nack_again_s = 600") as bridge:
        bridge.begin()
        bridge.say(bridge.me, "UNTIL gate\nSAY one")
        bridge.running(bridge.me)
        before = bridge.wechat.view().texts(bridge.me)  # a cold start may have taken long enough for a line of its own

        bridge.say(bridge.me, "SAY two", "SAY three")

        line = notices.waiting_behind_own().en
        assert bridge.hears(bridge.me, line) == [*before, line]
        bridge.open_gate(bridge.me, "gate")
        assert bridge.hears(bridge.me, "three") == [*before, line, "one", "two", "three"]


def test_the_oldest_wait_takes_the_next_slot(stage: Stages) -> None:
    """Worked example 5: the second message of a peer waits behind the first one of a peer who wrote earlier."""
    with stage(agent=FAKE_AGENT, guests=2) as bridge:
        bridge.begin()
        first, second = bridge.guests
        bridge.say(bridge.me, "UNTIL gate\nSAY mine")
        bridge.say(first, "UNTIL gate\nSAY first's")
        bridge.running(bridge.me)
        bridge.running(first)
        bridge.say(second, "UNTIL gate\nSAY second's")
        bridge.wechat.wait_for(lambda view: view.typing(second))

        bridge.say(first, "SAY first's again")
        bridge.bridge.wait_status(lambda status: sum(row["queued"] for row in status["peers"]) == 2)
        bridge.open_gate(first, "gate")

        bridge.running(second)
        assert bridge.state(first) == "queued"
        bridge.open_gate(second, "gate")
        assert bridge.answers(second, 1) == ["second's"]
        assert bridge.answers(first, 2) == ["first's", "first's again"]


def test_more_than_max_queue_is_turned_away_in_one_line(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, admission="max_queue = 2") as bridge:
        bridge.begin()
        bridge.say(bridge.me, "UNTIL gate\nSAY one")
        bridge.running(bridge.me)

        bridge.say(bridge.me, "SAY two", "SAY three", "SAY four")

        line = notices.queue_full(waiting=2).en
        assert bridge.answers(bridge.me, 1) == [line]
        bridge.open_gate(bridge.me, "gate")
        assert bridge.answers(bridge.me, 4) == [line, "one", "two", "three"]
        counters = bridge.counters()
        assert (counters["turns_answered"], counters["turned_away"]) == (3, 1)


def test_what_looks_like_a_path_or_an_unknown_command_reaches_the_agent(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        words = ["/usr/bin/ls", "/nosuchcommand now", "look /stop here"]

        bridge.say(bridge.me, *words)

        assert bridge.answers(bridge.me, 3) == words


def test_commands_are_answered_with_no_worker_alive(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()

        bridge.say(bridge.me, "/help")
        bridge.answers(bridge.me, 1)
        bridge.say(bridge.me, "/STATUS")
        bridge.answers(bridge.me, 2)
        bridge.say(bridge.me, "/history")
        bridge.answers(bridge.me, 3)
        bridge.say(bridge.me, "/stop")
        texts = bridge.answers(bridge.me, 4)

        assert texts[0] == notices.help_lines().en
        assert texts[1].startswith("Idle.")
        assert texts[2] == notices.history_lines([]).en
        assert texts[3] == notices.nothing_running().en
        status = bridge.bridge.status()
        assert status["counters"].get("workers_started", 0) == 0
        assert all(row["worker"] is None for row in status["peers"])


def test_history_shows_both_sides_after_a_restart_without_a_worker(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "remember this")
        assert bridge.bridge.stop() == 0
        bridge.bridge.start()

        bridge.say(bridge.me, "/history 5")

        assert bridge.answers(bridge.me, 2)[1] == "You: remember this\nMe: remember this"
        printed = bridge.bridge.ctl("history", bridge.me, "5").stdout
        assert printed.count("remember this") == 2


def test_stop_in_mid_turn_answers_with_one_line_and_the_next_message_runs(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)

        bridge.say(bridge.me, "/stop")

        assert bridge.answers(bridge.me, 1) == [notices.stopped(waiting=0).en]
        bridge.say(bridge.me, "SAY next")
        assert bridge.answers(bridge.me, 2)[1] == "next"
        counters = bridge.counters()
        assert (counters["turns_stopped"], counters["turns_answered"], counters["workers_crashed"]) == (1, 1, 0)


def test_stop_reaches_a_turn_while_every_slot_is_taken_and_names_what_waits(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, guests=1, settings="[workers]\nconcurrency = 1") as bridge:
        bridge.begin()
        (guest,) = bridge.guests
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)
        bridge.say(guest, "SAY hello")
        bridge.say(bridge.me, "SAY kept")
        bridge.bridge.wait_status(lambda status: sum(row["queued"] for row in status["peers"]) == 2)

        bridge.say(bridge.me, "/stop")

        assert bridge.answers(bridge.me, 2) == [notices.stopped(waiting=1).en, "kept"]
        assert bridge.answers(guest, 1) == ["hello"]


def test_an_operator_stops_a_turn_with_bridge_ctl(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)

        stopped = bridge.bridge.ctl("stop", bridge.me)

        assert "stopped" in stopped.stdout
        assert bridge.answers(bridge.me, 1) == [notices.stopped(waiting=0).en]
        bridge.bridge.wait_status(lambda status: status["peers"][0]["state"] == "idle")
        assert "nothing was running" in bridge.bridge.ctl("stop", bridge.me).stdout


def test_a_hung_agent_is_stopped_within_the_grace_and_its_peer_goes_on_with_a_fresh_worker(stage: Stages) -> None:
    """B-078"""
    with stage(agent=FAKE_AGENT, settings="[workers]\nstop_grace_s = 0.5") as bridge:
        bridge.begin()
        bridge.say(bridge.me, "HANG")
        bridge.running(bridge.me)

        bridge.say(bridge.me, "/stop")

        assert notices.stopped(waiting=0).en in bridge.answers(bridge.me, 1)
        bridge.say(bridge.me, "SAY next")
        bridge.wechat.wait_for(lambda view: "next" in view.texts(bridge.me))
        assert bridge.counters()["workers_crashed"] == 0


def test_new_begins_a_fresh_conversation_and_is_refused_in_mid_turn(stage: Stages) -> None:
    """B-078"""
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "HISTORY", "UNTIL gate\nHISTORY")
        bridge.running(bridge.me)

        bridge.say(bridge.me, "/new")
        assert bridge.answers(bridge.me, 2) == ["1", notices.new_while_running().en]
        bridge.open_gate(bridge.me, "gate")
        assert bridge.answers(bridge.me, 3)[2] == "3"
        bridge.bridge.wait_status(lambda status: status["peers"][0]["state"] == "idle")
        bridge.say(bridge.me, "/new")
        assert bridge.answers(bridge.me, 4)[3] == notices.new_done().en
        bridge.say(bridge.me, "HISTORY")

        assert bridge.answers(bridge.me, 5)[4] == "1"


def test_only_the_owner_begins_a_fresh_conversation(stage: Stages) -> None:
    with stage(guests=1) as bridge:
        bridge.begin()
        (guest,) = bridge.guests

        bridge.say(guest, "/new")

        assert bridge.answers(guest, 1) == [notices.new_owner_only().en]


def test_notices_speak_the_peers_language(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "你好")

        bridge.say(bridge.me, "/stop")

        assert bridge.answers(bridge.me, 2)[1] == notices.nothing_running().zh


def test_a_snippet_of_the_operators_is_run_as_the_prompt_it_stands_for(stage: Stages) -> None:
    with stage(settings='[snippets]\nstandup = "What changed since yesterday?"') as bridge:
        bridge.begin()

        bridge.say(bridge.me, "／Standup in two lines")

        view = bridge.wechat.wait_for(lambda view: "in two lines" in "\n\n".join(view.texts(bridge.me)))
        assert "\n\n".join(view.texts(bridge.me)) == "What changed since yesterday?\n\nin two lines"


def test_commands_work_in_any_case_with_blanks_around_and_in_full_width(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()

        bridge.say(bridge.me, "  ／ＳＴＯＰ  ", "/Stop\n")

        assert bridge.answers(bridge.me, 2) == [notices.nothing_running().en] * 2
        assert bridge.counters().get("workers_started", 0) == 0


def test_an_operator_resets_a_conversation_with_bridge_ctl_but_not_in_mid_turn(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT, settings="[timers]\nack_s = 600\nack_again_s = 1200") as bridge:
        bridge.begin()
        bridge.say(bridge.me, "UNTIL gate\nHISTORY")
        bridge.running(bridge.me)

        refused = bridge.bridge.ctl("reset", bridge.me, check=False)
        bridge.open_gate(bridge.me, "gate")
        before = bridge.answers(bridge.me, 1)
        bridge.bridge.wait_status(lambda status: status["peers"][0]["state"] == "idle")
        done = bridge.bridge.ctl("reset", bridge.me)
        bridge.say(bridge.me, "HISTORY")

        assert (refused.returncode, "bridge-ctl stop" in refused.stderr) == (1, True)
        assert "fresh conversation" in done.stdout
        assert bridge.answers(bridge.me, 2) == [*before, "1"]


def test_no_typing_is_shown_where_it_is_switched_off(stage: Stages) -> None:
    with stage(wechat_keys="typing_indicator = false") as bridge:
        bridge.begin()

        bridge.answer_to(bridge.me, "quietly")

        assert bridge.wechat.requests("sendmessage")
        assert bridge.wechat.requests("sendtyping") == []
