"""An agent program behind the Agent Client Protocol, through the whole bridge: from a phone to the program and back.

The peers' words are a script for tests/fakes/acp_agent.py, which lies in a folder of its own here, as an agent that an
operator has installed: the program's folder is found by itself, what else it reads is named in [agent] read.
"""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from supervisor import notices
from tests.fakes.bridge import ROOT, lives
from tests.fakes.stage import Stage

Stages = Callable[..., Stage]

STOPPED = notices.stopped().en
FAILED = notices.failed().en
BROKE_OFF = notices.broke_off().en
NOT_SET_UP = notices.not_configured("agent.command").en
TIMED_OUT = notices.timed_out().en
NOT_STARTED = notices.not_started().en
NOT_CONFIGURED = notices.not_configured("agent.command").en

# No courtesy lines between the answers, however busy the machine is.
PATIENT = "[timers]\nack_s = 600\nack_again_s = 1200\nstop_hint_s = 600\n"


class Program:
    """The fake agent, installed where a worker with a uid of its own can read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "agent.py"

    def command(self, *flags: str) -> str:
        return json.dumps([sys.executable, str(self.file), *flags])

    def inline(self, *flags: str) -> str:
        return f'{{ host = "acp", command = {self.command(*flags)}, read = ["{self.folder}"] }}'

    def table(self, *flags: str, more: str = "", timers: str = "") -> str:
        agent = f'[agent]\nhost = "acp"\ncommand = {self.command(*flags)}\nread = ["{self.folder}"]\n{more}\n'
        return f"{agent}{PATIENT}{timers}\n"


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    folder = Path(tempfile.mkdtemp(prefix="agent-"))
    folder.chmod(0o755)
    installed = Program(folder)
    shutil.copy(ROOT / "tests" / "fakes" / "acp_agent.py", installed.file)
    installed.file.chmod(0o755)
    yield installed
    shutil.rmtree(folder)


def also_configured(bridge: Stage, toml: str) -> None:
    """Settings that need the peers' ids."""
    file = bridge.bridge.home / "bridge.toml"
    file.write_text(file.read_text(encoding="utf-8") + "\n" + toml, encoding="utf-8")


def told(bridge: Stage, person: str, script: str, bubbles: int = 1) -> list[str]:
    """What the bot says to one message. One bubble too many shows up in front of the next answer."""
    before = len(bridge.wechat.view().texts(person))
    closed = len([line for line in bridge.bridge.lines if " message_closed " in line])
    bridge.say(person, script)
    # The longest line takes a second on an idle machine; an agent gets little of a busy one.
    bridge.bridge.wait_log(" message_closed ", count=closed + 1, timeout_s=120)
    return bridge.answers(person, before + bubbles)[before:]


def words(texts: list[str]) -> str:
    """Without the line breaks, some of which are lost where bubbles meet, and the blanks."""
    return "".join("".join(texts).split())


# --- answers --------------------------------------------------------------------------------------------------


def test_an_answer_arrives_in_bubbles_while_it_is_written(stage: Stages, program: Program) -> None:
    with stage(agent=program.table()) as bridge:
        bridge.begin()

        bridge.say(bridge.me, "PARAGRAPHS 8 300\nUNTIL gate\nSAY the end")

        early = bridge.answers(bridge.me, 2)
        assert words(early).startswith("000xxx")
        assert bridge.state(bridge.me) == "running"
        bridge.open_gate(bridge.me, "gate")
        bridge.bridge.wait_log(" message_closed ")
        whole = "".join(f"{number:03d}".ljust(299, "x") for number in range(8)) + "theend"
        bridge.wechat.wait_for(lambda view: words(view.texts(bridge.me)) == whole)


def test_every_character_is_delivered_once_in_either_style_and_markdown_is_flattened(
    stage: Stages, program: Program
) -> None:
    """B-049"""
    with stage(agent=program.table()) as bridge:
        bridge.begin()
        first, second, third = "First I look at it. ", "Then I change it. ", "Now it is done."

        whole = told(bridge, bridge.me, f"SAY {first}\nTOOLS 1\nSAY {second}\nTOOLS 1\nSAY {first}{second}{third}")
        parted = told(bridge, bridge.me, f"SAY {first}\nTOOLS 1\nSAY {second}\nTOOLS 1\nSAY {third}")

        assert words(whole) == words(parted) == words([first, second, third])
        marked = told(bridge, bridge.me, "SAY # Title\\nSome **bold** words and `code`.")
        assert marked == ["Title\nSome bold words and code."]


def test_what_begins_with_a_slash_reaches_the_agent_unless_it_is_a_command(stage: Stages, program: Program) -> None:
    with stage(agent=program.table()) as bridge:
        bridge.begin()

        assert told(bridge, bridge.me, "/usr/bin/ls") == ["You said: /usr/bin/ls"]
        assert told(bridge, bridge.me, "/compact now") == ["You said: /compact now"]


# --- stopping -------------------------------------------------------------------------------------------------


def test_a_stopped_answer_leaks_no_late_word_and_the_next_message_is_answered(stage: Stages, program: Program) -> None:
    """B-042: the agent goes on for half a second after it was told to stop."""
    with stage(agent=program.table("--late")) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "PARAGRAPHS 8 300\nSLOW 100000")
        bridge.answers(bridge.me, 1)

        bridge.say_at_once((bridge.me, "/stop"), (bridge.me, "MODE"))

        texts = bridge.hears(bridge.me, "mode=acceptEdits cancels=1")
        assert texts[-2:] == [STOPPED, "mode=acceptEdits cancels=1"]
        assert words(texts[:-2]).strip("0123456789x") == "", texts
        counters = bridge.counters()
        assert (counters["turns_stopped"], counters["turns_answered"], counters["workers_started"]) == (1, 1, 1)


def test_two_stops_are_one_cancel(stage: Stages, program: Program) -> None:
    """B-082"""
    with stage(agent=program.table()) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)

        bridge.say_at_once((bridge.me, "/stop"), (bridge.me, "/STOP"), (bridge.me, "MODE"))

        answer = "mode=acceptEdits cancels=1"
        assert bridge.hears(bridge.me, answer) == [STOPPED, notices.nothing_running().en, answer]


def test_an_agent_that_never_confirms_a_stop_is_replaced_and_the_conversation_goes_on(
    stage: Stages, program: Program
) -> None:
    """B-042"""
    with stage(agent=program.table("--never-cancel", more="[workers]\nstop_grace_s = 0.3")) as bridge:
        bridge.begin()
        told(bridge, bridge.me, "SAY one")
        (first,) = bridge.worker(bridge.me).children()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)

        bridge.say_at_once((bridge.me, "/stop"), (bridge.me, "HISTORY"))

        # Of the first turn it remembers two lines, of the stopped one two, and this prompt.
        assert bridge.answers(bridge.me, 3) == ["one", STOPPED, "5"]
        assert not lives(first)
        assert bridge.counters()["workers_crashed"] == 0


# --- the agent fails ------------------------------------------------------------------------------------------


def test_an_agent_that_dies_costs_one_line_and_the_next_message_is_answered(stage: Stages, program: Program) -> None:
    """B-016"""
    with stage(agent=program.table()) as bridge:
        bridge.begin()
        deaths = ("DIE", "EXIT 0", "EXIT 1", "CHILD 1")

        for death in deaths:
            assert told(bridge, bridge.me, death) == [FAILED], death
            assert told(bridge, bridge.me, "SAY alive") == ["alive"], death
            assert told(bridge, bridge.me, f"SAY half of it\n{death}", 2) == ["half of it", BROKE_OFF], death
            assert told(bridge, bridge.me, "SAY alive") == ["alive"], death

        counters = bridge.counters()
        assert (counters["turns_failed"], counters["turns_answered"]) == (8, 8)
        assert counters["workers_started"] == 9


def test_an_agent_that_dies_between_turns_is_replaced(stage: Stages, program: Program) -> None:
    with stage(agent=program.table()) as bridge:
        bridge.begin()
        told(bridge, bridge.me, "SAY one")

        (agent,) = bridge.worker(bridge.me).children(recursive=True)
        agent.kill()
        bridge.bridge.wait_log(" worker_gone peer=o.* why=left")

        assert told(bridge, bridge.me, "HISTORY") == ["3"]


def test_what_an_agent_says_of_its_failure_never_reaches_the_peer(stage: Stages, program: Program) -> None:
    """B-088"""
    with stage(agent=program.table()) as bridge:
        bridge.begin()
        errors = (
            {"code": -32603, "message": ""},
            {"code": -32603, "message": 'Traceback (most recent call last):\n  File "/srv/agent.py", line 1'},
            {"code": -32000, "message": "401 invalid api key sk-proj-0123456789abcdefghijklmnop"},
            {"code": 1, "message": "no", "data": {"token": "secret-token-of-the-model", "path": "/home/operator"}},
        )

        for error in errors:
            script = json.dumps(error)
            assert told(bridge, bridge.me, f"REJECT {script}") == [FAILED]
            assert told(bridge, bridge.me, f"SAY some words\nREJECT {script}", 2) == ["some words", BROKE_OFF]
        assert told(bridge, bridge.me, "STDERR 4\nDIE") == [FAILED]

        log = "\n".join(bridge.bridge.lines)
        assert "Traceback" in log and "LASTWORDS" in log, "the operator can read what happened"
        assert "sk-proj" not in log and "secret-token" not in log


def test_an_agent_that_never_answers_is_ended_by_the_turns_timeout(stage: Stages, program: Program) -> None:
    """B-040"""
    limits = "[workers]\nturn_timeout_minutes = 0.01\nstop_grace_s = 0.2"
    with stage(agent=program.table(more=limits)) as bridge:
        bridge.begin()

        assert told(bridge, bridge.me, "SAY some words, \nHANG", 2) == ["some words, x", TIMED_OUT]
        assert told(bridge, bridge.me, "SAY next") == ["next"]
        assert told(bridge, bridge.me, "WAIT") == [TIMED_OUT]

        assert bridge.counters()["turns_failed"] == 2


def test_agents_that_cannot_start_cost_their_own_peers_one_line_within_seconds(stage: Stages, program: Program) -> None:
    """B-086"""
    with stage(guests=6, agent=program.table()) as bridge:
        missing, silent, dying, logged_out, newer, healthy = bridge.guests
        agents = {
            missing: '{ host = "acp", command = ["/nowhere/agent"] }',
            silent: '{ host = "acp", command = ["/bin/true"] }',
            dying: program.inline("--die-before-hello"),
            logged_out: program.inline("--auth"),
            newer: program.inline("--version-2"),
        }
        also_configured(bridge, "".join(f'[peers."{who}"]\nagent = {agent}\n' for who, agent in agents.items()))
        bridge.begin()

        bridge.say_at_once(*((who, "SAY hello") for who in bridge.guests))

        assert bridge.answers(healthy, 1) == ["hello"]
        asked = bridge.wechat.bubbles(healthy, "me")[0].at_ms
        for broken in agents:
            (line,) = bridge.answers(broken, 1)
            assert line == (NOT_CONFIGURED if broken is missing else NOT_STARTED)
            assert bridge.wechat.bubbles(broken)[0].at_ms - asked < 6000
        assert bridge.counters()["workers_started"] == 6


def test_an_agent_that_does_not_open_in_time_is_given_up(stage: Stages, program: Program) -> None:
    with stage(agent=program.table("--deaf", timers="open_s = 0.5")) as bridge:
        bridge.begin()

        assert told(bridge, bridge.me, "SAY hello") == [NOT_STARTED]


# --- sessions -------------------------------------------------------------------------------------------------


def agents_of(bridge: Stage) -> list[psutil.Process]:
    """Every process of every worker's tree."""
    zygotes = psutil.Process(bridge.bridge.pid).children()
    return [process for zygote in zygotes for process in zygote.children(recursive=True)]


def test_a_conversation_goes_on_after_each_idle_reap_without_a_word_of_its_past(
    stage: Stages, program: Program
) -> None:
    """B-041, B-063, B-091"""
    with stage(agent=program.table("--replay-after", more="[workers]\nidle_minutes = 0.005")) as bridge:
        bridge.begin()

        for cycle in range(5):
            bridge.say(bridge.me, "DAEMON\nHISTORY\nUNTIL gate")
            bridge.running(bridge.me)
            tree = agents_of(bridge)
            assert len(tree) == 4, "nanny, worker, agent, and what the agent has left behind"
            bridge.open_gate(bridge.me, "gate")
            bridge.bridge.wait_log(" worker_gone peer=o.* why=left", count=cycle + 1)
            assert [process for process in tree if lives(process)] == []
            (bridge.workspace(bridge.me) / "gate").unlink()

        assert bridge.answers(bridge.me, 5) == ["1", "3", "5", "7", "9"]
        assert len(bridge.wechat.sends()) == 5
        assert agents_of(bridge) == []


def test_a_conversation_goes_on_after_a_restart_and_begins_anew_after_new(stage: Stages, program: Program) -> None:
    """B-041"""
    with stage(agent=program.table()) as bridge:
        bridge.begin()
        assert told(bridge, bridge.me, "HISTORY") == ["1"]
        assert bridge.bridge.stop() == 0
        bridge.bridge.start()

        assert told(bridge, bridge.me, "HISTORY") == ["3"]
        bridge.bridge.kill()
        bridge.bridge.start()
        assert told(bridge, bridge.me, "HISTORY") == ["5"]

        bridge.say(bridge.me, "/new")
        bridge.hears(bridge.me, notices.new_done().en)
        assert told(bridge, bridge.me, "HISTORY") == ["1"]
        assert bridge.answers(bridge.me, 5) == ["1", "3", "5", notices.new_done().en, "1"]


@pytest.mark.parametrize("flag", ["--no-load", "--die-on-load"])
def test_a_session_that_cannot_be_loaded_is_followed_by_a_fresh_one(flag: str, stage: Stages, program: Program) -> None:
    with stage(agent=program.table(flag, more="[workers]\nidle_minutes = 0.001")) as bridge:
        bridge.begin()
        assert told(bridge, bridge.me, "HISTORY") == ["1"]
        bridge.bridge.wait_log(" worker_gone peer=o.* why=left")

        assert told(bridge, bridge.me, "HISTORY") == ["1"]

        bridge.bridge.wait_log("worker_opened .* session=fresh")


# --- floods and odd words -------------------------------------------------------------------------------------


def test_long_lines_and_odd_ones_cost_nothing_but_themselves(stage: Stages, program: Program) -> None:
    """B-031: 70 kB, 5 MB and 60 MB are read, 65 MB are over the limit and dropped."""
    with stage(agent=program.table()) as bridge:
        bridge.begin()

        for size in ("0.07", "5", "60", "65"):
            assert words(told(bridge, bridge.me, f"SAY before \nLINE {size}\nSAY after")) == "beforeafter"
        assert told(bridge, bridge.me, "JUNK\nODD\nSURROGATE") == ["ok \ufffd done \U0001f600"]

        assert len([line for line in bridge.bridge.lines if "over the limit" in line]) == 1
        assert bridge.counters()["workers_started"] == 1


def test_a_flood_of_updates_ends_the_turn_whole_and_in_bounded_memory(stage: Stages, program: Program) -> None:
    """B-005: every send takes 50 ms."""
    with stage(agent=program.table(), wechat_keys="send_budget = 100") as bridge:
        bridge.wechat.change_settings(send_budget=100)
        bridge.begin()
        told(bridge, bridge.me, "SAY warm")
        supervisor, worker = psutil.Process(bridge.bridge.pid), bridge.worker(bridge.me)
        before = supervisor.memory_info().rss, worker.memory_info().rss
        bridge.wechat.set_fault("late", path="sendmessage", delay_ms=50)

        bridge.say(bridge.me, "FLOOD 10000")
        bridge.say(bridge.me, "SAY next")

        texts = bridge.hears(bridge.me, "next")
        answer = [re.sub(r"^\[\d+/\d+\] ?", "", text) for text in texts[1:-1]]
        assert "\n".join(answer).split() == [str(number) for number in range(1, 10000, 2)]
        after = supervisor.memory_info().rss, worker.memory_info().rss
        assert all(now - then < 64 * 1024 * 1024 for now, then in zip(after, before, strict=True)), (before, after)


def test_whatever_the_agent_asks_is_answered(stage: Stages, program: Program) -> None:
    """B-062, B-045: unknown requests by -32601; without remote_dialogs nothing is allowed, and the peer is told nothing."""
    with stage(agent=program.table(more="remote_dialogs = false")) as bridge:
        bridge.begin()

        answers = told(bridge, bridge.me, "UNKNOWN_REQUEST")[0].split()
        assert answers == [
            f"{name}=-32601" for name in ("_vendor/drain", "fs/read_text_file", "terminal/create", "no/such")
        ]
        assert told(bridge, bridge.me, "TWICE") == ['{"first": "no", "second": "no"}']
        assert told(bridge, bridge.me, "QUESTION") == ["question=decline"]


# --- what the agent sees --------------------------------------------------------------------------------------


def test_the_agents_home_lies_in_its_session_folder_and_no_secret_in_its_environment(
    stage: Stages, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "key of the model")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key of something else")
    with stage(agent=program.table(more='api_key_env = "MODEL_API_KEY"\nenv = { COLOUR = "blue" }')) as bridge:
        bridge.begin()

        seen = json.loads(told(bridge, bridge.me, "WHOAMI")[0])

        assert {"COLOUR", "HOME", "LANG", "PATH", "TMPDIR"} <= set(seen["env"])
        assert not {"MODEL_API_KEY", "AWS_SECRET_ACCESS_KEY", "BRIDGE_HOME"} & set(seen["env"])
        assert "blue" in seen["values"]
        assert not [value for value in seen["values"] if "key of" in value]
        home = Path(seen["home"])
        assert home.is_relative_to(bridge.bridge.home / "sessions")
        assert seen["cwd"] == str(bridge.workspace(bridge.me))
        assert list(home.glob("*.jsonl")), "what the agent remembers lies there too"


# --- settings -------------------------------------------------------------------------------------------------


def test_one_peer_has_an_agent_and_switching_keeps_its_conversation(stage: Stages, program: Program) -> None:
    with stage(guests=1, settings=PATIENT) as bridge:
        (guest,) = bridge.guests
        plain = (bridge.bridge.home / "bridge.toml").read_text(encoding="utf-8")
        also_configured(bridge, f'[peers."{guest}"]\nagent = {program.inline()}\n')
        with_agent = (bridge.bridge.home / "bridge.toml").read_text(encoding="utf-8")
        bridge.begin()
        assert told(bridge, bridge.me, "HISTORY") == ["HISTORY"]
        assert told(bridge, guest, "HISTORY") == ["1"]

        bridge.bridge.configure(plain)
        bridge.bridge.ctl("reload")
        assert told(bridge, guest, "HISTORY") == ["HISTORY"]
        bridge.bridge.configure(with_agent)
        bridge.bridge.ctl("reload")

        assert told(bridge, guest, "HISTORY") == ["3"]
        assert bridge.bridge.peer(guest)["worker"]["generation"] == 3
        assert bridge.bridge.ctl("history", guest).stdout.count("HISTORY") == 4


def test_an_agent_without_a_program_does_not_start(stage: Stages) -> None:
    with stage(agent='[agent]\nhost = "acp"') as bridge:
        bridge.bridge.start(wait=False)

        assert bridge.bridge.process is not None and bridge.bridge.process.wait(30) == 2
        bridge.bridge.wait_log('agent.command: host "acp" needs a program')
        assert len(bridge.bridge.lines) == 1


def test_a_tool_list_that_an_agent_cannot_keep_fails_start_and_reload(stage: Stages, program: Program) -> None:
    with stage(guests=1, agent=program.table()) as bridge:
        (guest,) = bridge.guests
        good = (bridge.bridge.home / "bridge.toml").read_text(encoding="utf-8")
        listed = f'[peers."{guest}"]\ntools = ["read"]\n'
        bridge.begin()

        also_configured(bridge, listed)
        refused = bridge.bridge.ctl("reload", check=False)
        assert refused.returncode != 0
        assert told(bridge, guest, "SAY still here") == ["still here"]
        assert bridge.bridge.stop() == 0
        bridge.bridge.start(wait=False)
        assert bridge.bridge.process is not None and bridge.bridge.process.wait(30) == 2
        (line,) = bridge.bridge.wait_log("tools")

        for said in (refused.stderr, line):
            assert guest in said and '"acp"' in said and "tools = []" in said, said
        bridge.bridge.configure(good + f'[peers."{guest}"]\ntools = []\naccess = "chat"\n')
        bridge.bridge.start()
        assert told(bridge, guest, "SAY hello") == ["hello"]
