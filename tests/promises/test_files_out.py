"""An agent's files and pictures on the phone, whichever way it sends them, through the whole bridge."""

import base64
from collections.abc import Callable

from supervisor import notices
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
