"""The control socket's verbs: one handler for each row of protocol.ctl.VERBS.

A handler answers with replies, the last of them final; it decides nothing that a core decides. ctlserver.py carries the
frames, console/ draws the words.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protocol import ctl
from protocol.content import Role
from protocol.errors import BridgeError
from protocol.ids import AccountId, MessageId, PeerId, PeerKey, label
from supervisor import audit
from supervisor.accounts import Accounts, AccountState
from supervisor.clock import Clock
from supervisor.config import ConfigError, Settings, waiting_for_a_start
from supervisor.conversations import Conversations
from supervisor.core import metrics, trace
from supervisor.core.admission import sanitise
from supervisor.core.naming import Ambiguous, Unknown, find_account, find_peer
from supervisor.core.policy import PeerOverrides
from supervisor.core.scheduler import GrantChanged, Scheduler, StopAsked
from supervisor.ctlserver import Conversation
from supervisor.delivery import Delivery, FileFate
from supervisor.dialogs import DialogLoop
from supervisor.doctor import Doctor
from supervisor.events import EventLog
from supervisor.home import Home
from supervisor.outgoing import Outgoing, is_picture
from supervisor.peers import PeerBook
from supervisor.peersfile import PeersFile
from supervisor.proactive import closed
from supervisor.scheduler import SchedulerLoop
from supervisor.status import StatusBoard
from supervisor.store import EventRecord, ForgetRefused, Journal, RevokeRule, Store

log = logging.getLogger(__name__)

HISTORY_MOST = 20
SEND_CHARS = 4000
SEND_PATH_CHARS = 4096
_NOT_SENT = {
    FileFate.NOT_SENT: "the upload failed",
    FileFate.DROPPED: "WeChat does not take it now",
    FileFate.WAITS: "WeChat does not take it now",
}
LOOKING = (ctl.Events, ctl.Audit)  # verbs that end with Done and change nothing
EVENTS_SHOWN = 10  # before those that are followed


class Refusal(BridgeError):
    """A verb that cannot be carried out: its line goes to the client. Exit code 1, or 2 for wrong usage."""

    def __init__(self, line: str, *, code: int = 1) -> None:
        super().__init__(line)
        self.code = code


@dataclass(frozen=True, slots=True)
class Control:
    """Everything the verbs act on. apply_settings: makes new settings count everywhere, at once."""

    accounts: Accounts
    board: StatusBoard
    book: PeerBook
    conversations: Conversations
    delivery: Delivery
    dialogs: DialogLoop
    events: EventLog
    home: Home
    journal: Journal
    loop: SchedulerLoop
    outgoing: Outgoing
    peers_file: PeersFile
    clock: Clock
    doctor: Doctor
    reload_settings: Callable[[], Settings]
    apply_settings: Callable[[Settings], None]
    shut_down: Callable[[], None]
    until_gone: Callable[[PeerKey], Awaitable[None]]

    async def handle(self, request: ctl.CtlRequest, conversation: Conversation) -> None:
        """One request, until its final reply."""
        try:
            handler = HANDLERS[type(request)]
        except KeyError:
            conversation.reply(ctl.Failed(2, "no such verb here"))
            return
        try:
            await handler(self, request, conversation)
            if isinstance(conversation.last, ctl.Done) and not isinstance(request, LOOKING):
                about = getattr(request, "peer", "") or getattr(request, "account", "")
                log.info("verb_obeyed verb=%s about=%s", type(request).__name__.lower(), about)
        except Refusal as refusal:
            conversation.reply(ctl.Failed(refusal.code, str(refusal)))
        except BridgeError as error:
            conversation.reply(ctl.Failed(1, str(error)))

    # -- who is meant

    def _account(self, text: str) -> Any:
        found = find_account(text, self.accounts.names())
        match found:
            case Unknown():
                raise Refusal(f"no account is called {text}" if text else "no account is signed in: bridge-ctl login")
            case Ambiguous(_, candidates):
                raise Refusal(f"which account? {', '.join(candidates)}", code=2)
            case account:
                return account.account

    def _peer(self, text: str, among: tuple[PeerKey, ...] | None = None) -> PeerKey:
        found = find_peer(text, self.book.known() if among is None else among, self.accounts.names())
        match found:
            case Unknown():
                raise Refusal(f"no peer is called {text}")
            case Ambiguous(_, candidates):
                raise Refusal(f"which peer? {', '.join(candidates)}", code=2)
            case key:
                return key

    @property
    def _core(self) -> Scheduler:
        return self.loop.core

    # -- verbs

    async def _status(self, _request: ctl.Status, talk: Conversation) -> None:
        talk.reply(await self.board.status())

    async def _accounts(self, _request: ctl.Accounts, talk: Conversation) -> None:
        talk.reply(ctl.AccountsReply(self.accounts.rows()))

    async def _login(self, request: ctl.Login, talk: Conversation) -> None:
        line = await self.accounts.log_in(talk, name=request.name, role=request.role)
        talk.reply(ctl.Done([line]))

    async def _logout(self, request: ctl.Logout, talk: Conversation) -> None:
        account = self._account(request.account)
        if not request.yes:
            cut = [w for w in self._core.busy() if w.account == account]
            waiting = sum(self._core.waiting_of(w) for w in self._core.queued() if w.account == account)
            talk.reply(
                ctl.NeedsYes(
                    [
                        f"Forget the login of {self.accounts.called(account)}?",
                        f"{_count(len(cut), 'running turn')} will be cut and {_count(waiting, 'waiting message')} dropped;"
                        " conversations and media stay.",
                    ]
                )
            )
            return
        called = self.accounts.called(account)
        await self.conversations.end_account(account)
        await self.accounts.log_out(account)
        talk.reply(ctl.Done([f"{called}: logged out"]))

    async def _pause(self, request: ctl.Pause, talk: Conversation) -> None:
        account = self._account(request.account)
        already = self.accounts.state(account) is AccountState.PAUSED
        if not already:
            await self.accounts.pause(account)
            await self.dialogs.withdraw_account(account)
        talk.reply(ctl.Done([f"{self.accounts.called(account)}: {'already ' if already else ''}paused"]))

    async def _resume(self, request: ctl.Resume, talk: Conversation) -> None:
        account = self._account(request.account)
        called = self.accounts.called(account)
        state = self.accounts.state(account)
        if state in (AccountState.RUNNING, AccountState.STALE):
            talk.reply(ctl.Done([f"{called}: already running"]))
            return
        if state is AccountState.EXPIRED:
            raise Refusal(f"{called}: the login has expired: bridge-ctl login")
        await self.accounts.resume(account)
        talk.reply(ctl.Done([f"{called}: running"]))

    async def _stop(self, request: ctl.Stop, talk: Conversation) -> None:
        who = self._peer(request.peer)
        if who not in self._core.busy() and not self._core.waiting_of(who):
            talk.reply(ctl.Done([f"{label(who.peer)}: nothing was running"]))
            return
        stopped = asyncio.Event()
        self.loop.post(StopAsked(who), after=stopped.set)
        await stopped.wait()
        talk.reply(ctl.Done([f"{label(who.peer)}: stopped"]))

    async def _cancel(self, request: ctl.Cancel, talk: Conversation) -> None:
        who = self._peer(request.peer)
        withdrawn = await self.dialogs.withdraw(who)
        talk.reply(
            ctl.Done([f"{label(who.peer)}: {'the question is withdrawn' if withdrawn else 'nothing was being asked'}"])
        )

    async def _rules(self, request: ctl.Rules, talk: Conversation) -> None:
        peers = (self._peer(request.peer),) if request.peer else self.book.known()
        wall = self.clock.wall()
        talk.reply(
            ctl.RulesReply(
                [
                    ctl.RuleRow(
                        who.peer, self.accounts.bot_id(who.account), one.number, one.rule, max(0.0, wall - one.at)
                    )
                    for who in peers
                    for one in await self.journal.do(Store.rules, who)
                ]
            )
        )

    async def _revoke(self, request: ctl.Revoke, talk: Conversation) -> None:
        who = self._peer(request.peer)
        found = next((one for one in await self.journal.do(Store.rules, who) if one.number == request.rule), None)
        if found is None:
            raise Refusal(f"{label(who.peer)} has no rule {request.rule}: bridge-ctl rules {label(who.peer)}")
        revoked = asyncio.Event()
        # Its worker knows the rule: an idle one leaves now, a busy one after its turn.
        self.loop.post(GrantChanged(who), [RevokeRule(who, request.rule)], after=revoked.set)
        await revoked.wait()
        talk.reply(ctl.Done([f"{label(who.peer)}: asked again from the next turn on: {found.rule}"]))

    async def _reset(self, request: ctl.Reset, talk: Conversation) -> None:
        who = self._peer(request.peer)
        if not await self.conversations.fresh(who):
            raise Refusal(f"{label(who.peer)}: a turn is running: bridge-ctl stop {label(who.peer)} first")
        talk.reply(ctl.Done([f"{label(who.peer)}: the next message starts a fresh conversation"]))

    async def _history(self, request: ctl.History, talk: Conversation) -> None:
        who = self._peer(request.peer)
        if not 1 <= request.count <= HISTORY_MOST:
            raise Refusal(f"history shows 1 to {HISTORY_MOST} messages, not {request.count}", code=2)
        wall = self.clock.wall()
        rows = await self.journal.do(Store.history, who, request.count)
        lines = [ctl.HistoryLine("peer" if r.from_peer else "bot", r.text, max(0.0, wall - r.at), r.flag) for r in rows]
        talk.reply(ctl.HistoryReply(who.peer, lines))

    async def _allow(self, request: ctl.Allow, talk: Conversation) -> None:
        refused = [row.who for row in await self.journal.do(Store.refused)]
        if not request.peer:
            talk.reply(ctl.Offered(await self.board.refused()))
            return
        among = tuple(dict.fromkeys((*refused, *self.book.known())))
        who = self._peer(request.peer, among)
        entry = f"{who.account}/{who.peer}"
        overrides = PeerOverrides(admitted=True, tools=request.tools, access=request.access)
        settings = self.book.settings.with_stored_peers(self.peers_file.with_entry(entry, overrides))
        if not request.yes:
            policy = self.book.policy(who, settings)
            tools = "all of its access level" if policy.tools is None else ", ".join(policy.tools) or "none"
            talk.reply(
                ctl.NeedsYes(
                    [
                        f"Admit {who.peer} on {self.accounts.called(who.account)}?",
                        f"access {policy.access.value}, tools: {tools}; written to {self.peers_file.path}",
                    ]
                )
            )
            return
        self.peers_file.write(entry, overrides)
        self.apply_settings(settings)
        self.loop.post(GrantChanged(who), [ForgetRefused(who)])
        await self.book.refresh(who)
        talk.reply(ctl.Done([f"{who.peer}: admitted on {self.accounts.called(who.account)}"]))

    async def _deny(self, request: ctl.Deny, talk: Conversation) -> None:
        refused = [row.who for row in await self.journal.do(Store.refused)]
        who = self._peer(request.peer, tuple(dict.fromkeys((*self.book.known(), *refused))))
        if self.book.policy(who).owner:
            raise Refusal(f"{label(who.peer)} owns that account and is always admitted: bridge-ctl logout ends it")
        if not request.yes:
            talk.reply(ctl.NeedsYes([f"Refuse {who.peer} from now on, stop its turn and drop what waits?"]))
            return
        entry = f"{who.account}/{who.peer}"
        refusal = PeerOverrides(admitted=False)
        settings = self.book.settings.with_stored_peers(self.peers_file.with_entry(entry, refusal))
        self.peers_file.write(entry, refusal)
        self.apply_settings(settings)
        await self.conversations.remove(who)
        talk.reply(ctl.Done([f"{who.peer}: refused from now on"]))

    async def _forget(self, request: ctl.Forget, talk: Conversation) -> None:
        who = self._peer(request.peer)
        if self._core.turn_of(who) is not None:
            raise Refusal(f"{label(who.peer)}: a turn is running: bridge-ctl stop {label(who.peer)} first")
        if not request.yes:
            waiting = self._core.waiting_of(who)
            talk.reply(
                ctl.NeedsYes(
                    [
                        f"Forget {who.peer}: conversation, workspace, media and every text of it?",
                        f"{_count(waiting, 'waiting message')} will be dropped. Nothing of this can be had back.",
                    ]
                )
            )
            return
        folders = (self.home.session_dir(*who), self.home.workspace_dir(*who), self.home.media_dir(*who))
        if not await self.conversations.forget(who, self.until_gone, folders):
            raise Refusal(f"{label(who.peer)}: a turn has begun meanwhile: bridge-ctl stop {label(who.peer)} first")
        talk.reply(
            ctl.Done([f"{who.peer}: forgotten; they may still write: bridge-ctl deny {label(who.peer)} ends that"])
        )

    async def _send(self, request: ctl.Send, talk: Conversation) -> None:
        if bool(request.image) == bool(request.text):
            raise Refusal("either a text or --image FILE", code=2)
        who = self._owner(request.account)
        name = self.accounts.called(who.account)
        if request.text and self._core.turn_of(who) is not None:
            raise Refusal(f"{name}: a turn of its owner runs, whose answer a text would mix with; a picture may go")
        if why := closed(who, self.book, self.delivery, self.clock):
            raise Refusal(f"{name}: {why}")
        if request.image:
            fate = await self._send_picture(who, request.image)
        else:
            fate = await self._send_text(who, request.text)
        if fate is not FileFate.SENT:
            raise Refusal(f"{name}: not sent, and not kept for later: {_NOT_SENT[fate]}")
        talk.reply(ctl.Done([f"{name}: sent"]))

    def _owner(self, text: str) -> PeerKey:
        """The owner of the operator's account that is meant."""
        operators = [
            names
            for names in self.accounts.names()
            if (record := self.accounts.record(names.account)) is not None and record.role is Role.OPERATOR
        ]
        match find_account(text, operators):
            case Unknown():
                raise Refusal(
                    f"no operator's account is called {text}" if text else "no operator's account is signed in"
                )
            case Ambiguous(_, candidates):
                raise Refusal(f"which account? {', '.join(candidates)}", code=2)
            case found:
                return PeerKey(found.account, PeerId(found.account))

    async def _send_text(self, who: PeerKey, text: str) -> FileFate:
        text = sanitise(text)
        if not 1 <= len(text) <= SEND_CHARS:
            raise Refusal(f"a text has 1 to {SEND_CHARS} characters, not {len(text)}", code=2)
        told: asyncio.Future[FileFate] = asyncio.get_running_loop().create_future()
        await self.delivery.say(who, text, fate=told.set_result)
        return await told

    async def _send_picture(self, who: PeerKey, path: str) -> FileFate:
        source, most = Path(path), self.book.settings.wechat.max_send_bytes
        if len(path) > SEND_PATH_CHARS:
            raise Refusal("the path is too long", code=2)
        try:
            if not await asyncio.to_thread(is_picture, source, most):
                raise Refusal(
                    f"{source.name}: not a picture that phones show (PNG, JPEG, GIF, WebP) of at most {most} bytes"
                )
            return await self.outgoing.send_copy(who, source)
        except (OSError, ValueError) as error:
            raise Refusal(f"{source.name}: {getattr(error, 'strerror', None) or 'no such path'}") from error

    async def _audit(self, _request: ctl.Audit, talk: Conversation) -> None:
        try:
            found = await asyncio.to_thread(audit.verify, self.home.audit)
        except OSError as error:
            raise Refusal(f"{self.home.audit}: {error.strerror}") from error
        if found.broken_at is not None:
            raise Refusal(
                f"{self.home.audit}: line {found.broken_at} {found.reason}; {_count(found.lines, 'line')} before it are whole"
            )
        talk.reply(
            ctl.Done([f"{_count(found.lines, 'line')}, each following the one before it", f"last hash {found.last}"])
        )

    async def _doctor(self, request: ctl.Doctor, talk: Conversation) -> None:
        examine = self.doctor.examine_with_trials if request.probe else self.doctor.examine
        talk.reply(await examine())

    async def _events(self, request: ctl.Events, talk: Conversation) -> None:
        seq = request.since if request.since is not None else 0
        if request.follow and request.since is None:
            seq = max(0, self.events.last - EVENTS_SHOWN)
        while True:
            async for batch in self.events.after(seq):
                talk.reply(ctl.EventBatch([self._shown(one) for one in batch]))
                seq = batch[-1].seq
            if not request.follow:
                talk.reply(ctl.Done([]))
                return
            await self.events.grown(seq)

    def _shown(self, one: EventRecord) -> ctl.EventRow:
        at = datetime.fromtimestamp(one.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data = json.loads(one.data)
        return ctl.EventRow(one.seq, at, one.event, self.bot_id(one.account), one.peer, one.message_id, data)

    def bot_id(self, account: str | None) -> str | None:
        """Events name accounts as the journal does; people know them by their bot's id."""
        record = self.accounts.record(AccountId(account)) if account else None
        return record.bot_id if record else account

    async def _trace(self, request: ctl.Trace, talk: Conversation) -> None:
        account, _, name = request.message_id.rpartition("/")
        found = await self.journal.do(Store.trace, MessageId(name))
        if account:
            wanted = self._account(account)
            found = tuple(one for one in found if one.who.account == wanted)
        if not found:
            raise Refusal(
                f"{request.message_id}: the journal knows no such message (texts are kept for some days only)"
            )
        if len(found) > 1:
            names = " or ".join(f"{self.bot_id(one.who.account)}/{name}" for one in found)
            raise Refusal(f"{name}: more than one account had such a message: {names}", code=2)
        (one,) = found
        events = [self._shown(event) for event in one.events]
        talk.reply(trace.told(MessageId(name), self.bot_id(one.who.account) or "", one, events))

    async def _metrics(self, _request: ctl.Metrics, talk: Conversation) -> None:
        talk.reply(ctl.MetricsReply(metrics.prometheus(await self.board.status())))

    async def _reload(self, _request: ctl.Reload, talk: Conversation) -> None:
        try:
            settings = self.reload_settings()
        except ConfigError as error:
            raise Refusal(f"nothing changed: {error}") from error
        late = waiting_for_a_start(self.book.settings, settings)
        self.apply_settings(settings)
        waits = [f"from the next start on: {', '.join(late)}"] if late else []
        talk.reply(ctl.Done(["settings read again", *waits, *settings.warnings]))

    async def _shutdown(self, _request: ctl.Shutdown, talk: Conversation) -> None:
        talk.reply(ctl.Done(["shutting down: running turns are finished first"]))
        self.shut_down()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


HANDLERS: Mapping[type[Any], Callable[[Control, Any, Conversation], Awaitable[None]]] = {
    ctl.Status: Control._status,
    ctl.Accounts: Control._accounts,
    ctl.Login: Control._login,
    ctl.Logout: Control._logout,
    ctl.Pause: Control._pause,
    ctl.Resume: Control._resume,
    ctl.Stop: Control._stop,
    ctl.Cancel: Control._cancel,
    ctl.Rules: Control._rules,
    ctl.Revoke: Control._revoke,
    ctl.Reset: Control._reset,
    ctl.History: Control._history,
    ctl.Allow: Control._allow,
    ctl.Deny: Control._deny,
    ctl.Forget: Control._forget,
    ctl.Send: Control._send,
    ctl.Audit: Control._audit,
    ctl.Doctor: Control._doctor,
    ctl.Events: Control._events,
    ctl.Trace: Control._trace,
    ctl.Metrics: Control._metrics,
    ctl.Reload: Control._reload,
    ctl.Shutdown: Control._shutdown,
}
