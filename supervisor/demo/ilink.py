"""The iLink API and its CDN over HTTP: Starlette routes around the world of state.py, with the wire faults.

In: requests as a bot's client sends them. Out: what the service would answer (HTTP 200 with JSON as
application/octet-stream, whatever went wrong), unless a wire switch spoils it. Service also holds long polls, keeps
the clock that tests can shift, and the log of every request. control.py is the other face of the same Service.
"""

import asyncio
import base64
import binascii
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from supervisor.demo import faults
from supervisor.demo.cdn import Stored, spoil_padding
from supervisor.demo.login import Scripted
from supervisor.demo.state import STALE, Bot, Empty, Json, Settings, World

T = TypeVar("T")

_LOG_KEPT = 20_000
_OCTETS = "application/octet-stream"
_STALE_ANSWER: Json = {"errcode": STALE, "errmsg": "session timeout"}
_BAD_ANSWER: Json = {"ret": -2, "errmsg": "invalid arguments"}


class Held(Enum):
    """How a held request ended without an answer."""

    OVER = "the hold ran out"
    GONE = "the client hung up"


class Bells:
    """Wakes whoever waits for a key: a bot's id, a QR ticket, any event."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def listen(self, key: str) -> asyncio.Future[None]:
        bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(bell)
        return bell

    def ring(self, key: str) -> None:
        for bell in self._waiting.pop(key, ()):
            if not bell.done():
                bell.set_result(None)

    def ring_all(self) -> None:
        for key in list(self._waiting):
            self.ring(key)

    def leave(self, key: str, bell: asyncio.Future[None]) -> None:
        bells = self._waiting.get(key)
        if bells is not None:
            bells.discard(bell)
            if not bells:
                del self._waiting[key]


@dataclass(slots=True)
class Logged:
    """One request as tests read it. Authorization shows whose token it was, never the token."""

    n: int
    at_ms: int
    method: str
    path: str
    query: dict[str, str]
    bot: str
    headers: dict[str, str]
    body: Any = None
    status: int | None = None
    answer: Any = None
    took_ms: float | None = None
    fault: str = ""

    def view(self) -> Json:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(slots=True)
class Call:
    """One request to an endpoint, read and authenticated as far as it goes."""

    request: Request
    logged: Logged
    body: Json
    bot: Bot | None


class Service:
    """The world with what it needs of an event loop: held polls, a clock, a log."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bells = Bells()
        self.log: deque[Logged] = deque(maxlen=_LOG_KEPT)
        self.requests = 0
        self.clock_offset_s = 0.0
        world.on_change = self.bells.ring

    def now(self) -> float:
        return time.time() + self.clock_offset_s

    def shift_clock(self, offset_s: float) -> None:
        self.clock_offset_s = offset_s
        self.world.tell("clock", self.now(), offset_s=offset_s)
        self.bells.ring_all()

    def apply(self, settings: Settings) -> None:
        self.world.apply(settings)
        self.world.tell("settings", self.now())
        self.bells.ring_all()

    def set_fault(self, switch: faults.Switch) -> int:
        number = self.world.panel.set(switch)
        self.bells.ring_all()
        return number

    async def hold(
        self,
        request: Request,
        key: str,
        hold_s: float,
        look: Callable[[float], T | None],
        due_at: Callable[[float], float | None] = lambda now: None,
    ) -> T | Held:
        """Looks now, whenever `key` rings and whenever something falls due, until there is an answer."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + hold_s
        async with asyncio.TaskGroup() as group:
            gone = group.create_task(_hung_up(request), name="client hung up")
            try:
                while not gone.done():
                    answer = look(self.now())
                    if answer is not None:
                        return answer
                    left = ends - loop.time()
                    if left <= 0:
                        return Held.OVER
                    due = due_at(self.now())
                    if due is not None:
                        left = min(left, due - self.now() + 0.001)
                    bell = self.bells.listen(key)
                    await asyncio.wait({gone, bell}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                    self.bells.leave(key, bell)
                return Held.GONE
            except asyncio.CancelledError:
                # The server goes down: a connection that breaks, not uvicorn's own 500.
                request.scope["state"]["transport"].abort()
                raise
            finally:
                gone.cancel()

    # --- one request -----------------------------------------------------------------------------------------------

    async def serve(self, request: Request, path: str, act: Callable[[Call], Awaitable[Response]]) -> Response:
        """Log, wire switch, act: the frame around every endpoint, the CDN's too."""
        began = time.perf_counter()
        bot = self.world.bot_by_token(_token(request))
        logged = self._logged(request, path, bot)
        raw = await request.body()
        body = _decoded(raw) if request.method == "POST" and not path.startswith("cdn/") else {}
        logged.body = self._without_tokens(body) if body is not None else raw.decode(errors="replace")
        self.world.tell("request", self.now(), path=path, n=logged.n, bot=logged.bot)
        wire = self.world.panel.strike(faults.WireSwitch, bot.id if bot else "", path=path)
        if wire is not None:
            logged.fault = str(wire.__struct_config__.tag)
        if wire is not None and wire.when == "before":
            response: Response = _json({"ret": 0})
        elif "transfer-encoding" in request.headers:
            response = Response(b"", 412)
        elif body is None:
            response = _json(_BAD_ANSWER)
        else:
            response = await act(Call(request, logged, body, bot))
        spoiled = response if wire is None else spoil(wire, response)
        logged.status = spoiled.status_code
        logged.answer = _shown(spoiled)
        logged.took_ms = round((time.perf_counter() - began) * 1000, 3)
        self.world.tell("answered", self.now(), path=path, n=logged.n, status=spoiled.status_code)
        return spoiled

    def _logged(self, request: Request, path: str, bot: Bot | None) -> Logged:
        headers = dict(request.headers)
        if "authorization" in headers:
            headers["authorization"] = f"Bearer <{bot.id if bot else 'unknown'}>"
        self.requests += 1
        at_ms = int(self.now() * 1000)
        bot_id = bot.id if bot else ""
        logged = Logged(self.requests, at_ms, request.method, path, dict(request.query_params), bot_id, headers)
        self.log.append(logged)
        return logged

    def _without_tokens(self, body: Json) -> Json:
        tokens = body.get("local_token_list")
        if not isinstance(tokens, list):
            return body
        bots = [self.world.bot_by_token(token) if isinstance(token, str) else None for token in tokens]
        return {**body, "local_token_list": [bot.id if bot else "<unknown>" for bot in bots]}

    def refusal(self, call: Call, path: str, now: float) -> Json | None:
        """Why an authenticated call is not served; None when it is."""
        bot_id = call.bot.id if call.bot else ""
        if self.world.panel.strike(faults.StrictHeaders, bot_id) and not six_headers(call.request):
            return _STALE_ANSWER
        if call.bot is None or not call.bot.alive(now):
            return _STALE_ANSWER
        return self.stale(call.bot, path)

    def stale(self, bot: Bot, path: str) -> Json | None:
        match self.world.panel.strike(faults.StaleSession, bot.id, path=path):
            case None:
                return None
            case switch:
                codes = {"errcode": STALE, "ret": STALE}
                kept = codes if switch.envelope == "both" else {switch.envelope: STALE}
                return kept | {"errmsg": "session timeout"}


class Api:
    """The eleven paths a bot's client knows."""

    def __init__(self, service: Service, *, cdn_prefix: str = "/c2c") -> None:
        self.service = service
        self.world = service.world
        self.cdn_prefix = cdn_prefix

    def routes(self) -> list[Route]:
        endpoints: dict[str, tuple[list[str], Callable[[Call], Awaitable[Response]]]] = {
            "get_bot_qrcode": (["GET", "POST"], self._qrcode),
            "get_qrcode_status": (["GET"], self._qrcode_status),
            "getupdates": (["POST"], self._updates),
            "sendmessage": (["POST"], self._authenticated("sendmessage", self.world.send)),
            "getuploadurl": (["POST"], self._authenticated("getuploadurl", self._upload_url)),
            "getconfig": (["POST"], self._authenticated("getconfig", self.world.config)),
            "sendtyping": (["POST"], self._authenticated("sendtyping", self.world.typing)),
            "msg/notifystart": (["POST"], self._notify_start),
            "msg/notifystop": (["POST"], self._authenticated("msg/notifystop", self._stopped)),
        }
        routes = [self._route(f"/ilink/bot/{path}", path, methods, act) for path, (methods, act) in endpoints.items()]
        every_method = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        routes.append(self._route(f"{self.cdn_prefix}/upload", "cdn/upload", every_method, self._cdn_upload))
        routes.append(self._route(f"{self.cdn_prefix}/download", "cdn/download", every_method, self._cdn_download))
        return routes

    def _route(self, url: str, path: str, methods: list[str], act: Callable[[Call], Awaitable[Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await self.service.serve(request, path, act)

        return Route(url, endpoint, methods=methods, name=path)

    def _authenticated(
        self, path: str, do: Callable[[Bot, Json, float], Json | Empty]
    ) -> Callable[[Call], Awaitable[Response]]:
        async def act(call: Call) -> Response:
            now = self.service.now()
            refused = self.service.refusal(call, path, now)
            if refused is not None or call.bot is None:
                return _json(refused or _STALE_ANSWER)
            return _json(do(call.bot, call.body, now))

        return act

    async def _qrcode(self, call: Call) -> Response:
        tokens = call.body.get("local_token_list")
        known = [token for token in tokens if isinstance(token, str)] if isinstance(tokens, list) else []
        bot_type = call.request.query_params.get("bot_type", "")
        return _json(self.world.create_ticket(bot_type, known, self.service.now()))

    async def _qrcode_status(self, call: Call) -> Response:
        query = call.request.query_params
        ticket_id, code, host = query.get("qrcode", ""), query.get("verify_code", ""), call.request.headers["host"]
        answer: Json | Scripted | Held = await self.service.hold(
            call.request,
            ticket_id,
            min(self.world.settings.qr_hold_s, self.world.settings.hold_s),
            lambda now: self.world.ticket_status(ticket_id, code, host, now),
        )
        match answer:
            case Held.GONE:
                return Nothing()
            case Held.OVER:
                return _json(self.world.held_ticket_status(ticket_id))
            case Scripted(http_status):
                return Response(b"", http_status)
            case dict():
                return _json(answer)

    async def _updates(self, call: Call) -> Response:
        refused = self.service.refusal(call, "getupdates", self.service.now())
        if refused is not None or call.bot is None:
            return _json(refused or _STALE_ANSWER)
        bot = call.bot
        poll = self.world.begin_poll(bot, call.body, self.service.now())
        known_switches = set(self.world.panel.armed)

        def look(now: float) -> Json | None:
            if not bot.alive(now):
                return _STALE_ANSWER
            # A switch that is set while polls are held ends them too; each switch gets one chance per poll.
            if not known_switches.issuperset(self.world.panel.armed):
                known_switches.update(self.world.panel.armed)
                if (stale := self.service.stale(bot, "getupdates")) is not None:
                    return stale
            return self.world.try_poll(poll, now)

        try:
            answer: Json | Held = await self.service.hold(
                call.request, bot.id, poll.hold_s, look, lambda now: self.world.next_due_at(poll, now)
            )
        finally:
            self.world.end_poll(poll, self.service.now())
        if answer is Held.GONE:
            return Nothing()
        return _json(self.world.held_poll(poll) if isinstance(answer, Held) else answer)

    def _upload_url(self, bot: Bot, body: Json, now: float) -> Json:
        return self.world.upload_url(bot, body)

    async def _notify_start(self, call: Call) -> Response:
        # It revives a session that answers -14, so it is served where other calls are refused.
        now = self.service.now()
        if call.bot is None or not call.bot.alive(now):
            return _json(_STALE_ANSWER)
        answer = self.world.notify(call.bot, "start", now)
        return _json(self.service.stale(call.bot, "msg/notifystart") or answer)

    def _stopped(self, bot: Bot, body: Json, now: float) -> Json:
        return self.world.notify(bot, "stop", now)

    # --- CDN -------------------------------------------------------------------------------------------------------

    async def _cdn_upload(self, call: Call) -> Response:
        request, panel = call.request, self.world.panel
        if request.method != "POST":
            return Response(b"", 404)
        if (problem := _foreign_headers(request)) is not None:
            return problem
        secret = await request.body()
        query = request.query_params
        ticket = query.get("encrypted_query_param", "")
        if ticket not in self.world.shelves.full_url_tickets:
            failing = panel.on(faults.ParamUploadFails, "")
            if failing is not None and len(secret) > failing.over_bytes:
                return Response(b"", 500)
        stored = self.world.shelves.upload(ticket, query.get("filekey", ""), secret)
        if stored is None:
            return Response(b"", 400, {"x-error-message": "unknown ticket, file key or length", "x-error-code": "-1"})
        if panel.strike(faults.NoEncryptedParam, ""):
            return Response(b"", 200)
        return Response(b"", 200, {"x-encrypted-param": stored})

    async def _cdn_download(self, call: Call) -> Response:
        request, panel = call.request, self.world.panel
        if request.method != "GET":
            return Response(b"", 404)
        if (problem := _foreign_headers(request)) is not None:
            return problem
        stored = self.world.shelves.fetch(request.query_params.get("encrypted_query_param", ""))
        if stored is None:
            return Response(b"", 404)
        secret = stored.secret
        if panel.strike(faults.BadPadding, ""):
            secret = spoil_padding(Stored(secret, stored.key))
        if short := panel.strike(faults.ShortDownload, ""):
            secret = secret[: max(0, len(secret) - short.missing_bytes)]
        return Response(secret, 200, media_type=_OCTETS)


# --- answers and how they are spoiled ---------------------------------------------------------------------------------


class Nothing(Response):
    """No answer: the client has hung up, or is made to believe that it should."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["transport"].abort()
        await _until_gone(receive)


class Silence(Response):
    """No answer, and the connection stays open until the client leaves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _until_gone(receive)


class Spoiled(Response):
    """A good answer with a bad way out."""

    def __init__(self, wire: faults.CutBody | faults.DribbledBody | faults.Late, good: Response) -> None:
        super().__init__(good.body, good.status_code)
        self.raw_headers = good.raw_headers
        self.wire = wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytes(self.body)
        if isinstance(self.wire, faults.Late):
            await asyncio.sleep(self.wire.delay_ms / 1000)
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if isinstance(self.wire, faults.CutBody):
            await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
            scope["state"]["transport"].close()
            await _until_gone(receive)
            return
        for at in range(0, len(body), self.wire.step_bytes):
            piece = body[at : at + self.wire.step_bytes]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(self.wire.gap_ms / 1000)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def spoil(wire: faults.WireSwitch, good: Response) -> Response:
    match wire:
        case faults.HttpStatus():
            return Response(wire.body, wire.status, wire.headers)
        case faults.HtmlPage():
            return Response("<!doctype html><title>Sign in</title><p>Welcome to the network", media_type="text/html")
        case faults.FixedAnswer():
            return _json(wire.body)
        case faults.EmptyBody():
            return Response(b"", 200, media_type=_OCTETS)
        case faults.NeverAnswer():
            return Silence()
        case faults.CloseUnanswered():
            return Nothing()
        case faults.TruncatedJson():
            body = bytes(good.body)
            return Response(body[: max(1, len(body) // 2)], good.status_code, media_type=_OCTETS)
        case faults.CutBody() | faults.DribbledBody() | faults.Late():
            return Spoiled(wire, good)
    raise AssertionError(wire)


def six_headers(request: Request) -> bool:
    """Every POST of the official client carries them."""
    headers = request.headers
    try:
        uin = base64.b64decode(headers.get("x-wechat-uin", ""), validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    return (
        headers.get("content-type", "").partition(";")[0] == "application/json"
        and headers.get("authorizationtype") == "ilink_bot_token"
        and headers.get("authorization", "").startswith("Bearer ")
        and uin.isdecimal()
        and int(uin) < 2**32
        and headers.get("ilink-app-id") == "bot"
        and re.fullmatch(r"[1-9][0-9]*", headers.get("ilink-app-clientversion", "")) is not None
    )


async def _hung_up(request: Request) -> None:
    await _until_gone(request.receive)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _decoded(raw: bytes) -> Json | None:
    """A JSON object; {} for no body at all, None for anything else."""
    if not raw:
        return {}
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None
    return body if isinstance(body, dict) else None


def _json(answer: Any) -> Response:
    if isinstance(answer, Empty):
        return Response(b"", 200, media_type=_OCTETS)
    return Response(msgspec.json.encode(answer), 200, media_type=_OCTETS)


def _shown(response: Response) -> Any:
    """The answer's codes for the log: tokens and texts stay out."""
    if response.media_type != _OCTETS or bytes(response.body[:1]) != b"{":
        return None
    answer = _decoded(bytes(response.body)) or {}
    return {name: answer[name] for name in ("ret", "errcode", "errmsg", "status", "message_id") if name in answer}


def _foreign_headers(request: Request) -> Response | None:
    """The CDN is another house: a client that shows it iLink headers has leaked its token."""
    if "authorization" in request.headers or "x-wechat-uin" in request.headers:
        return Response(b"", 403, {"x-error-message": "unexpected credentials"})
    return None
