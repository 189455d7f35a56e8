"""The service in a thread, as a child process, and the helper that integration tests use."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from supervisor.demo.server import SimulatedServer
from tests.fakes.ilink_bot import sign_in
from tests.fakes.wechat import SimulatedWeChat

ROOT = Path(__file__).parents[3]


def test_a_child_process_tells_where_it_listens_and_ends_with_its_stdin() -> None:
    command = [sys.executable, "-m", "supervisor.demo.server", "--port", "0", "--hold-s", "0.5", "--with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None and child.stdin is not None
        told = json.loads(child.stdout.readline())

        stats = httpx.get(f"{told['url']}/sim/stats", trust_env=False).json()
        child.stdin.close()

        assert told["pid"] == child.pid
        assert told["cdn_url"] == f"{told['url']}/c2c"
        assert stats["polls_in_flight"] == 0
        assert child.wait(20) == 0


def test_a_child_process_ends_on_sigterm() -> None:
    command = [sys.executable, "-m", "supervisor.demo.server"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        child.stdout.readline()

        child.terminate()

        child.wait(20)


def test_a_stop_breaks_held_polls_and_the_world_outlives_it() -> None:
    with SimulatedWeChat(hold_s=60) as wechat:
        person = wechat.add_person()
        bot = sign_in(wechat, person)
        outcome: list[object] = []

        def poll() -> None:
            try:
                outcome.append(bot.poll())
            except httpx.HTTPError as error:
                outcome.append(error)

        poller = threading.Thread(target=poll)
        poller.start()
        wechat.wait_for(lambda view: view.polls_in_flight() == 1)

        wechat.go_down()
        poller.join(20)
        with pytest.raises(httpx.ConnectError):
            bot.poll()
        wechat.come_back()

        assert isinstance(outcome[0], httpx.RemoteProtocolError | httpx.ReadError)
        wechat.wait_for(lambda view: view.polls_in_flight() == 0)
        wechat.say(person, "after the outage")
        assert len(bot.poll()["msgs"]) == 1


def test_two_services_run_side_by_side() -> None:
    with SimulatedServer() as one, SimulatedServer() as two:
        httpx.post(f"{one.url}/sim/people", json={"id": "a@im.wechat"}, trust_env=False)

        assert httpx.get(f"{one.url}/sim/people", trust_env=False).json()["people"]
        assert httpx.get(f"{two.url}/sim/people", trust_env=False).json()["people"] == []


def test_scan_waits_for_a_qr_and_returns_the_new_bot() -> None:
    with SimulatedWeChat() as wechat:
        person = wechat.add_person("alice@im.wechat")
        scanned: list[str] = []
        scanner = threading.Thread(target=lambda: scanned.append(wechat.scan(person)))
        scanner.start()
        with httpx.Client(base_url=wechat.base_url, trust_env=False, timeout=30) as http:
            ticket = http.post("/ilink/bot/get_bot_qrcode?bot_type=3").json()["qrcode"]
            told = {"status": "wait"}
            while told["status"] == "wait":
                told = http.get("/ilink/bot/get_qrcode_status", params={"qrcode": ticket}).json()
        scanner.join(20)

        assert scanned == [told["ilink_bot_id"]]


def test_waiting_in_vain_says_what_was_seen() -> None:
    with SimulatedWeChat() as wechat:
        wechat.add_person("alice@im.wechat")

        with pytest.raises(AssertionError, match=r"not within 0\.2 s; last seen: .*alice"):
            wechat.wait_for(lambda view: False, timeout_s=0.2)
