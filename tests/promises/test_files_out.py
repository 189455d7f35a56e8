"""An agent's files and pictures on the phone, whichever way it sends them, through the whole bridge."""

import base64
import os
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from supervisor import notices
from supervisor.home import Home
from tests.fakes.stage import FAKE_AGENT, Stage

Stages = Callable[..., Stage]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(200)


def test_an_agent_sends_files_by_its_tool_and_pictures_in_its_answer(stage: Stages) -> None:
    bridge = stage(agent=FAKE_AGENT, wechat_keys="max_send_bytes = 300").begin()
    me, picture = bridge.me, base64.b64encode(PNG).decode()
    words, large = base64.b64encode(b"%PDF-").decode(), base64.b64encode(bytes(301)).decode()

    bridge.say(me, f"WRITE 报告.pdf {words}\nSEND 报告.pdf the report")
    bridge.hears(me, "The file was sent.")
    bridge.say(me, f"PICTURE {picture}\nSAY shown")
    bridge.hears(me, "shown")
    bridge.say(me, f"WRITE big {large}\nSEND big")
    heard = bridge.answers(me, 7)

    shown = bridge.wechat.bubbles(me)
    assert [(one.kind, one.text) for one in shown[:3]] == [("text", "the report"), ("file", ""), ("text", heard[2])]
    assert bridge.wechat.media(shown[1]) == b"%PDF-"
    assert next(bridge.wechat.media(one) for one in shown if one.kind == "image") == PNG
    assert notices.file_too_large("big").en in heard
    assert any("301 bytes" in text for text in heard)


def test_the_operator_sends_a_text_or_a_picture_and_is_told_why_not(stage: Stages, tmp_path: Path) -> None:
    bridge = stage(agent=FAKE_AGENT).begin()
    me, ctl = bridge.me, bridge.bridge.ctl
    picture, page = tmp_path / "secret-place" / "p.png", tmp_path / "page.html"
    picture.parent.mkdir()
    picture.write_bytes(PNG)
    page.write_bytes(b"<html>")

    before = ctl("send", "hello", check=False)
    assert (before.returncode, "has not written yet" in before.stderr) == (1, True)
    assert not bridge.wechat.view().sends, "nothing is kept for later either"

    bridge.say(me, "SAY ready")
    bridge.hears(me, "ready")
    assert "sent" in ctl("send", "早上好").stdout
    assert "sent" in ctl("send", "--account", "default", "--image", str(picture)).stdout
    shown = bridge.wechat.bubbles(me)
    assert [(one.kind, one.text) for one in shown[1:]] == [("text", "早上好"), ("image", "")]
    assert bridge.wechat.media(shown[2]) == PNG

    for arguments, code, word in [
        (("send",), 2, "either"),
        (("send", "x", "--image", str(picture)), 2, "either"),
        (("send", "x" * 4001), 2, "4001"),
        (("send", "--image", str(page)), 1, "not a picture"),
        (("send", "--image", str(tmp_path / "gone.png")), 1, "gone.png"),
        (("send", "--account", "nobody", "x"), 1, "nobody"),
    ]:
        refused = ctl(*arguments, check=False)
        assert (refused.returncode, word in refused.stderr) == (code, True), refused.stderr
        assert "secret-place" not in refused.stderr

    bridge.say(me, "HANG")
    bridge.running(me)
    assert "a turn of its owner runs" in ctl("send", "now", check=False).stderr
    assert "sent" in ctl("send", "--image", str(picture)).stdout


def test_the_operators_own_agent_sends_a_picture_now_and_nobody_elses_has_that_tool(stage: Stages) -> None:
    bridge = stage(agent=FAKE_AGENT, guests=1, settings='[guests]\naccess = "workspace"\n').begin()
    me, (guest,) = bridge.me, bridge.guests
    picture = base64.b64encode(PNG).decode()

    bridge.say(me, f'WRITE p.png {picture}\nSENDNOW {{"image": "p.png"}}\nSENDNOW {{"text": "hello"}}\nSAY done')
    heard = bridge.wechat.wait_for(lambda view: any("done" in text for text in view.texts(me))).bubbles(me)
    bridge.say(guest, f'WRITE p.png {picture}\nSENDNOW {{"image": "p.png"}}')
    (told,) = bridge.answers(guest, 1)

    assert [bridge.wechat.media(one) for one in heard if one.kind == "image"] == [PNG]
    said = "".join(one.text for one in heard)
    assert '"sent": true, "state": "sent", "error": null' in said
    assert '"sent": false, "state": "refused", "error": "they wait for your answer' in said
    assert told == "no such tool"


def test_twenty_megabytes_in_and_out_hold_the_supervisors_memory(stage: Stages) -> None:
    bridge = stage(agent=FAKE_AGENT).begin()
    me, data = bridge.me, os.urandom(20 * 1024 * 1024)
    bridge.wechat.attach(me, "file", b"small", name="a.bin", text="SAY warm")
    bridge.hears(me, "warm")
    folder = Home(bridge.bridge.home).media_dir(me, me)
    (small,) = folder.iterdir()
    bridge.say(me, f"SEND {small}")
    bridge.hears(me, "The file was sent.")
    supervisor, over, most = psutil.Process(bridge.bridge.pid), threading.Event(), [0]
    before = supervisor.memory_info().rss

    def watch() -> None:
        while not over.wait(0.005):
            most[0] = max(most[0], supervisor.memory_info().rss - before)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        bridge.wechat.attach(me, "file", data, name="large.bin", text="SAY came")
        bridge.hears(me, "came")
        (large,) = (path for path in folder.iterdir() if path != small)
        assert large.read_bytes() == data
        bridge.say(me, f"SEND {large}")
        shown = bridge.wechat.wait_for(
            lambda view: sum(one.kind == "file" for one in view.bubbles(me)) == 2, timeout_s=60
        ).bubbles(me)
    finally:
        over.set()
        watching.join()

    assert bridge.wechat.media([one for one in shown if one.kind == "file"][1]) == data
    assert most[0] < 8 * 1024 * 1024, f"{most[0] / 1024 / 1024:.1f} MiB"
