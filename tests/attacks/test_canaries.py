"""Secrets that the supervisor holds are in no process that it starts: looked for in memory and environment of each."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fakes.bridge import Bridge
from tests.fakes.memory import memory_holds
from tests.fakes.wechat import SimulatedWeChat

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="reading another process's memory takes root")

IN_ENVIRONMENT = "canary-of-the-environment-4711"
IN_SETTINGS = "canary-of-the-settings-4712"


class Canary(Bridge):
    def env(self) -> dict[str, str]:
        return {**super().env(), "CANARY_API_KEY": IN_ENVIRONMENT}


@pytest.fixture
def wechat() -> Iterator[SimulatedWeChat]:
    with SimulatedWeChat(hold_s=5.0) as simulated:
        yield simulated


def test_what_the_supervisor_knew_before_and_learns_later_is_in_no_zygote_nanny_or_worker(
    wechat: SimulatedWeChat,
) -> None:
    owner, guest = wechat.add_person(), wechat.add_person()
    settings = f'[admission]\nallowed_peers = ["{guest}", "{IN_SETTINGS}"]\n'
    with (
        tempfile.TemporaryDirectory(prefix="canary-") as folder,
        Canary(Path(folder) / "home", base_url=wechat.base_url, cdn_url=wechat.cdn_url, settings=settings) as bridge,
    ):
        bridge.start()
        login = bridge.popen_ctl("login")
        bot = wechat.scan(owner)
        login.communicate(timeout=30)
        token = stored_token(bridge.home)
        for person in (owner, guest):
            wechat.say(person, f"the words of {person} alone", to=bot)
        wechat.wait_for(lambda view: all(view.bubbles(person) for person in (owner, guest)))
        workers = {row["peer"]: row["worker"]["pid"] for row in bridge.status()["peers"] if row["worker"]}
        tree = bridge.tree()
        assert len(tree) >= 5, "zygote, and twice nanny and worker"

        for secret in (IN_ENVIRONMENT, IN_SETTINGS, token):
            assert memory_holds(bridge.pid, secret.encode()), "the search finds what is there"
            holders = [process for process in tree if knows(process, secret)]
            assert holders == []
        words = f"the words of {guest} alone"
        assert memory_holds(workers[guest], words.encode())
        assert not memory_holds(workers[owner], words.encode()), "a peer's words are in no other peer's worker"
        bridge.stop()


def stored_token(home: Path) -> str:
    found = [line for line in json.dumps(json.loads((home / "credentials.json").read_text())).split('"')]
    return found[found.index("token") + 2]


def knows(process: psutil.Process, secret: str) -> bool:
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    return secret.encode() in environment or memory_holds(process.pid, secret.encode())
