"""A worker's plan and grant, made with a real journal and home."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.content import Access, Role
from protocol.ids import AccountId, Generation, LeaseKey, PeerId, PeerKey
from protocol.spec import Layer, NetworkMode, WorkerPlan
from protocol.to_worker import Grant
from supervisor.config import Settings, Workers
from supervisor.core.admission import PeerPolicy
from supervisor.core.policy import Agent, PeerOverrides
from supervisor.gatekeeper import Admission
from supervisor.grants import GrantRefused, Grants, NotIsolated
from supervisor.home import Home
from supervisor.isolation import ALWAYS, Isolation
from supervisor.peers import PeerBook
from supervisor.store import AccountRecord, AddRule, Journal, Store

OWNER = AccountId("owner@im.wechat")
ME, GUEST, OTHER = (PeerKey(OWNER, PeerId(f"{name}@im.wechat")) for name in ("owner", "guest", "other"))
BASE = 310_000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives each peer a uid of its own")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    return home


class Gate:
    """Admits everybody; keys: whom, with which network and limit."""

    def __init__(self) -> None:
        self.admitted: list[tuple[LeaseKey, NetworkMode, int]] = []

    def admit(self, key: LeaseKey, policy: PeerPolicy, network: NetworkMode, *, limit: Callable[[], int]) -> Admission:
        self.admitted.append((key, network, limit()))
        return Admission(4711, "token", network is NetworkMode.PROXY)


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
        grants = Grants(home, PeerBook(used, journal, lambda account: record), journal, isolation, Gate())
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


TALKS = Agent(host="acp", command=("/bin/true",))


def granted(
    home: Home, rules: PeerOverrides, *, agent: Agent = TALKS, reaches: NetworkMode = NetworkMode.GATEWAY
) -> tuple[WorkerPlan, Grant, Gate]:
    """The owner's plan and grant, and whom the gateway admitted."""

    async def script() -> tuple[WorkerPlan, Grant, Gate]:
        journal, _ = await Journal.open(home.journal)
        record = AccountRecord(OWNER, "bot-1@im.bot", "default", Role.OPERATOR, False, False, 0.0)
        settings = Settings(workers=Workers(uid_base=BASE), agent=agent, peers={str(ME.peer): rules})
        isolation = Isolation(settings.workers)
        isolation.learn([layer.value for layer in (*ALWAYS, Layer.NET_NS)], [], reaches)
        gate = Gate()
        grants = Grants(home, PeerBook(settings, journal, lambda account: record), journal, isolation, gate)
        try:
            return *(await grants.launch(ME, Generation(3))), gate
        finally:
            await journal.close()

    return asyncio.run(script())


def test_a_host_with_a_model_gets_the_gateway_a_token_and_a_network_of_its_own(home: Home) -> None:
    plan, grant, gate = granted(home, PeerOverrides(max_tokens_per_day=5000))

    assert (plan.network, plan.gateway_port) == (NetworkMode.GATEWAY, 4711)
    assert Layer.NET_NS in plan.wanted and Layer.NET_NS in plan.required
    assert (grant.gateway_url, grant.token, grant.proxy_url) == ("http://127.0.0.1:4711", "token", "")
    assert gate.admitted == [(LeaseKey(*ME, Generation(3)), NetworkMode.GATEWAY, 5000)]


def test_network_adds_the_proxy_at_workspace_level_alone(home: Home) -> None:
    plan, grant, _ = granted(home, PeerOverrides(network=True))
    assert plan.network is NetworkMode.PROXY and grant.proxy_url == "http://worker:token@127.0.0.1:4711"

    plan, grant, _ = granted(home, PeerOverrides(network=True, access=Access.READONLY))
    assert plan.network is NetworkMode.GATEWAY and grant.proxy_url == ""


def test_send_is_granted_to_the_operators_own_session_unless_a_list_of_tools_takes_it_away(home: Home) -> None:
    for rules, sends in (
        (PeerOverrides(), True),
        (PeerOverrides(tools=("read", "send")), True),
        (PeerOverrides(tools=("read",)), False),
        (PeerOverrides(tools=()), False),
        (PeerOverrides(access=Access.CHAT), False),
    ):
        assert granted(home, rules)[1].sends is sends, rules


def test_a_host_without_a_model_gets_nothing_of_the_gateway(home: Home) -> None:
    plan, grant, gate = granted(home, PeerOverrides(network=True), agent=Agent(host="echo"))

    assert (plan.network, plan.gateway_port) == (NetworkMode.NONE, 0)
    assert Layer.NET_NS not in plan.wanted
    assert (grant.gateway_url, grant.token, grant.proxy_url, gate.admitted) == ("", "", "", [])


def test_full_reaches_models_through_the_gateway_too_so_that_the_key_stays_there(home: Home) -> None:
    plan, grant, _ = granted(home, PeerOverrides(access=Access.FULL))

    assert plan.network is NetworkMode.OPEN
    assert grant.gateway_url == "http://127.0.0.1:4711" and grant.proxy_url == ""


def test_where_no_way_leads_to_the_gateway_alone_such_a_host_does_not_start_and_the_remedy_is_named(home: Home) -> None:
    with pytest.raises(NotIsolated, match="user namespaces"):
        granted(home, PeerOverrides(), reaches=NetworkMode.NONE)

    granted(home, PeerOverrides(), reaches=NetworkMode.NONE, agent=Agent(host="echo"))


def test_always_answers_are_granted_to_the_operators_peer_on_a_host_that_keeps_them(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rules_of(who: PeerKey, agent: Agent) -> tuple[str, ...]:
        async def script() -> tuple[str, ...]:
            journal, _ = await Journal.open(home.journal)
            await journal.do(Store.apply, [AddRule(ME, "bash ls", 1.0), AddRule(GUEST, "bash id", 1.0)])
            record = AccountRecord(OWNER, "bot-1@im.bot", "default", Role.OPERATOR, False, False, 0.0)
            settings = Settings(workers=Workers(uid_base=BASE), agent=agent)
            isolation = Isolation(settings.workers)
            isolation.learn([layer.value for layer in ALWAYS], [])
            grants = Grants(home, PeerBook(settings, journal, lambda account: record), journal, isolation, Gate())
            try:
                return (await grants.launch(who, Generation(1)))[1].rules
            finally:
                await journal.close()

        return asyncio.run(script())

    assert rules_of(ME, TALKS) == ()
    monkeypatch.setattr("supervisor.grants.RULE_HOSTS", frozenset({"acp"}))
    assert rules_of(ME, TALKS) == ("bash ls",)
    assert rules_of(GUEST, TALKS) == ()
