"""The control API below /sim/: what people do on their phones, switches, clock and every record, for page and tests.

JSON over loopback only. Ids are strings here; times are the service's own wall clock in milliseconds. Reading waits
by /sim/events, so nobody has to sleep. A request that cannot be is 409 with {"error": "..."}, a malformed one 400.
"""

import io
from collections.abc import Awaitable, Callable
from importlib.resources import files
from itertools import takewhile
from typing import Any, Literal

import msgspec
import segno
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from supervisor.demo import faults
from supervisor.demo.ilink import Held, Nothing, Service
from supervisor.demo.inbound import Said
from supervisor.demo.login import Action, Ticket
from supervisor.demo.state import EVENTS, Impossible, Json, Settings

_PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
# Media is whatever a bot's agent or a person made: it never runs in the page's origin.
_MEDIA_HEADERS = {"content-security-policy": "default-src 'none'; sandbox", "x-content-type-options": "nosniff"}
_PICTURES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"BM": "image/bmp"}


class NewPerson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """id: "" = one of the real form."""

    id: str = ""
    name: str = ""


class Scan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person does with a QR. ticket: "" = the newest pending one."""

    person: str
    ticket: str = ""
    action: Action = Action.CONFIRM
    verify_code: str = ""
    redirect_host: str = ""


class LoginScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answers to the next status polls, one each, in place of phones: "wait", "http:524", "scaned_but_redirect:HOST"."""

    statuses: list[str]
    person: str = ""


class ManySaid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    person: str
    said: Said


class Clock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    offset_s: float


class Revoke(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bot: str
    mode: Literal["now", "back"] = "now"


class Control:
    """The routes below /sim/, and the page at /."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.world = service.world

    def routes(self) -> list[Route]:
        table: list[tuple[str, str, Callable[[Request], Awaitable[Any]]]] = [
            ("GET", "/sim/view", self._view),
            ("GET", "/sim/people", self._people),
            ("POST", "/sim/people", self._add_person),
            ("GET", "/sim/people/{person}/phone", self._phone),
            ("POST", "/sim/people/{person}/say", self._say),
            ("POST", "/sim/say", self._say_many),
            ("GET", "/sim/tickets", self._tickets),
            ("GET", "/sim/tickets/{ticket}/qr.svg", self._qr),
            ("POST", "/sim/scan", self._scan),
            ("POST", "/sim/login-script", self._login_script),
            ("POST", "/sim/revoke", self._revoke),
            ("GET", "/sim/media/{media}", self._media),
            ("GET", "/sim/events", self._events),
            ("GET", "/sim/requests", self._requests),
            ("GET", "/sim/sends", self._sends),
            ("GET", "/sim/faults", self._faults),
            ("POST", "/sim/faults", self._set_fault),
            ("DELETE", "/sim/faults", self._clear_faults),
            ("GET", "/sim/clock", self._clock),
            ("POST", "/sim/clock", self._shift_clock),
            ("GET", "/sim/settings", self._settings),
            ("PATCH", "/sim/settings", self._change_settings),
            ("GET", "/sim/stats", self._stats),
        ]
        routes = [Route(url, _answering(act), methods=[method]) for method, url, act in table]
        return [Route("/", self._page, methods=["GET"]), *routes]

    async def _page(self, request: Request) -> Response:
        page = files("supervisor.demo").joinpath("phone.html").read_bytes()
        headers = {"content-security-policy": _PAGE_POLICY, "cache-control": "no-store"}
        return Response(page, media_type="text/html", headers=headers)

    # --- people and their phones -----------------------------------------------------------------------------------

    async def _view(self, request: Request) -> Json:
        """Everything tests wait for, in one answer."""
        now = self.service.now()
        return {
            "last_event": self.world.last_event,
            "people": [self.world.phone(person, now) for person in self.world.people],
            "bots": [bot.view(now) for bot in self.world.bots.values()],
            "tickets": [_ticket(t) for t in self.world.tickets.pending(now)],
            "sends": list(self.world.sends),
            "requests": self.service.requests,
        }

    async def _people(self, request: Request) -> Json:
        return {"people": [{"id": p.id, "name": p.name} for p in self.world.people.values()]}

    async def _add_person(self, request: Request) -> Json:
        new = await _read(request, NewPerson)
        person = self.world.add_person(person_id=new.id, name=new.name, now=self.service.now())
        return {"id": person.id, "name": person.name}

    async def _phone(self, request: Request) -> Json:
        since = _number(request, "since", 0)
        last_event = self.world.last_event
        phone = self.world.phone(request.path_params["person"], self.service.now(), since=int(since))
        return {**phone, "last_event": last_event}

    async def _say(self, request: Request) -> Json:
        said = await _read(request, Said)
        return self.world.say(request.path_params["person"], said, self.service.now())

    async def _say_many(self, request: Request) -> Json:
        many = await _read(request, list[ManySaid])
        return {"said": [self.world.say(one.person, one.said, self.service.now()) for one in many]}

    async def _media(self, request: Request) -> Response:
        media = self.world.media.get(request.path_params["media"])
        if media is None:
            return Response(b"", 404)
        kind = next((kind for magic, kind in _PICTURES.items() if media.plain.startswith(magic)), None)
        if media.plain[:4] == b"RIFF" and media.plain[8:12] == b"WEBP":
            kind = "image/webp"
        headers = dict(_MEDIA_HEADERS)
        if kind is None:
            headers["content-disposition"] = "attachment"
        return Response(media.plain, media_type=kind or "application/octet-stream", headers=headers)

    # --- login -----------------------------------------------------------------------------------------------------

    async def _tickets(self, request: Request) -> Json:
        return {"tickets": [_ticket(t) for t in self.world.tickets.pending(self.service.now())]}

    async def _qr(self, request: Request) -> Response:
        ticket = self.world.tickets.by_id.get(request.path_params["ticket"])
        if ticket is None:
            return Response(b"", 404)
        picture = io.BytesIO()
        segno.make(ticket.url, error="m").save(picture, kind="svg", scale=6, border=2, xmldecl=False, svgns=True)
        return Response(picture.getvalue(), media_type="image/svg+xml", headers=_MEDIA_HEADERS)

    async def _scan(self, request: Request) -> Json:
        scan = await _read(request, Scan)
        now = self.service.now()
        pending = self.world.tickets.pending(now)
        ticket_id = scan.ticket or (pending[-1].id if pending else "")
        self.world.scan(
            ticket_id, scan.person, scan.action, now, verify_code=scan.verify_code, redirect=scan.redirect_host
        )
        return {"ticket": ticket_id}

    async def _login_script(self, request: Request) -> Json:
        script = await _read(request, LoginScript)
        if script.person:
            self.world.tickets.script_person = self.world.person(script.person).id
        self.world.tickets.script.clear()
        self.world.tickets.script.extend(script.statuses)
        self.service.bells.ring_all()
        return {}

    async def _revoke(self, request: Request) -> Json:
        order = await _read(request, Revoke)
        bot = self.world.bots.get(order.bot)
        if bot is None:
            raise Impossible(f"no such bot: {order.bot}")
        bot.revoke_at = self.service.now() if order.mode == "now" else None
        self.world.tell("revoked", self.service.now(), bot=bot.id, mode=order.mode)
        self.service.bells.ring(bot.id)
        return {}

    # --- records and switches --------------------------------------------------------------------------------------

    async def _events(self, request: Request) -> Json | Response:
        """Events after `since` (of `kinds`, comma-separated), at once or when the next one comes or the hold ends."""
        since = _number(request, "since", 0)
        kinds = frozenset(filter(None, request.query_params.get("kinds", "").split(",")))

        def look(now: float) -> list[Json] | None:
            newer = takewhile(lambda event: event["seq"] > since, reversed(self.world.events))
            found = [event for event in newer if not kinds or event["event"] in kinds]
            return found[::-1] or None

        found = await self.service.hold(request, EVENTS, _number(request, "hold_s", 0), look)
        if found is Held.GONE:
            return Nothing()
        return {"last_event": self.world.last_event, "events": [] if isinstance(found, Held) else found}

    async def _requests(self, request: Request) -> Json:
        since, path = _number(request, "since", 0), request.query_params.get("path", "")
        return {"requests": [r.view() for r in self.service.log if r.n > since and path in ("", r.path)]}

    async def _sends(self, request: Request) -> Json:
        since, bot = _number(request, "since", 0), request.query_params.get("bot", "")
        return {"sends": [s for s in self.world.sends if s["n"] > since and bot in ("", s["bot"])]}

    async def _faults(self, request: Request) -> Json:
        return {"faults": self.world.panel.listing()}

    async def _set_fault(self, request: Request) -> Json:
        switch: faults.Switch = await _read(request, faults.Known)
        return {"number": self.service.set_fault(switch)}

    async def _clear_faults(self, request: Request) -> Json:
        number, name = request.query_params.get("number"), request.query_params.get("name")
        cleared = self.world.panel.clear(number=int(number) if number else None, name=name)
        self.service.bells.ring_all()
        return {"cleared": cleared}

    async def _clock(self, request: Request) -> Json:
        return {"now_ms": int(self.service.now() * 1000), "offset_s": self.service.clock_offset_s}

    async def _shift_clock(self, request: Request) -> Json:
        self.service.shift_clock((await _read(request, Clock)).offset_s)
        return await self._clock(request)

    async def _settings(self, request: Request) -> Json:
        return dict(msgspec.to_builtins(self.world.settings))

    async def _change_settings(self, request: Request) -> Json:
        """Only the keys that are named change."""
        changes = await _read(request, dict[str, Any])
        self.service.apply(msgspec.convert(await self._settings(request) | changes, Settings))
        return await self._settings(request)

    async def _stats(self, request: Request) -> Json:
        now = self.service.now()
        outcomes: dict[str, int] = {}
        for send in self.world.sends:
            outcomes[send["outcome"]] = outcomes.get(send["outcome"], 0) + 1
        bots = [bot.view(now) for bot in self.world.bots.values()]
        return {
            "requests": self.service.requests,
            "polls_in_flight": sum(bot["polls_in_flight"] for bot in bots),
            "sends": outcomes,
            "bots": bots,
        }


def _answering(act: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    """JSON out; what cannot be is 409, what cannot be read 400."""

    async def endpoint(request: Request) -> Response:
        try:
            answer = await act(request)
        except Impossible as impossible:
            return _json({"error": str(impossible)}, 409)
        except (msgspec.MsgspecError, ValueError) as malformed:
            return _json({"error": str(malformed)}, 400)
        return answer if isinstance(answer, Response) else _json(answer, 200)

    return endpoint


def _json(answer: Any, status: int) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(msgspec.json.encode(answer), status, media_type="application/json", headers=headers)


async def _read(request: Request, form: Any) -> Any:
    return msgspec.json.decode(await request.body(), type=form)


def _number(request: Request, name: str, default: float) -> float:
    return float(request.query_params.get(name, default))


def _ticket(ticket: Ticket) -> Json:
    return {
        "ticket": ticket.id,
        "url": ticket.url,
        "status": ticket.status.value,
        "created_at_ms": int(ticket.created_at * 1000),
        "person": ticket.person,
        "known_bots": list(ticket.known_bots),
    }
