"""`bridge-supervisor probe`: how long WeChat really holds a poll, and whether it does as asked.

Works on a home without a running bridge, and holds the account's lock meanwhile. What is handed over is recorded with its
cursor, exactly as the bridge would, since WeChat hands nothing out twice.
"""

import asyncio
import contextlib
import json
import os
import pwd
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from protocol.errors import BridgeError
from protocol.ids import AccountId
from supervisor import config
from supervisor.accounts import wechat_settings
from supervisor.channels.base import Batch, Channel, ChannelError, Credentials
from supervisor.channels.wechat.client import WeChatChannel
from supervisor.clock import Clock, SystemClock
from supervisor.core.naming import AccountNames, Ambiguous, Unknown, find_account
from supervisor.credentials import CredentialsFile
from supervisor.home import Home
from supervisor.lockfile import AccountLock, HomeLock
from supervisor.store import PutBack, Store

POLLS = 5  # at most, until one was not cut short by a message
SERVER_HOLD_S = 35.0  # what WeChat says while nothing was asked (ilink-protocol)
NEAR_S = 1.0
NEAR = 0.1  # of what was expected
ID_CHARS = 80


class Verdict(StrEnum):
    HONOURED = "honoured"
    IGNORED = "ignored"
    NOT_MEASURABLE = "not measurable"


class ProbeRefused(BridgeError):
    """No such account, or nobody is signed in."""


def probe(
    home: Home,
    config_file: Path | None,
    account: str,
    hold_ms: int | None,
    say: Callable[[str], None],
    *,
    locks: Path | None = None,
) -> Verdict:
    """Measure and say it. raises AlreadyRunning, ProbeRefused, ConfigError, ChannelError"""
    if not home.journal.exists():
        raise ProbeRefused(f"{home.path}: nobody is signed in; was another --home meant?")
    environment = config.read_environment()
    locks = locks or Path(pwd.getpwuid(os.getuid()).pw_dir)
    with HomeLock(home.lock):
        settings = config.load(home, config_file).wechat
        stored, _ = CredentialsFile.open(home.credentials)
        store, _ = Store.open(home.journal)
        with contextlib.closing(store):
            names = {
                record.account: AccountNames(record.account, record.bot_id, record.name) for record in store.accounts()
            }
            credentials = {one.credentials.account: one.credentials for one in stored.all()}
            chosen = _chosen(account, names, credentials)
            asked = replace(settings, poll_hold_ms=float(hold_ms or 0))
            with AccountLock(chosen.account, locks):
                channel = WeChatChannel(chosen, wechat_settings(asked, environment))
                return asyncio.run(_measured(channel, store, chosen.account, hold_ms, say, SystemClock()))


def _chosen(
    account: str, names: dict[AccountId, AccountNames], credentials: dict[AccountId, Credentials]
) -> Credentials:
    match find_account(account, [names[one] for one in credentials if one in names]):
        case Unknown():
            known = (
                "no such account" if account else "nobody is signed in: bridge-supervisor start, then bridge-ctl login"
            )
            raise ProbeRefused(f"{account}: {known}" if account else known)
        case Ambiguous(candidates=candidates):
            raise ProbeRefused(f"which account? --account {' or '.join(candidates)}")
        case found:
            return credentials[found.account]


async def _measured(
    channel: Channel, store: Store, account: AccountId, hold_ms: int | None, say: Callable[[str], None], clock: Clock
) -> Verdict:
    expected_s = hold_ms / 1000 if hold_ms is not None else SERVER_HOLD_S
    verdict = Verdict.NOT_MEASURABLE
    try:
        for number in range(1, POLLS + 1):
            began = clock.now()
            batch = await channel.fetch(store.cursor(account), hold_s=max(expected_s, SERVER_HOLD_S))
            took_s = clock.now() - began
            _keep(store, account, batch, clock.wall(), say)
            if hold_ms is None and batch.hold_s is not None:
                expected_s = batch.hold_s
            echoed = "nothing" if batch.hold_s is None else f"{batch.hold_s * 1000:.0f} ms"
            wanted = "nothing" if hold_ms is None else f"{hold_ms} ms"
            say(f"poll {number}: requested {wanted}, measured {took_s * 1000:.0f} ms, echoed {echoed}")
            if batch.messages:
                continue  # cut short: it measures nothing
            near = abs(took_s - expected_s) <= max(NEAR_S, NEAR * expected_s)
            verdict = Verdict.HONOURED if near else Verdict.IGNORED
            break
    except ChannelError as error:
        say(f"the poll failed: {error}")
    finally:
        await channel.aclose()
    say(f"verdict: {verdict}")
    return verdict


def _keep(store: Store, account: AccountId, batch: Batch, at: float, say: Callable[[str], None]) -> None:
    recorded = store.record_batch(account, batch, at)
    store.apply([PutBack(row.row) for row in recorded.rows[:1]])  # nobody is handling it yet
    for message in batch.messages:
        told = json.loads(message.raw)
        about = " ".join(f"{name}={_shown(told.get(name))}" for name in ("group_id", "session_id"))
        say(f"message {_shown(message.message_id)} {about}")


def _shown(value: object) -> str:
    return "-" if value in (None, "") else ascii(str(value))[1:-1][:ID_CHARS]
