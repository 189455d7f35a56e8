"""B-060: what is secret, and what people wrote, is found nowhere but where it belongs, at the most verbose level.

A whole life with failures is lived; then everything that the program wrote or shows is searched for values that a run
really used: token, reply tokens, cursors, login and typing tickets, media keys, an API key, a proxy's password, words.
"""

import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes.bridge import DEADLINE_S, Bridge
from tests.fakes.stage import FAKE_AGENT, Stage
from tests.fakes.wechat import SimulatedWeChat

WORDS = "canary-words-of-a-peer"
API_KEY = "sk-canary-api-key-5b1d"
PASSWORD = "canary-proxy-password"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
SECRET_FIELDS = {
    "context_token",
    "get_updates_buf",
    "qrcode",
    "typing_ticket",
    "aeskey",
    "aes_key",
    "encrypt_query_param",
}
LEAST_CHARS = 12  # of a value that is worth looking for
BELONGS = {"credentials.json", "state.db", "state.db-wal", "state.db-shm", "bridge.toml"}
PEERS_OWN = ("sessions", "workspaces", "media")  # what an agent keeps of its peer's words
LEAKS_READ_BYTES = 1 << 20

Found = dict[str, str]  # value → what it is


def fields(value: Any) -> Iterator[tuple[str, str]]:
    """Every text in some JSON with the name it stands under."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from ((name, one),) if isinstance(one, str) else fields(one)
    elif isinstance(value, list):
        for one in value:
            yield from fields(one)


def token_of(home: Path) -> str:
    """The half of it that is secret."""
    accounts = json.loads((home / "credentials.json").read_text(encoding="utf-8"))["accounts"]
    return str(accounts[-1]["token"]).partition(":")[2]


def secrets_used(wechat: SimulatedWeChat, home: Path) -> Found:
    """What went over the wire and came into the journal."""
    found: Found = {token_of(home): "token", API_KEY: "api key", PASSWORD: "proxy password"}
    sources = [[request["query"], request["body"]] for request in wechat.requests()]
    with sqlite3.connect(f"file:{home}/state.db?mode=ro", uri=True) as journal:
        sources += [json.loads(raw) for (raw,) in journal.execute("SELECT raw FROM message WHERE raw <> x''")]
    for source in sources:
        for name, value in fields(source):
            if name in SECRET_FIELDS and len(value) >= LEAST_CHARS:
                found[value] = name
    return found


def leaks(where: str, text: str | bytes, secrets: Iterable[tuple[str, str]]) -> list[str]:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return [f"{kind} in {where}" for value, kind in secrets if value.encode() in data]


def in_files(home: Path, secrets: Found) -> list[str]:
    found: list[str] = []
    for path in home.rglob("*"):
        if not path.is_file() or path.is_symlink() or path.name in BELONGS:
            continue
        theirs = path.relative_to(home).parts[0] in PEERS_OWN
        wanted = [(value, kind) for value, kind in secrets.items() if not (theirs and kind == "words")]
        found += leaks(str(path.relative_to(home)), path.read_bytes(), wanted)
    return found


def in_processes(bridge: Bridge, secrets: Found) -> list[str]:
    """Command lines of all; environments of all but the supervisor, to which the operator gave the key by one."""
    found: list[str] = []
    for process in (psutil.Process(bridge.pid), *bridge.tree()):
        name = f"{process.pid} {' '.join(process.cmdline())[:60]}"
        found += leaks(f"argv of {name}", "\0".join(process.cmdline()), secrets.items())
        own = bridge.pid == process.pid
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
        except PermissionError:  # as an ordinary user, which is as it should be
            continue
        wanted = [(value, kind) for value, kind in secrets.items() if not (own and kind == "api key")]
        found += leaks(f"environment of {name}", environ, wanted)
    return found


def in_memory(pid: int, secrets: Iterable[tuple[str, str]]) -> list[str]:
    """Every readable private page."""
    found: list[str] = []
    wanted = list(secrets)
    keep = max(len(value) for value, _ in wanted)
    maps = Path(f"/proc/{pid}/maps").read_text()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps.splitlines():
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if match is None or "[v" in line:
                continue
            at, end = (int(number, 16) for number in match.groups())
            tail = b""
            memory.seek(at)
            while at < end:
                try:
                    data = memory.read(min(LEAKS_READ_BYTES, end - at))
                except OSError:
                    break
                if not data:
                    break
                found += leaks(f"memory of {pid}", tail + data, wanted)
                tail = data[-keep:]
                at += len(data)
    return found


def shown(bridge: Bridge) -> Iterator[tuple[str, str]]:
    for call in ("status", "status --json", "accounts --json", "doctor", "doctor --json --probe", ""):
        done = bridge.ctl(*call.split(), check=False)
        yield f"bridge-ctl {call}", done.stdout + done.stderr


def trouble(wechat: SimulatedWeChat, s: Stage) -> None:
    """Every kind of bad answer, some of which say the token back to us."""
    token, number = token_of(s.bridge.home), 0
    for path in ("getupdates", "sendmessage"):
        for name, parameters in (
            ("http_status", {"status": 500, "body": f"no such session: {token} {WORDS}"}),
            ("fixed_answer", {"body": {"ret": -5, "errmsg": f"unknown token {token}"}}),
            ("truncated_json", {}),
            ("cut_body", {}),
        ):
            wechat.set_fault(name, path=path, times=1, **parameters)
            number += 1
            s.say(s.me, f"SAY {WORDS} {number}")
    s.say(s.me, "SAY it is over")
    wechat.clear_faults()
    s.hears(s.me, "it is over")


@pytest.mark.timeout(180)
def test_b060_no_secret_and_no_word_of_a_peer_leaves_its_place_in_a_whole_life_with_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CANARY_API_KEY", API_KEY)
    agent = (
        FAKE_AGENT + 'model = "openai:gpt-canary"\nbase_url = "http://127.0.0.1:9"\napi_key_env = "CANARY_API_KEY"\n'
    )
    with (
        SimulatedWeChat(hold_s=1.0) as wechat,
        Stage(wechat, agent=agent, guests=1, wechat_keys=f'proxy = "http://me:{PASSWORD}@127.0.0.1:9"') as s,
    ):
        bridge, log = s.bridge, list[str]()
        s.begin()
        first_token = token_of(bridge.home)
        s.say(s.me, f"SAY {WORDS}")
        s.say(s.guests[0], f"SAY {WORDS}")
        s.answers(s.me, 1)
        s.answers(s.guests[0], 1)
        s.say(wechat.add_person(name=f"stranger {WORDS}"), WORDS)
        wechat.attach(s.me, "image", PNG, name=f"{WORDS}.png")
        s.answers(s.me, 2)
        trouble(wechat, s)
        s.say(s.me, "DIE")
        bridge.wait_log(r"message_closed .* state=failed")
        s.say(s.me, f"SAY {WORDS}\nUNTIL never")
        s.running(s.me)
        secrets = secrets_used(wechat, bridge.home) | {WORDS: "words"}

        assert set(secrets.values()) >= {
            "token",
            "context_token",
            "get_updates_buf",
            "qrcode",
            "typing_ticket",
            "words",
        }
        assert in_processes(bridge, secrets) == []
        assert no_core_dumps(bridge) == []
        if os.geteuid() == 0:  # nobody else may look
            keys = [(value, kind) for value, kind in secrets.items() if kind in ("token", "api key", "context_token")]
            assert in_memory(bridge.pid, keys), "what the supervisor has to hold is found there: the search finds"
            assert [one for pid in beside_the_supervisor(bridge) for one in in_memory(pid, keys)] == []

        log += bridge.lines
        bridge.kill()  # a turn is cut
        bridge.start()
        wechat.revoke(wechat.view().bots[-1]["bot"])
        bridge.wait_log(r"account_expired")
        for where, text in shown(bridge):
            assert leaks(where, text, (secrets | {first_token: "token"}).items()) == []
        s.sign_in(s.me)
        s.say(s.me, f"SAY {WORDS} again")
        s.hears(s.me, f"{WORDS} again")
        secrets |= secrets_used(wechat, bridge.home)
        log += bridge.lines
        bridge.stop()
        log += bridge.lines

        assert leaks("the log", "\n".join(log), secrets.items()) == []
        in_the_background(s, secrets)
        assert in_files(bridge.home, secrets) == []
        assert not list(bridge.home.rglob("core*"))


def beside_the_supervisor(bridge: Bridge) -> list[int]:
    """All but it and its gateway, which is there to hold API keys."""
    return [one.pid for one in bridge.tree() if "supervisor.gateway" not in " ".join(one.cmdline())]


def no_core_dumps(bridge: Bridge) -> list[str]:
    """Processes that would leave one."""
    limits = {pid: Path(f"/proc/{pid}/limits").read_text() for pid in (bridge.pid, *(one.pid for one in bridge.tree()))}
    return [f"{pid}" for pid, text in limits.items() if not re.search(r"Max core file size +0 +0 ", text)]


def in_the_background(s: Stage, secrets: Found) -> None:
    """One more life, whose log is a file."""
    bridge = s.bridge
    bridge.start("--detach", wait=False)
    assert bridge.process is not None
    assert bridge.process.wait(DEADLINE_S) == 0
    s.say(s.me, f"SAY {WORDS} in the background")
    s.hears(s.me, f"{WORDS} in the background")
    pid = bridge.status()["pid"]
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    bridge.ctl("shutdown")
    _, alive = psutil.wait_procs(tree, timeout=DEADLINE_S)
    assert alive == []
    text = (bridge.home / "bridge.log").read_text(encoding="utf-8")
    assert "bridge_stopped" in text
    assert leaks("bridge.log", text, secrets.items()) == []


def test_b060_a_proxys_password_and_address_stay_out_of_a_login_that_fails_on_it(tmp_path: Path) -> None:
    with Bridge(
        tmp_path / "home",
        base_url="https://wechat.invalid",
        cdn_url="https://wechat.invalid/c2c",
        wechat=f'proxy = "http://me:{PASSWORD}@127.0.0.1:9"\ntrusted_hosts = ["wechat.invalid"]\n',
    ) as bridge:
        bridge.start()

        login = bridge.ctl("login", check=False)
        told = [login.stdout, login.stderr, bridge.ctl("doctor", check=False).stdout, *bridge.lines]
        bridge.stop()

        assert login.returncode == 1
        assert "127.0.0.1:9" in login.stderr, "whom it could not reach is said"
        assert PASSWORD not in "\n".join([*told, *bridge.lines])


def test_b060_a_wrong_setting_is_complained_about_without_its_secret(tmp_path: Path) -> None:
    with Bridge(tmp_path / "home", base_url="http://127.0.0.1:9", cdn_url="http://127.0.0.1:9") as bridge:
        for line in (f'[wechat]\nproxy = ["{PASSWORD}"]\n', f'[agent]\napi_key_env = "{PASSWORD} x"\n'):
            bridge.configure(line)
            bridge.start(wait=False)
            assert bridge.process is not None
            assert bridge.process.wait(DEADLINE_S) == 2
            assert PASSWORD not in "\n".join(bridge.lines)
