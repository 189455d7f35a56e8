"""What the operator asks for is recorded without content; what is forgotten is gone; what is too old goes by itself."""

import json
import sqlite3
from collections.abc import Callable

from supervisor import notices
from supervisor.home import Home
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]


def everything_in(bridge: Stage) -> bytes:
    """Every file of the home but the sockets."""
    files = [path for path in bridge.bridge.home.rglob("*") if path.is_file()]
    return b"".join(path.read_bytes() for path in files)


def test_forget_leaves_no_word_of_a_peer_and_the_audit_says_who_asked(stage: Stages) -> None:
    with stage() as bridge:
        bridge.begin()
        bridge.answer_to(bridge.me, "a secret about marmalade")
        (account,) = bridge.bridge.status()["accounts"]
        home = Home(bridge.bridge.home)
        workspace = home.workspace_dir(account["owner"], bridge.me)
        (workspace / "note.txt").write_text("more marmalade")

        asked = bridge.bridge.ctl("forget", bridge.me, check=False)
        assert (asked.returncode, asked.stderr.count("\n")) == (1, 1)
        assert b"marmalade" in everything_in(bridge)
        bridge.bridge.ctl("forget", bridge.me, "--yes")

        assert b"marmalade" not in everything_in(bridge)
        assert not workspace.exists()
        assert "marmalade" not in bridge.bridge.ctl("history", bridge.me).stdout
        assert bridge.bridge.status()["peers"][0]["worker"] is None

        bridge.answer_to(bridge.me, "hello again")
        verified = bridge.bridge.ctl("audit", "verify").stdout
        assert "each following the one before it" in verified

        log = bridge.bridge.home / "audit.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        orders = [line["data"] for line in lines if line["event"] == "verb_obeyed"]
        assert [order["verb"] for order in orders] == ["login", "forget"]
        assert orders[1]["about"] == bridge.me
        assert "hello again" not in log.read_text()

        log.write_text(log.read_text().replace('"forget"', '"status"'))
        broken = bridge.bridge.ctl("audit", "verify", check=False)
        assert (broken.returncode, broken.stderr.count("\n")) == (1, 1)
        assert "was changed" in broken.stderr


def test_a_running_turn_is_not_forgotten_from_under_its_peer(stage: Stages) -> None:
    with stage(agent=FAKE_AGENT) as bridge:
        bridge.begin()
        bridge.say(bridge.me, "WAIT")
        bridge.running(bridge.me)

        refused = bridge.bridge.ctl("forget", bridge.me, "--yes", check=False)

        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "bridge-ctl stop" in refused.stderr
        bridge.bridge.ctl("stop", bridge.me)
        assert bridge.answers(bridge.me, 1) == [notices.stopped().en]


def test_what_nobody_fetched_for_a_week_is_given_up_and_its_hook_runs(stage: Stages) -> None:
    """The week has passed while the bridge was down: the parts' times are set back in the journal."""
    with stage(wechat_keys="send_budget = 3") as bridge:
        said = bridge.folder / "said"
        hook = ["/bin/sh", "-c", f"cat > {said}.new && mv {said}.new {said}"]
        settings = (bridge.bridge.home / "bridge.toml").read_text()
        bridge.bridge.configure(f"{settings}\n[hooks]\non_dead_letter = {json.dumps(hook)}\n")
        bridge.begin()
        bridge.say(bridge.me, "x" * 20_000)
        bridge.bridge.wait_status(lambda status: status["peers"][0]["parked_parts"] > 0)
        bridge.bridge.stop()
        with sqlite3.connect(bridge.bridge.home / "state.db") as db:
            db.execute("UPDATE part SET at = at - 8 * 86400")

        bridge.bridge.start()

        (line,) = bridge.bridge.wait_log(r" parts_dead peer=")
        assert bridge.me in line
        bridge.bridge.wait_status(lambda status: status["peers"][0]["parked_parts"] == 0)
        bridge.answer_to(bridge.me, "and now")
        bridge.bridge.wait_status(lambda _: said.exists())
        assert json.loads(said.read_text())["peer"] == bridge.me
