"""What a peer's next worker may do: its folders, its plan and its grant, made from settings, journal and role.

The folders exist and belong to whom they must before a plan names them. Nothing secret goes into a plan.
"""

import os
import pwd
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.agents import HOSTS, RULE_HOSTS, tools_of
from protocol.content import Access, Role
from protocol.errors import BridgeError
from protocol.ids import Generation, LeaseKey, PeerKey
from protocol.spec import NetworkMode, WorkerPlan
from protocol.to_worker import AgentSpec, Grant
from supervisor.config import Workers
from supervisor.contract import SessionFacts, contract
from supervisor.core.admission import PeerPolicy
from supervisor.gatekeeper import Admission
from supervisor.home import Home
from supervisor.isolation import NO_WAY, Isolation, plan_for, resolved, search_path
from supervisor.peers import PeerBook
from supervisor.store import Journal, Store


class GrantRefused(BridgeError):
    """This peer cannot be served as the settings stand; one line for the operator."""


class NotIsolated(GrantRefused):
    """This machine's isolation is too weak for anybody but the operator's own peer."""


class AdmitsToGateway(Protocol):
    """Gives a worker its token (gatekeeper.py)."""

    def admit(
        self, key: LeaseKey, policy: PeerPolicy, network: NetworkMode, *, limit: Callable[[], int]
    ) -> Admission: ...


@dataclass(frozen=True, slots=True)
class Folders:
    session: Path
    workspace: Path
    media: Path


class Grants:
    def __init__(
        self, home: Home, book: PeerBook, journal: Journal, isolation: Isolation, gatekeeper: AdmitsToGateway
    ) -> None:
        self._home = home
        self._book = book
        self._journal = journal
        self._isolation = isolation
        self._gatekeeper = gatekeeper
        # A journal that was lost has forgotten whose uids these are; nobody else may get them.
        self._uid_floor = max((_owner(folder) or 0 for folder in home.sessions.glob("*")), default=0) + 1

    async def launch(self, who: PeerKey, generation: Generation) -> tuple[WorkerPlan, Grant]:
        """raises GrantRefused, NotIsolated"""
        if not self._isolation.may_serve(self._book.role(who)):
            raise NotIsolated(
                f"isolation is {self._isolation.level.value} here: bridge-ctl status names what is missing"
            )
        policy = self._book.policy(who)
        settings = self._book.settings
        record = await self._book.refresh(who)
        uid = await self._uid(who, policy)
        folders = self._folders(who, policy, uid)
        network = network_for(policy)
        if self._isolation.shuts_out(network):
            raise NotIsolated(NO_WAY)
        admission = self._admission(who, generation, policy, network)
        plan = plan_for(
            access=policy.access,
            network=network,
            mode=settings.workers.isolation,
            session_dir=folders.session,
            workspace=folders.workspace,
            media_dir=folders.media,
            read=policy.agent.read,
            write=policy.agent.write,
            command=policy.agent.program,
            home=self._home.path,
            workers=settings.workers,
            uid=uid,
            layers=self._isolation.layers,
            gateway_port=admission.port if admission is not None else 0,
            own_port=HOSTS[policy.agent.host].own_port,
            cgroup=self._isolation.cgroup,
        )
        grant = Grant(
            session_dir=str(folders.session),
            workspace=str(folders.workspace),
            media_dir=str(folders.media),
            session_id=record.session_id,
            access=policy.access,
            agent=AgentSpec(
                host=policy.agent.host,
                command=resolved(policy.agent.program),
                model=policy.agent.model,
                env=search_path(policy.agent.program) | dict(policy.agent.env),
                thinking=policy.agent.thinking,
                approvals=policy.agent.approvals,
            ),
            contract=contract(SessionFacts(policy.access, network, str(folders.media))),
            tools=policy.tools,
            sends=has_tool(policy, "send"),
            stop_grace_s=settings.workers.stop_grace_s,
            gateway_url=admission.url if admission is not None else "",
            token=admission.token if admission is not None else "",
            proxy_url=admission.proxy_url if admission is not None else "",
            rules=await self._rules(who, policy),
        )
        return plan, grant

    def lacking(self, who: PeerKey) -> str:
        """The setting without which this peer's agent cannot be opened, by its name."""
        agent = self._book.policy(who).agent
        if HOSTS[agent.host].needs_command or (agent.program and shutil.which(agent.program[0]) is None):
            return "agent.command"
        return agent.key_variable or "agent.api_key_env" if agent.model else "agent.model"

    async def media_folder(self, who: PeerKey) -> Path:
        """Where this peer's attachments are kept, readable by its worker. raises GrantRefused"""
        folder = self._home.media_dir(*who)
        _own_folder(folder, await self._uid(who, self._book.policy(who)))
        return folder

    async def _rules(self, who: PeerKey, policy: PeerPolicy) -> tuple[str, ...]:
        """ "Always" answers count only where they could be given: a peer that is a guest now is asked again."""
        if policy.role is not Role.OPERATOR or policy.agent.host not in RULE_HOSTS:
            return ()
        return tuple(record.rule for record in await self._journal.do(Store.rules, who))

    def _admission(
        self, who: PeerKey, generation: Generation, policy: PeerPolicy, network: NetworkMode
    ) -> Admission | None:
        """None: this host talks to no model. At `full` models are reached through the gateway too: the key stays there."""
        if not HOSTS[policy.agent.host].talks_to_model:
            return None
        try:
            return self._gatekeeper.admit(
                LeaseKey(who.account, who.peer, generation),
                policy,
                network,
                limit=lambda: self._book.policy(who).max_tokens_per_day,
            )
        except OSError as error:
            raise GrantRefused(f"the model gateway cannot be started: {error.strerror}") from error

    async def _uid(self, who: PeerKey, policy: PeerPolicy) -> int | None:
        """As root every peer has a uid for life; the operator's own workspace is served as its owner."""
        if os.geteuid() != 0 or policy.access is Access.FULL:
            return None
        if self._is_operators_workspace(who, policy):
            owner = os.stat(policy.agent.workspace).st_uid
            if owner == 0:
                raise GrantRefused(
                    f"{policy.agent.workspace}: belongs to root, which no worker may be; give it to another user"
                )
            return owner
        base = self._book.settings.workers.uid_base
        had = _owner(self._home.session_dir(*who))
        if had is not None and (had < base or _is_somebodys(had)):
            had = None
        return await self._journal.do(Store.uid_for, who, max(base, self._uid_floor), had=had)

    def _folders(self, who: PeerKey, policy: PeerPolicy, uid: int | None) -> Folders:
        own = Folders(
            session=self._home.session_dir(*who),
            workspace=self._home.workspace_dir(*who),
            media=self._home.media_dir(*who),
        )
        for folder in (own.session, own.workspace, own.media):
            _own_folder(folder, uid)
        if self._is_operators_workspace(who, policy):
            workspace = Path(policy.agent.workspace)
            if not workspace.is_dir():
                raise GrantRefused(f"{workspace}: [agent] workspace is no folder")
            return Folders(own.session, workspace, own.media)
        return own

    def _is_operators_workspace(self, who: PeerKey, policy: PeerPolicy) -> bool:
        return bool(policy.agent.workspace) and self._book.role(who) is Role.OPERATOR


def terms(policy: PeerPolicy, workers: Workers) -> tuple[object, ...]:
    """All of the settings that a worker is bound to when it starts: one that runs under others has to be replaced."""
    limits = (workers.memory_mb, workers.processes, workers.file_mb, workers.open_files)
    return (
        policy.role,
        policy.access,
        policy.tools,
        policy.network,
        policy.max_tokens_per_day > 0,
        policy.agent,
        workers.isolation,
        workers.stop_grace_s,
        limits,
    )


def has_tool(policy: PeerPolicy, tool: str) -> bool:
    """Is this one of the tools that a peer's access level and role have and its settings leave?"""
    narrowed = None if policy.tools is None else frozenset(policy.tools)
    return tool in tools_of(policy.access, policy.role is Role.OPERATOR, narrowed)


def network_for(policy: PeerPolicy) -> NetworkMode:
    """What a worker under this policy may reach."""
    if policy.access is Access.FULL:
        return NetworkMode.OPEN
    if not HOSTS[policy.agent.host].talks_to_model:
        return NetworkMode.NONE
    return NetworkMode.PROXY if policy.network and policy.access is Access.WORKSPACE else NetworkMode.GATEWAY


def _owner(folder: Path) -> int | None:
    """None when it does not exist."""
    try:
        return folder.lstat().st_uid
    except OSError:
        return None


def _is_somebodys(uid: int) -> bool:
    """Of an account of this machine, as whose workspace the folder was once served."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _own_folder(folder: Path, uid: int | None) -> None:
    """Mode 0700 and owned by the peer. A link in its place is refused: a worker may have put it there."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise GrantRefused(f"{folder}: is no folder")
        if uid is not None and found.st_uid != uid:
            os.chown(folder, uid, uid, follow_symlinks=False)
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError as error:
        raise GrantRefused(f"{folder}: cannot be made: {error.strerror}") from error
