"""One signed-in WeChat account as a Channel: long poll, sends, typing, online state.

In: calls of poll and delivery. Out: HTTP requests built by wire.py; batches, receipts, ChannelErrors. It keeps no message
and no cursor; it remembers typing tickets. The poll has a connection of its own, so that neither a hanging poll nor a
burst of sends holds the other up. Neighbours: http.py asks, wire.py builds and reads.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from protocol.ids import Cursor, PeerId, SendKey
from supervisor.channels.base import (
    Batch,
    Credentials,
    Limits,
    NotUploaded,
    Receipt,
    ReceiptKind,
    Refused,
    Route,
    TypingState,
    Unavailable,
    Upload,
)
from supervisor.channels.wechat import WeChatSettings, wire
from supervisor.channels.wechat.cdn import Cdn, measured
from supervisor.channels.wechat.http import BODY_S, Http, Silent
from supervisor.channels.wechat.media import outbound_key
from supervisor.channels.wechat.wire import App

BODY_BYTES = 16 * 1024  # of one sendmessage request: beyond 16,384 bytes of text WeChat answers `prepare failed`
ANSWER_BYTES = 64 * 1024  # of everything but a batch
SEND_CONNECTIONS = 8
UPLOADS = 100  # items of files uploaded already, for the next try of their send
TICKETS = 1000  # typing tickets remembered; more, and the longest unused is asked for again


@dataclass(frozen=True, slots=True)
class Timing:
    """slack_s  how much longer than the server's hold we listen: it answers at the very end of it (B-033)"""

    slack_s: float = 10.0
    body_s: float = BODY_S
    send_s: float = 15.0
    typing_s: float = 10.0
    notify_s: float = 10.0
    ticket_s: float = 600.0
    typing_retry_s: float = 2.0  # after a refusal, doubled by each further one
    typing_retry_most_s: float = 600.0


@dataclass(slots=True)
class _Typing:
    """What one peer's typing indicator needs. shown: the phone was told to show it and not yet to stop."""

    ticket: str = ""
    fetched_at: float = 0.0
    refusals: int = 0
    quiet_until: float = 0.0
    shown: bool = False


class WeChatChannel:
    """See supervisor.channels.base.Channel. now: monotonic seconds."""

    def __init__(
        self,
        credentials: Credentials,
        settings: WeChatSettings,
        *,
        timing: Timing | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self._settings = settings
        self._timing = timing or Timing()
        self._now = now
        self._app = App(settings.channel_version, settings.bot_agent)
        self._polls = self._http(connections=1)
        self._sends = self._http(connections=SEND_CONNECTIONS)
        self._cdn = Cdn(settings)
        self._typing: OrderedDict[PeerId, _Typing] = OrderedDict()
        self._uploaded: OrderedDict[SendKey, dict[str, object]] = OrderedDict()

    @property
    def limits(self) -> Limits:
        return Limits(text_units=self._settings.max_reply_chars, body_bytes=BODY_BYTES)

    @property
    def receiving(self) -> bool:
        return self._polls.receiving > 0

    async def announce_start(self) -> None:
        await self._call(wire.NOTIFYSTART, wire.notify_body(self._app), within_s=self._timing.notify_s)

    async def announce_stop(self) -> None:
        await self._call(wire.NOTIFYSTOP, wire.notify_body(self._app), within_s=self._timing.notify_s)

    async def fetch(self, cursor: Cursor, *, hold_s: float) -> Batch:
        body = wire.getupdates_body(self._app, cursor, wanted_hold_ms=self._settings.poll_hold_ms)
        try:
            answer = await self._polls.ask(
                "getupdates",
                "POST",
                wire.url(self._credentials.base_url, wire.GETUPDATES),
                headers=self._headers(),
                body=wire.to_json(body),
                silence_s=hold_s + self._timing.slack_s,
                body_s=self._timing.body_s,
            )
        except Silent:
            return Batch(messages=(), cursor=None, hold_s=None)
        return wire.parse_batch(wire.read_answer(wire.GETUPDATES, answer))

    async def send_text(self, route: Route, text: str, send_key: SendKey) -> Receipt:
        return await self._send(route, wire.text_item(text), send_key)

    async def _send(self, route: Route, item: dict[str, object], send_key: SendKey) -> Receipt:
        body = wire.send_body(self._app, route.peer, send_key, route.reply_token, item)
        try:
            answer = await self._call(wire.SENDMESSAGE, body, within_s=self._timing.send_s)
        except Refused as refusal:
            return Receipt(ReceiptKind.REJECTED, code=refusal.code)
        message_id = wire.sent_message_id(answer)
        return Receipt(ReceiptKind.ACCEPTED if message_id else ReceiptKind.UNCONFIRMED, message_id)

    async def send_file(self, route: Route, upload: Upload, send_key: SendKey) -> Receipt:
        item = self._uploaded.get(send_key)
        if item is None:
            item = await self._upload(route, upload)
            self._uploaded[send_key] = item
            if len(self._uploaded) > UPLOADS:
                self._uploaded.popitem(last=False)
        return await self._send(route, item, send_key)

    async def _upload(self, route: Route, upload: Upload) -> dict[str, object]:
        plain = await measured(upload)
        key, filekey = secrets.token_bytes(16), secrets.token_hex(16)
        body = wire.getuploadurl_body(self._app, route.peer, plain, filekey=filekey, key=key)
        try:
            answer = await self._call(wire.GETUPLOADURL, body, within_s=self._timing.send_s)
        except Refused as refusal:
            raise NotUploaded(str(refusal)) from None
        addresses = wire.upload_addresses(
            answer,
            filekey,
            cdn_base_url=self._settings.cdn_base_url,
            trusted_hosts=self._settings.trusted_hosts,
        )
        ticket = await self._cdn.upload(upload.path, plain, key, addresses)
        return wire.media_item(plain, ticket=ticket, aes_key=outbound_key(key))

    async def show_typing(self, route: Route, state: TypingState) -> None:
        """After a refusal WeChat is left alone for a while, longer each time (B-104); a `stop` is due whenever the phone
        may still show the indicator, and fetches a new ticket for it if the old one is stale (B-081)."""
        typing = self._typing_of(route.peer)
        if state is TypingState.STOPPED and not typing.shown:
            return
        if state is TypingState.TYPING and self._now() < typing.quiet_until:
            return
        typing.shown = state is TypingState.TYPING
        try:
            if typing.ticket and self._now() < typing.fetched_at + self._timing.ticket_s:
                try:
                    await self._send_typing(route, typing, state)
                    return
                except Refused:
                    typing.ticket = ""
            await self._renew(route, typing)
            await self._send_typing(route, typing, state)
        except Refused:
            typing.ticket = ""
            typing.shown = False
            typing.refusals += 1
            wait_s = self._timing.typing_retry_s * 2.0 ** min(typing.refusals - 1, 20)
            typing.quiet_until = self._now() + min(wait_s, self._timing.typing_retry_most_s)
            raise

    async def aclose(self) -> None:
        await self._polls.aclose()
        await self._sends.aclose()
        await self._cdn.aclose()

    def _typing_of(self, peer: PeerId) -> _Typing:
        typing = self._typing.setdefault(peer, _Typing())
        self._typing.move_to_end(peer)
        if len(self._typing) > TICKETS:
            self._typing.popitem(last=False)
        return typing

    async def _renew(self, route: Route, typing: _Typing) -> None:
        body = wire.getconfig_body(self._app, route.peer, route.reply_token)
        answer = await self._call(wire.GETCONFIG, body, within_s=self._timing.typing_s)
        typing.ticket = wire.typing_ticket(answer)
        typing.fetched_at = self._now()
        if not typing.ticket:
            raise Refused("getconfig: no typing ticket", code=0)

    async def _send_typing(self, route: Route, typing: _Typing, state: TypingState) -> None:
        body = wire.sendtyping_body(self._app, route.peer, typing.ticket, state)
        await self._call(wire.SENDTYPING, body, within_s=self._timing.typing_s)
        typing.refusals = 0

    async def _call(self, endpoint: str, body: dict[str, object], *, within_s: float) -> dict[str, object]:
        """raises Unavailable, SignedOut, Refused"""
        name = endpoint.rpartition("/")[2]
        try:
            async with asyncio.timeout(within_s):
                answer = await self._sends.ask(
                    name,
                    "POST",
                    wire.url(self._credentials.base_url, endpoint),
                    headers=self._headers(),
                    body=wire.to_json(body),
                    silence_s=within_s,
                    most_bytes=ANSWER_BYTES,
                )
        except TimeoutError:
            raise Unavailable(f"{name}: not answered within {within_s:g} s") from None
        return wire.read_answer(endpoint, answer)

    def _headers(self) -> dict[str, str]:
        return wire.post_headers(self._app, self._credentials.token, random_uint32=secrets.randbits(32))

    def _http(self, *, connections: int) -> Http:
        return Http(
            self._credentials.base_url,
            proxy=self._settings.proxy,
            user_agent=wire.bot_agent(self._settings.bot_agent),
            connections=connections,
        )
