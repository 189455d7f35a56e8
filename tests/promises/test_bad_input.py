"""What bad settings, damaged files and files of others get: one line that names it, and the rest keeps working."""

import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable

import pytest

from tests.fakes.bridge import DEADLINE_S
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def refused_start(bridge: Stage) -> tuple[int, str]:
    """Exit code and last line of a start that must not succeed."""
    bridge.bridge.start(wait=False)
    assert bridge.bridge.process is not None
    code = bridge.bridge.process.wait(DEADLINE_S)
    bridge.bridge.wait_log("bridge.toml")
    return code, bridge.bridge.lines[-1]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ('[workers]\nconcurrency = "two"', ("workers.concurrency", "an integer from 1 to 64", '"two"')),
        ("[workers]\nconcurrency = 65", ("workers.concurrency", "65")),
        ("[workers]\nconcurency = 2", ("workers.concurency", "concurrency")),
        ("[worker]\nconcurrency = 2", ("worker", "workers")),
        ('[agent]\nhost = "nobody"', ("agent.host", "nobody")),
        ('[peers."*"]\naccess = "full"', ("*",)),
        ("[workers\n", ("bridge.toml",)),
    ],
)
def test_wrong_settings_stop_the_start_and_name_file_key_and_value(
    stage: Stages, wrong: str, named: tuple[str, ...]
) -> None:
    with stage(settings=wrong) as bridge:
        code, line = refused_start(bridge)

        assert code == 2
        assert "bridge.toml" in line
        assert all(word in line for word in named), line
        assert "Traceback" not in "\n".join(bridge.bridge.lines)


@pytest.mark.parametrize("peers", ['"alice@im.wechat"', "'[\"alice\"]'", "[1]", '["*"]'])
def test_a_list_of_peers_of_the_wrong_form_stops_the_start(stage: Stages, peers: str) -> None:
    """B-079, B-029"""
    with stage() as bridge:
        toml = (bridge.bridge.home / "bridge.toml").read_text()
        bridge.bridge.configure(toml.replace("allowed_peers = []", f"allowed_peers = {peers}"))

        code, line = refused_start(bridge)

        assert code == 2
        assert "admission.allowed_peers" in line


def test_an_empty_settings_file_starts(stage: Stages) -> None:
    with stage() as bridge:
        bridge.bridge.configure("")

        bridge.bridge.start()

        assert bridge.bridge.status()["accounts"] == []
        assert "no account" in bridge.bridge.ctl("status").stdout


@pytest.mark.parametrize("name", ["state.db", "peers.toml", "credentials.json"])
def test_a_damaged_file_is_set_aside_and_named_once_and_the_bridge_works_on(stage: Stages, name: str) -> None:
    """B-006: a login outlives a lost journal."""
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "before")
        bridge.bridge.stop()
        damaged = bridge.bridge.home / name
        for wal in bridge.bridge.home.glob("state.db-*") if name == "state.db" else ():
            wal.unlink()
        damaged.write_bytes(b"\x00 this is not what it was \xff" * 100)

        bridge.bridge.start()

        kept = [one for one in bridge.bridge.home.iterdir() if one.name.startswith(f"{name}.")]
        assert len(kept) == 1
        assert kept[0].read_bytes().startswith(b"\x00 this is not")
        found = [line for line in bridge.bridge.lines if "found_odd" in line and name in line]
        assert len(found) == 1
        assert name in bridge.bridge.ctl("status").stdout
        if name == "credentials.json":
            bridge.sign_in(bridge.me, "--name", "default")
        bridge.answer_to(bridge.me, "after")
        bridge.bridge.stop()
        bridge.bridge.start()
        assert not any("found_odd" in line and name in line for line in bridge.bridge.lines)


def test_secret_files_are_closed_to_others_and_one_found_open_is_closed_and_named(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "hello")
        home = bridge.bridge.home
        secret = [home / "credentials.json", home / "state.db"]
        assert [stat.S_IMODE(path.stat().st_mode) for path in secret] == [0o600, 0o600]
        assert stat.S_IMODE(home.stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)
        readable = [
            path
            for path in home.rglob("*")
            if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o077 and path.name != "bridge.toml"
        ]
        assert not [path for path in readable if b"Bearer" in path.read_bytes()]
        bridge.bridge.stop()

        secret[0].chmod(0o644)
        bridge.bridge.start()

        assert stat.S_IMODE(secret[0].stat().st_mode) == 0o600
        assert len([line for line in bridge.bridge.lines if "found_odd" in line and "credentials.json" in line]) == 1
        bridge.answer_to(bridge.me, "after")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_file_that_belongs_to_somebody_else_is_not_used_and_named(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.bridge.stop()
        os.chown(bridge.bridge.home / "credentials.json", 65534, 65534)

        bridge.bridge.start(wait=False)
        bridge.bridge.wait_log("credentials.json")

        bot = bridge.wechat.view().bots[0]
        assert bot["polls_in_flight"] == 0


def test_the_token_stands_in_no_log_line_and_in_no_answer(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WHOAMI")
        answer = bridge.answers(bridge.me, 1)[0]
        stored = json.loads((bridge.bridge.home / "credentials.json").read_text())
        tokens = [
            value
            for value in _strings(stored)
            if len(value) > 30 and "/" not in value and not value.endswith("@im.wechat")
        ]
        assert tokens

        shown = "\n".join([*bridge.bridge.lines, answer, bridge.bridge.ctl("status", "--json").stdout])

        assert not [token for token in tokens if token in shown]


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [one for inner in value.values() for one in _strings(inner)]
    if isinstance(value, list):
        return [one for inner in value for one in _strings(inner)]
    return []


@pytest.mark.parametrize(
    "raw",
    [
        None,
        17,
        [],
        "text",
        {},
        {"message_id": None, "from_user_id": 3},
        {"message_id": {"a": 1}, "item_list": "x"},
        {"item_list": [None, 3, {"type": "x"}, {"type": 1, "text_item": 7}]},
    ],
)
def test_a_message_of_any_shape_stops_nothing(stage: Stages, raw: object) -> None:
    with stage() as bridge:
        bridge.begin()

        bridge.wechat.say(bridge.me, raw=raw)
        bridge.wechat.say(bridge.me, item={"type": 99, "strange": [1]})

        bridge.answer_to(bridge.me, "still here")


def test_another_program_that_locks_the_journal_for_a_second_costs_nothing(stage: Stages) -> None:
    """B-073"""
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "before")
        other = sqlite3.connect(bridge.bridge.home / "state.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        bridge.say(bridge.me, "while locked")
        bridge.wechat.wait_for(lambda view: view.bots[0]["waiting"] == 0)
        moment = time.monotonic() + 1.0  # the promise is about a second of real time
        while time.monotonic() < moment:
            time.sleep(0.05)
        assert bridge.wechat.view().texts(bridge.me) == ["before"]

        other.execute("ROLLBACK")
        other.close()

        assert bridge.answers(bridge.me, 2) == ["before", "while locked"]
        bridge.answer_to(bridge.me, "after")
        assert bridge.counters()["turns_answered"] == 3
