"""A worker's plan and grant, made with a real journal and home."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from protocol.content import Role
from protocol.ids import AccountId, Generation, PeerId, PeerKey
from supervisor.config import Settings, Workers
from supervisor.core.policy import Agent
from supervisor.grants import GrantRefused, Grants, NotIsolated
from supervisor.home import Home
from supervisor.isolation import ALWAYS, Isolation
from supervisor.peers import PeerBook
from supervisor.store import AccountRecord, Journal

OWNER = AccountId("owner@im.wechat")
ME, GUEST, OTHER = (PeerKey(OWNER, PeerId(f"{name}@im.wechat")) for name in ("owner", "guest", "other"))
BASE = 310_000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives each peer a uid of its own")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    return home


def launched(
    home: Home, *peers: PeerKey, settings: Settings | None = None, layers: tuple[Any, ...] = ALWAYS
) -> list[int | None]:
    """The uid of each peer's plan, in one run of the bridge."""

    async def script() -> list[int | None]:
        journal, _ = await Journal.open(home.journal)
        record = AccountRecord(OWNER, "bot-1@im.bot", "default", Role.OPERATOR, False, False, 0.0)
        used = settings or Settings(workers=Workers(uid_base=BASE))
        isolation = Isolation(used.workers)
        isolation.learn([layer.value for layer in layers], [])
        grants = Grants(home, PeerBook(used, journal, lambda account: record), journal, isolation)
        try:
            return [(await grants.launch(who, Generation(1)))[0].uid for who in peers]
        finally:
            await journal.close()

    return asyncio.run(script())


@as_root
def test_a_peer_keeps_its_uid_over_restarts_and_nobody_else_gets_it(home: Home) -> None:
    first = launched(home, ME, GUEST)
    second = launched(home, OTHER, GUEST, ME)

    assert first == [BASE, BASE + 1]
    assert second == [BASE + 2, BASE + 1, BASE]


@as_root
def test_after_a_lost_journal_no_uid_goes_to_another_peer_and_each_keeps_its_own_folders(home: Home) -> None:
    launched(home, ME, GUEST)
    home.journal.unlink()

    fresh, guest, me = launched(home, OTHER, GUEST, ME)

    assert (me, guest) == (BASE, BASE + 1)
    assert fresh == BASE + 2
    assert home.session_dir(*OTHER).stat().st_uid == fresh


@as_root
def test_a_folder_that_belonged_to_an_account_of_this_machine_gives_nobody_that_uid(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(home, ME)
    home.journal.unlink()
    monkeypatch.setattr("pwd.getpwuid", lambda uid: uid)  # as if a person had it

    assert launched(home, ME) == [BASE + 1]


@as_root
def test_a_workspace_of_roots_is_refused_and_one_of_a_user_is_served_as_its_owner(home: Home, tmp_path: Path) -> None:
    workspace = tmp_path / "notes"
    workspace.mkdir()
    settings = Settings(agent=Agent(workspace=str(workspace)))
    with pytest.raises(GrantRefused, match="belongs to root"):
        launched(home, ME, settings=settings)

    os.chown(workspace, 1234, 1234)

    assert launched(home, ME, settings=settings) == [1234]


def test_b025_at_weak_isolation_only_the_operators_peer_is_served(home: Home) -> None:
    assert len(launched(home, ME, layers=())) == 1
    with pytest.raises(NotIsolated, match="isolation is weak"):
        launched(home, GUEST, layers=())


def test_a_link_in_place_of_a_peers_folder_is_refused(home: Home, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    home.workspace_dir(*ME).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(GrantRefused, match="is no folder"):
        launched(home, ME)
