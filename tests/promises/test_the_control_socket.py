"""bridge-ctl against a real bridge when things are not as they should be: nobody there, a wrong key, silence, a crowd."""

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq

from protocol.ctl import Done, Reload
from supervisor.console.client import Client
from tests.fakes.bridge import DEADLINE_S
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]
PEERS = 100


def one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done
    assert all(word in done.stderr for word in words), done.stderr


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def with_another_key(file: Path) -> Iterator[None]:
    right = file.read_bytes()
    public, secret = zmq.curve_keypair()
    file.write_bytes(public + b"\n" + secret + b"\n")
    try:
        yield
    finally:
        file.write_bytes(right)


def test_clients_of_a_bridge_with_100_peers_are_served_whole_together_and_apart_from_each_other(stage: Stages) -> None:
    with stage(guests=PEERS) as bridge:
        home = str(bridge.bridge.home)
        one_line(bridge.bridge.ctl("status", check=False), 3, "no supervisor", home)

        bridge.begin()
        bridge.say_at_once(*((guest, "/help") for guest in bridge.guests))  # known, and no worker for any
        status = bridge.bridge.wait_status(lambda status: len(status["peers"]) == PEERS)
        assert {row["peer"] for row in status["peers"]} == set(bridge.guests)
        shown = bridge.bridge.ctl("status").stdout
        assert all(row["label"][:12] in shown for row in status["peers"])

        killed = bridge.bridge.popen_ctl("events", "--follow", "--since", "0", "--json")
        stays = bridge.bridge.popen_ctl("events", "--follow", "--since", "0", "--json")
        assert killed.stdout is not None and stays.stdout is not None
        first = killed.stdout.readline()
        killed.kill()
        killed.communicate(timeout=DEADLINE_S)
        assert stays.stdout.readline() == first

        together = [bridge.bridge.popen_ctl(verb, "--json") for verb in ("status", "accounts", "status")]
        answers = [json.loads(client.communicate(timeout=DEADLINE_S)[0]) for client in together]
        assert len(answers[0]["peers"]) == len(answers[2]["peers"]) == PEERS
        assert [account["owner"] for account in answers[1]] == [bridge.me]

        bridge.say(bridge.me, "still heard")
        for line in stays.stdout:
            if (event := json.loads(line))["event"] == "message_closed" and event["peer"] == bridge.me:
                break
        stays.send_signal(signal.SIGINT)
        assert (stays.wait(DEADLINE_S), stays.communicate()[1]) == (0, "")


def test_a_client_with_a_wrong_key_or_a_silent_supervisor_ends_with_one_line(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        home = str(bridge.bridge.home)

        with with_another_key(bridge.bridge.home / "run" / "ctl-client.key"):
            one_line(bridge.bridge.ctl("status", check=False), 1, "does not accept the key", home)
        with stopped(bridge.bridge.pid):
            one_line(bridge.bridge.ctl("status", check=False), 3, "does not answer", home)

        bridge.answer_to(bridge.me, "back again")
        assert bridge.bridge.ctl("status").returncode == 0


def test_b076_settings_that_are_read_again_and_again_cost_no_turn_its_answer(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        enough = threading.Event()
        reloads: list[object] = []

        def reload() -> None:
            while not enough.wait(0.05):
                with Client(bridge.bridge.home) as client:
                    reloads.extend(client.ask(Reload()))

        beside = threading.Thread(target=reload)
        beside.start()
        try:
            for number in range(20):
                bridge.answer_to_is(bridge.me, f"SAY answer {number}", f"answer {number}")
        finally:
            enough.set()
            beside.join(DEADLINE_S)

        assert len(reloads) > 3
        assert set(map(repr, reloads)) == {repr(Done(["settings read again"]))}
        status = bridge.bridge.wait_status(lambda status: status["counters"]["turns_answered"] == 20)
        assert status["counters"]["turns_failed"] == 0


def test_a_reload_names_the_changed_keys_that_wait_for_the_next_start(stage: Stages) -> None:
    with stage() as bridge:
        bridge.bridge.start()
        toml = (bridge.bridge.home / "bridge.toml").read_text()

        bridge.bridge.configure(f"{toml}\n[timers]\nhang_s = 11\nack_s = 5\n")

        said = bridge.bridge.ctl("reload").stdout
        assert said == "settings read again\nfrom the next start on: timers.hang_s\n"
