"""What the supervisor knows of its peers while it runs: the journal's rows, the settings' rules.

A cache over the journal (one record a peer, refreshed by whoever changed it) and the one place that resolves settings
and account into a policy. Neighbours: intake.py writes here after its commit, scheduler and status read.
"""

from collections.abc import Callable
from dataclasses import replace

from protocol.content import Role
from protocol.ids import AccountId, PeerKey
from supervisor.config import Settings
from supervisor.core.admission import PeerPolicy, policy_for
from supervisor.store import AccountRecord, Journal, PeerRecord, Store


class PeerBook:
    """settings may be exchanged at any time (reload, allow, deny); accounts comes from accounts.py."""

    def __init__(
        self, settings: Settings, journal: Journal, account: Callable[[AccountId], AccountRecord | None]
    ) -> None:
        self.settings = settings
        self._journal = journal
        self._account = account
        self._records: dict[PeerKey, PeerRecord] = {}

    async def load(self) -> None:
        """At start: everybody who was ever admitted."""
        for record in await self._journal.do(Store.peers):
            self._records[record.who] = record

    async def refresh(self, who: PeerKey) -> PeerRecord:
        """Read the record again after a change."""
        record = await self._journal.do(Store.peer, who)
        self._records[who] = record
        return record

    def forget_tokens(self, account: AccountId) -> None:
        """As the journal does at a login."""
        for who, record in self._records.items():
            if who.account == account:
                self._records[who] = replace(record, reply_token=None)

    def known(self) -> tuple[PeerKey, ...]:
        return tuple(self._records)

    def record(self, who: PeerKey) -> PeerRecord | None:
        return self._records.get(who)

    def language(self, who: PeerKey) -> str:
        record = self._records.get(who)
        return record.language if record is not None else "en"

    def role(self, who: PeerKey) -> Role:
        """Operator's: the owner of an operator account. Everybody else is a guest."""
        account = self._account(who.account)
        owner = account is not None and account.role is Role.OPERATOR and str(who.peer) == str(who.account)
        return Role.OPERATOR if owner else Role.GUEST

    def policy(self, who: PeerKey, settings: Settings | None = None) -> PeerPolicy:
        """settings: others than those in force, to see what they would come to"""
        settings = settings or self.settings
        account = self._account(who.account)
        return policy_for(
            who,
            role=self.role(who),
            account_names=(account.name, account.bot_id) if account is not None else (),
            admission=settings.admission,
            guests=settings.guests,
            agent=settings.agent,
            accounts=settings.accounts,
            peers=settings.peers,
        )
