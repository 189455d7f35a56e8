"""A bridge's long life in a network that notes whom anybody wants to reach (trap.py). A program: prints JSON, see main().

Everything that the bridge does with a network happens in it: logins, polls, answers, faults, an outage, restarts, agents
that want to get out, bridge-ctl doctor --probe.
"""

import json
import re
import socket
import sys
from urllib.parse import urlsplit

from tests.attacks.trap import NoTrap, Reached, Trap
from tests.fakes.stage import FAKE_AGENT, Stage
from tests.fakes.wechat import SimulatedWeChat

ELSEWHERE = "192.0.2.1"  # TEST-NET-1: nobody's
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
NO_TRAP = 77


def live(wechat: SimulatedWeChat, stage: Stage) -> list[str]:
    """What the agents said of their attempts."""
    guest = stage.guests[0]
    stage.begin()
    stage.say(stage.me, "SAY hello")
    stage.say(guest, "SAY hello")
    stage.answers(stage.me, 1)
    stage.answers(guest, 1)
    wechat.attach(stage.me, "image", PNG, name="a.png")
    stage.answers(stage.me, 2)

    port = urlsplit(wechat.base_url).port
    tries = [f"REACH {ELSEWHERE} 80", f"REACH 127.0.0.1 {port}", "REACH ::1 80", "ASK_DNS example.org"]
    for number, attempt in enumerate(tries, start=2):
        stage.say(guest, attempt)
        stage.answers(guest, number)
    said = [text for text in wechat.view().texts(guest) if re.match("refused|worked", text)]

    stage.say(wechat.add_person(name="stranger"), "let me in")
    wechat.set_fault("http_status", path="getupdates", status=500, times=2)
    wechat.set_fault("close_unanswered", path="sendmessage", times=1)
    stage.say(stage.me, "SAY after faults")
    stage.hears(stage.me, "after faults")
    stage.bridge.ctl("doctor", "--probe", check=False)
    wechat.go_down()
    wechat.come_back()
    stage.bridge.stop()
    stage.bridge.start()
    stage.say(stage.me, "SAY once more")
    stage.hears(stage.me, "once more")
    stage.bridge.stop()
    return said


def main() -> int:
    """{"reached": [[protocol, host, port]], "wechat": [[host, port]], "said": [...], "control": [...], "lost": packets}"""
    try:
        trap = Trap()
    except NoTrap as why:
        print(why)
        return NO_TRAP
    with trap:
        # The trap itself is tried: a connection, a datagram and a name that is asked for.
        with socket.socket() as tcp:
            tcp.settimeout(5)
            tcp.connect_ex((ELSEWHERE, 81))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.sendto(b"?", (ELSEWHERE, 82))
        with SimulatedWeChat(hold_s=1.0) as wechat, Stage(wechat, agent=FAKE_AGENT, guests=1) as stage:
            addresses = [urlsplit(url) for url in (wechat.base_url, wechat.cdn_url)]
            said = live(wechat, stage)
    control = {Reached("tcp", ELSEWHERE, 81), Reached("udp", ELSEWHERE, 82)}
    print(
        json.dumps(
            {
                "reached": sorted([one.protocol, one.host, one.port] for one in trap.reached - control),
                "wechat": sorted({("tcp", address.hostname, address.port) for address in addresses}),
                "said": said,
                "control": len(trap.reached & control),
                "lost": trap.lost,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
