"""Through the whole bridge: what one peer's agent finds when it looks for what is another's, the operator's or ours."""

import os
import pwd
from pathlib import Path

import pytest

from protocol.ids import AccountId, PeerId
from supervisor.home import Home
from tests.fakes.stage import FAKE_AGENT, Stage
from tests.fakes.wechat import SimulatedWeChat


def ask(s: Stage, person: str, path: Path) -> str:
    """What this person's agent says of reading a file."""
    before = len(s.wechat.view().texts(person))
    s.say(person, f"READ {path}")
    return s.answers(person, before + 1)[-1]


@pytest.mark.parametrize("access", ["chat", "readonly", "workspace"])
def test_a_guests_agent_reads_nothing_of_the_operators_of_another_guests_or_of_the_bridges(access: str) -> None:
    with (
        SimulatedWeChat() as wechat,
        Stage(wechat, agent=FAKE_AGENT, guests=2, settings=f'[guests]\naccess = "{access}"\n') as s,
    ):
        guest, other = s.guests
        workspace = s.folder / "projects"
        workspace.mkdir(mode=0o700)
        (workspace / "plan").write_text("the operator's")
        if os.geteuid() == 0:  # a worker is served as the owner of the operator's workspace, who may not be root
            nobody = pwd.getpwnam("nobody")
            for path in (workspace, workspace / "plan"):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
            s.folder.chmod(0o711)
        s.bridge.configure(
            (s.bridge.home / "bridge.toml")
            .read_text(encoding="utf-8")
            .replace("[agent]", f'[agent]\nworkspace = "{workspace}"')
        )
        s.begin()
        for person in (s.me, guest, other):
            s.say(person, "SAY hello")
            s.answers(person, 1)
        home, who = Home(s.bridge.home), (AccountId(s.me), PeerId(other))
        (home.session_dir(*who) / "kept").write_text("another guest's")
        (home.workspace_dir(*who) / "kept").write_text("another guest's")
        theirs = [
            workspace / "plan",
            home.session_dir(*who) / "kept",
            home.workspace_dir(*who) / "kept",
            home.credentials,
            home.journal,
            home.bridge_toml,
            home.run / "ctl-client.key",
        ]

        said = {path: ask(s, guest, path) for path in theirs}

        assert all(path.exists() for path in theirs)
        assert {path: word for path, word in said.items() if not word.startswith("refused: ")} == {}
        assert ask(s, s.me, workspace / "plan") == "worked", "the operator's own agent reads it"
        assert ask(s, s.me, home.credentials).startswith("refused: ")
