"""What the promises are played on: a simulated WeChat, its people, and a real bridge with an account signed in.

Peers other than the owner write to the owner's bot; their ids are random, since account locks are one folder for all
tests of a user. With `agent=FAKE_AGENT` the peers' words are a script for tests/fakes/acp_agent.py.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from protocol.ids import AccountId, PeerId
from supervisor.home import Home
from tests.fakes.bridge import DEADLINE_S, ROOT, Bridge
from tests.fakes.wechat import Said, SimulatedWeChat

ECHO = ""
FAKE_AGENT = (
    f'[agent]\nhost = "acp"\ncommand = ["{sys.executable}", "{ROOT}/tests/fakes/acp_agent.py"]\nread = ["{ROOT}"]\n'
)


class Stage:
    """me: the owner of the first account. guests: people whom the settings admit.

    settings, wechat_keys   more of bridge.toml: whole tables, and keys of [wechat]
    """

    def __init__(
        self,
        wechat: SimulatedWeChat,
        *,
        agent: str = ECHO,
        guests: int = 0,
        settings: str = "",
        wechat_keys: str = "",
        admission: str = "",
        home: Path | None = None,
    ) -> None:
        self.wechat = wechat
        self.me = wechat.add_person(name="me")
        self.guests = [wechat.add_person(name=f"guest {number}") for number in range(guests)]
        # Short, since sockets lie below it, and traversable by workers that have a uid of their own.
        self.folder = Path(tempfile.mkdtemp(prefix="bridge-"))
        allowed = ", ".join(f'"{guest}"' for guest in self.guests)
        self.settings = f"{agent}\n[admission]\nallowed_peers = [{allowed}]\n{admission}\n{settings}"
        self.bridge = Bridge(
            home or self.folder / "home",
            base_url=wechat.base_url,
            cdn_url=wechat.cdn_url,
            settings=self.settings,
            wechat=wechat_keys,
        )
        self._clients: list[subprocess.Popen[str]] = []

    def begin(self) -> Self:
        """Start the bridge and sign `me` in."""
        self.bridge.start()
        self.sign_in(self.me, "--name", "default")
        return self

    def sign_in(self, person: str, *flags: str) -> str:
        """Scan with this person's phone; the new bot's id."""
        client = self.bridge.popen_ctl("login", *flags)
        self._clients.append(client)
        bot = self.wechat.scan(person)
        out, err = client.communicate(timeout=DEADLINE_S)
        assert client.returncode == 0, out + err
        return bot

    def say(self, person: str, *texts: str) -> None:
        for text in texts:
            self.wechat.say(person, text)

    def say_at_once(self, *said: tuple[str, str], **parts: Any) -> None:
        """Person and text of several messages, handed over in one batch."""
        self.wechat.say_together([(person, {"text": text, **parts}) for person, text in said])

    def answers(self, person: str, count: int) -> list[str]:
        """What the bot has said to this person, once it is this much."""
        return self.wechat.wait_for(lambda view: len(view.texts(person)) >= count, DEADLINE_S).texts(person)

    def hears(self, person: str, text: str) -> list[str]:
        """Wait until this bubble is on the phone; all that the bot has said by then."""
        return self.wechat.wait_for(lambda view: text in view.texts(person), DEADLINE_S).texts(person)

    def answer_to(self, person: str, text: str) -> Said:
        """Say something to an echoing bridge and wait for it to come back: all that came before is over by then."""
        said = self.wechat.say(person, text)
        self.wechat.wait_for(lambda view: text in view.texts(person), DEADLINE_S)
        return said

    def answer_to_is(self, person: str, text: str, answer: str) -> None:
        """Say something, and wait for exactly this bubble."""
        self.wechat.say(person, text)
        self.hears(person, answer)

    def running(self, person: str) -> None:
        """Wait until this person's turn runs."""
        self.bridge.wait_status(lambda status: _state(status, person) == "running")

    def state(self, person: str) -> str:
        return _state(self.bridge.status(), person)

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.bridge.status()["counters"]
        return counters

    def workspace(self, person: str, account: str = "") -> Path:
        return Home(self.bridge.home).workspace_dir(AccountId(account or self.me), PeerId(person))

    def open_gate(self, person: str, name: str) -> None:
        """Let a turn go on that waits with UNTIL."""
        (self.workspace(person) / name).touch()

    def worker(self, person: str) -> psutil.Process:
        """The process that serves this person: the nanny's child."""
        return psutil.Process(self.bridge.peer(person)["worker"]["pid"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.bridge.__exit__(kind, error, trace)
        finally:
            for client in self._clients:
                if client.poll() is None:
                    client.kill()
                client.wait(DEADLINE_S)
                for pipe in (client.stdin, client.stdout, client.stderr):
                    if pipe is not None:
                        with contextlib.suppress(OSError):
                            pipe.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def _state(status: Any, person: str) -> str:
    return next((str(row["state"]) for row in status["peers"] if row["peer"] == person), "unknown")
