"""Signs an account in by QR code: performs core/login over HTTP.

In: settings, the tokens of the accounts that run, a Desk where a person sits. Out: credentials, "already bound", or why
not. It stores nothing: credentials in use stay untouched until the caller has new ones in hand.
Neighbours: client.py for what follows; wire.py builds and reads.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never
from urllib.parse import urlsplit

from protocol.ids import AccountId
from supervisor.channels.base import ChannelError, Credentials, Refused, SignedOut, Unavailable
from supervisor.channels.wechat import WeChatSettings, wire
from supervisor.channels.wechat.http import Http, Silent
from supervisor.channels.wechat.wire import App
from supervisor.clock import Clock
from supervisor.core import login as core
from supervisor.core.login import (
    AskCode,
    AskStatus,
    CreateQr,
    End,
    Line,
    Login,
    LoginEffect,
    LoginEvent,
    LoginLimits,
    Outcome,
    ShowQr,
    Tell,
    Wait,
)

QR_S = 15.0  # to get a QR code; the official client waits without end
ANSWER_BYTES = 64 * 1024

WORDS = {
    Line.SCANNED: "Scanned. Confirm on the phone.",
    Line.EXPIRED: "The code has run out. Here is a new one.",
    Line.BLOCKED: "Too many wrong numbers. Here is a new code.",
    Line.TROUBLE: "WeChat does not answer, trying on",
}


class Desk(Protocol):
    """Where the person sits who logs in. What it raises ends the login."""

    async def show_qr(self, url: str, number: int, of: int) -> None:
        """Replaces the code shown before. url is what the picture encodes."""

    async def tell(self, line: str) -> None: ...

    async def ask_code(self, *, again: bool) -> str:
        """The number that the phone shows. again: the last one was wrong"""
        ...


@dataclass(frozen=True, slots=True)
class Confirmed:
    credentials: Credentials


@dataclass(frozen=True, slots=True)
class AlreadyBound:
    """WeChat knows one of the tokens we named: that account stays signed in, nothing new was issued."""


@dataclass(frozen=True, slots=True)
class NotConfirmed:
    """reason: for a person, one line."""

    reason: str


LoginResult = Confirmed | AlreadyBound | NotConfirmed


async def log_in(
    settings: WeChatSettings,
    *,
    known_tokens: Sequence[str],
    desk: Desk,
    clock: Clock,
    limits: LoginLimits | None = None,
) -> LoginResult:
    """known_tokens: of the accounts that are running, newest first; the ten newest are sent."""
    attempt = _Attempt(settings, known_tokens, desk, clock)
    machine = Login(limits)
    event: LoginEvent = core.Started()
    try:
        while True:
            for effect in machine.step(event, clock.now()):
                if isinstance(effect, End):
                    return attempt.result(effect)
                event = await attempt.perform(effect) or event
    finally:
        await attempt.aclose()


class _Attempt:
    """What one login holds: connections, and the credentials once they have come."""

    def __init__(self, settings: WeChatSettings, known_tokens: Sequence[str], desk: Desk, clock: Clock) -> None:
        self._settings = settings
        self._known_tokens = known_tokens
        self._desk = desk
        self._clock = clock
        self._app = App(settings.channel_version, settings.bot_agent)
        self._connections: dict[str, Http] = {}
        self._credentials: Credentials | None = None

    def result(self, end: End) -> LoginResult:
        match end.outcome:
            case Outcome.CONFIRMED if self._credentials:
                return Confirmed(self._credentials)
            case Outcome.ALREADY_BOUND:
                return AlreadyBound()
            case _:
                return NotConfirmed(end.reason)

    async def perform(self, effect: LoginEffect) -> LoginEvent | None:
        match effect:
            case CreateQr():
                return await self._create_qr()
            case ShowQr(url, number, of):
                await self._desk.show_qr(url, number, of)
            case Tell(line, detail):
                await self._desk.tell(f"{WORDS[line]} ({detail})" if detail else WORDS[line])
            case AskStatus():
                return await self._ask_status(effect)
            case AskCode(again, within_s):
                try:
                    async with asyncio.timeout(within_s):
                        return core.CodeGiven((await self._desk.ask_code(again=again)).strip())
                except TimeoutError:
                    return core.TimedOut()
            case Wait(until):
                await self._clock.sleep_until(until)
                return core.Woke()
            case End():
                raise AssertionError("log_in returns on End")
            case unknown:
                assert_never(unknown)
        return None

    async def aclose(self) -> None:
        for connections in self._connections.values():
            await connections.aclose()

    async def _create_qr(self) -> LoginEvent:
        base_url = self._settings.base_url
        try:
            async with asyncio.timeout(QR_S):
                answer = await self._to(base_url).ask(
                    "get_bot_qrcode",
                    "POST",
                    f"{wire.url(base_url, wire.GET_BOT_QRCODE)}?bot_type=3",
                    headers=wire.post_headers(self._app, "", random_uint32=secrets.randbits(32)),
                    body=wire.to_json(wire.qrcode_body(self._known_tokens)),
                    silence_s=QR_S,
                    most_bytes=ANSWER_BYTES,
                )
            made = wire.read_answer(wire.GET_BOT_QRCODE, answer)
        except TimeoutError:
            return core.QrFailed(f"no answer within {QR_S:g} s")
        except ChannelError as error:
            return core.QrFailed(str(error))
        ticket, url = made.get("qrcode"), made.get("qrcode_img_content")
        if not isinstance(ticket, str) or not ticket or not isinstance(url, str) or not url:
            return core.QrFailed("its answer holds none")
        return core.QrMade(ticket, url)

    async def _ask_status(self, effect: AskStatus) -> LoginEvent:
        base_url = effect.base_url or self._settings.base_url
        try:
            async with asyncio.timeout(effect.within_s):
                answer = await self._to(base_url).ask(
                    "get_qrcode_status",
                    "GET",
                    wire.url(base_url, wire.status_path(effect.ticket, effect.code)),
                    headers=wire.get_headers(self._app),
                    silence_s=effect.within_s,
                    most_bytes=ANSWER_BYTES,
                )
            status = wire.read_answer(wire.GET_QRCODE_STATUS, answer)
        except (TimeoutError, Silent):
            return core.Waiting()
        except (Unavailable, Refused, SignedOut) as error:
            return core.Waiting(str(error))
        return self._read(status)

    def _read(self, answer: Mapping[str, object]) -> LoginEvent:
        match answer.get("status"):
            case "scaned":  # WeChat's spelling
                return core.Scanned()
            case "scaned_but_redirect":
                return self._redirected(answer.get("redirect_host"))
            case "confirmed":
                return self._confirmed(answer)
            case "need_verifycode":
                return core.CodeNeeded()
            case "verify_code_blocked":
                return core.CodeBlocked()
            case "expired":
                return core.QrExpired()
            case "binded_redirect":
                return core.Bound()
            case _:
                return core.Waiting()

    def _redirected(self, host: object) -> LoginEvent:
        """host: bare. Without one we stay where we are."""
        if not isinstance(host, str) or not host.strip():
            return core.Scanned()
        own = urlsplit(self._settings.base_url)
        scheme = own.scheme if wire.is_loopback(own.hostname or "") else "https"
        base_url = f"{scheme}://{host.strip()}"
        return core.Redirected(base_url) if self._may_move_to(base_url) else core.Untrusted(_shown(host))

    def _confirmed(self, answer: Mapping[str, object]) -> LoginEvent:
        found = {name: answer.get(name) for name in ("bot_token", "ilink_bot_id", "ilink_user_id")}
        words = {name: value.strip() for name, value in found.items() if isinstance(value, str)}
        # They go into a header and into file names' sources: one printable word each, or they are of no use.
        missing = tuple(name for name in found if not re.fullmatch(r"[!-~]{1,512}", words.get(name, "")))
        if missing:
            return core.Confirmed(missing)
        named = answer.get("baseurl")
        base_url = named.strip() if isinstance(named, str) and named.strip() else self._settings.base_url
        if base_url != self._settings.base_url and not self._may_move_to(base_url):
            return core.Untrusted(_shown(base_url))
        self._credentials = Credentials(
            account=AccountId(words["ilink_user_id"]),
            bot_id=words["ilink_bot_id"],
            token=words["bot_token"],
            base_url=base_url,
        )
        return core.Confirmed()

    def _may_move_to(self, base_url: str) -> bool:
        return wire.may_move_to(
            base_url, own_base_url=self._settings.base_url, trusted_hosts=self._settings.trusted_hosts
        )

    def _to(self, base_url: str) -> Http:
        if base_url not in self._connections:
            self._connections[base_url] = Http(
                base_url,
                proxy=self._settings.proxy,
                user_agent=wire.bot_agent(self._settings.bot_agent),
                connections=1,
            )
        return self._connections[base_url]


def _shown(address: str) -> str:
    """A server's words, fit for one line: the host, without whatever a query may carry."""
    host = re.sub(r"^[a-z]+://", "", address.strip(), flags=re.IGNORECASE)
    return re.sub(r"[^A-Za-z0-9.:@\[\]-]", "?", re.split(r"[/?#]", host)[0])[:100] or "?"
