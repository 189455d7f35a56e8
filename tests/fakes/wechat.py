"""SimulatedWeChat: the simulated service in a thread of the test process, and its control API as plain calls.

Every call goes over HTTP; nothing here reaches into the server. Waiting is by its events, with a deadline.
"""

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from supervisor.demo.server import SimulatedServer
from supervisor.demo.state import Settings

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bubble:
    """One bubble on a phone. side: "me" or "bot". media: {"name", "size", "sha256", "url", "problem"} or None."""

    seq: int
    side: str
    bot: str
    kind: str
    text: str
    message_id: str
    client_id: str
    at_ms: int
    media: Json | None


@dataclass(frozen=True, slots=True)
class Said:
    """What a person's message became on the wire."""

    message_id: str
    bot: str
    seq: int
    context_token: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class View:
    """The service at one moment."""

    last_event: int
    people: tuple[Json, ...]
    bots: tuple[Json, ...]
    tickets: tuple[Json, ...]
    sends: tuple[Json, ...]

    def phone(self, person: str) -> Json:
        return next((p for p in self.people if person in (p["person"], p["name"])), {"bubbles": [], "bots": []})

    def bubbles(self, person: str, side: str = "bot") -> list[Bubble]:
        """What a phone shows, in order: the bot's bubbles, or ("me") the person's own; side="" for both."""
        return [Bubble(**b) for b in self.phone(person)["bubbles"] if side in ("", b["side"])]

    def texts(self, person: str, side: str = "bot") -> list[str]:
        return [bubble.text for bubble in self.bubbles(person, side)]

    def typing(self, person: str) -> bool:
        return any(talk["typing"] for talk in self.phone(person)["bots"])

    def budget_left(self, person: str) -> int:
        return max((talk["budget_left"] for talk in self.phone(person)["bots"] if talk["alive"]), default=0)

    def bot(self, bot_id: str) -> Json:
        return next(bot for bot in self.bots if bot["bot"] == bot_id)

    def polls_in_flight(self) -> int:
        return sum(bot["polls_in_flight"] for bot in self.bots)


class SimulatedWeChat:
    """`with SimulatedWeChat() as wechat:` — holds of one second unless told otherwise; settings as in demo/state.py."""

    def __init__(self, *, port: int = 0, hold_s: float = 1.0, **settings: Any) -> None:
        self._server = SimulatedServer(port=port, settings=Settings(hold_s=hold_s, **settings))
        self.base_url = self._server.url
        self.cdn_url = self._server.cdn_url
        self.page_url = self._server.url + "/"
        self._http = httpx.Client(base_url=self.base_url, trust_env=False, timeout=60)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        self._server.stop()

    def go_down(self) -> None:
        """The service stops listening and breaks every connection; what it knows stays."""
        self._server.stop()

    def come_back(self) -> None:
        self._server.restart()

    # --- people ----------------------------------------------------------------------------------------------------

    def add_person(self, person_id: str = "", *, name: str = "") -> str:
        """The person's id; without one given, an id of the real form."""
        return str(self._post("/sim/people", {"id": person_id, "name": name})["id"])

    def scan(
        self,
        person: str,
        ticket: str | None = None,
        *,
        action: str = "confirm",
        verify_code: str = "",
        redirect_host: str = "",
        timeout_s: float = 30.0,
    ) -> str:
        """Scans the QR that is (or will be) pending; after "confirm" returns the new bot's id, else ""."""
        seen = self.wait_for(lambda view: bool(view.tickets) or ticket is not None, timeout_s)
        before = {bot["bot"] for bot in seen.bots}
        order = {"person": person, "ticket": ticket or "", "action": action}
        self._post("/sim/scan", {**order, "verify_code": verify_code, "redirect_host": redirect_host})
        if action != "confirm":
            return ""
        after = self.wait_for(lambda view: {bot["bot"] for bot in view.bots} - before, timeout_s)
        return next(bot["bot"] for bot in reversed(after.bots) if bot["bot"] not in before)

    def login_script(self, statuses: list[str], person: str = "") -> None:
        self._post("/sim/login-script", {"statuses": statuses, "person": person})

    def say(self, person: str, text: str | None = None, *, to: str = "", **parts: Any) -> Said:
        """One message. parts: attachment, quote, item, group_id, overrides, raw (demo/inbound.py, Said)."""
        body = {"to": to, **parts} if text is None else {"to": to, "text": text, **parts}
        return Said(**self._post(f"/sim/people/{person}/say", body))

    def say_together(self, said: list[tuple[str, Json]]) -> list[Said]:
        """Several messages at one instant, of one person or more: {"text", "overrides" ...} each."""
        many = [{"person": person, "said": one} for person, one in said]
        return [Said(**one) for one in self._post("/sim/say", many)["said"]]

    def attach(
        self,
        person: str,
        kind: str,
        data: bytes,
        *,
        name: str = "",
        to: str = "",
        text: str | None = None,
        **parts: Any,
    ) -> Said:
        """A picture, file, voice or video, with words in the same message or without. parts: transcript, key_form,
        address ... (demo/inbound.py, Attachment)"""
        attachment = {"kind": kind, "data": base64.b64encode(data).decode(), "name": name, **parts}
        return self.say(person, text, to=to, attachment=attachment)

    def bubbles(self, person: str, side: str = "bot") -> list[Bubble]:
        return self.view().bubbles(person, side)

    def media(self, bubble: Bubble) -> bytes:
        """The plain bytes that a phone made of an attachment."""
        assert bubble.media is not None, bubble
        return self._http.get(bubble.media["url"]).raise_for_status().content

    # --- looking and waiting ---------------------------------------------------------------------------------------

    def view(self) -> View:
        got = self._get("/sim/view")
        lists = {name: tuple(got[name]) for name in ("people", "bots", "tickets", "sends")}
        return View(last_event=got["last_event"], **lists)

    def wait_for(self, check: Callable[[View], object], timeout_s: float = 30.0) -> View:
        """The first view for which `check` is true, looked at after every event. raises AssertionError"""
        deadline = time.monotonic() + timeout_s
        while True:
            view = self.view()
            if check(view):
                return view
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"not within {timeout_s} s; last seen: {view}")
            # The answer's own words are not read: whatever happened, the next view shows it.
            self._get("/sim/events", since=view.last_event, hold_s=round(left, 3))

    def events(self, since: int = 0) -> list[Json]:
        return list(self._get("/sim/events", since=since)["events"])

    def requests(self, path: str = "", *, since: int = 0) -> list[Json]:
        """{"n", "path", "method", "query", "bot", "headers", "body", "status", "answer", "took_ms", "fault"} each."""
        return list(self._get("/sim/requests", path=path, since=since)["requests"])

    def sends(self, bot: str = "") -> list[Json]:
        """Every sendmessage: {"client_id", "to", "text", "outcome", "answer", "message_id", ...}."""
        return list(self._get("/sim/sends", bot=bot)["sends"])

    def stats(self) -> Json:
        return self._get("/sim/stats")

    # --- trouble ---------------------------------------------------------------------------------------------------

    def set_fault(self, name: str, **parameters: Any) -> int:
        """A switch of demo/faults.py by its name; returns its number."""
        return int(self._post("/sim/faults", {"name": name, **parameters})["number"])

    def clear_faults(self, name: str | None = None) -> None:
        parameters = {} if name is None else {"name": name}
        self._http.delete("/sim/faults", params=parameters).raise_for_status()

    def faults(self) -> list[Json]:
        return list(self._get("/sim/faults")["faults"])

    def shift_clock(self, offset_s: float) -> None:
        """Sets how far the service's clock is ahead of ours."""
        self._post("/sim/clock", {"offset_s": offset_s})

    def settings(self) -> Json:
        return self._get("/sim/settings")

    def change_settings(self, **changes: Any) -> None:
        self._told(self._http.patch("/sim/settings", json=changes))

    def revoke(self, bot: str) -> None:
        self._post("/sim/revoke", {"bot": bot})

    def revive(self, bot: str) -> None:
        self._post("/sim/revoke", {"bot": bot, "mode": "back"})

    def _get(self, url: str, /, **query: Any) -> Json:
        return self._told(self._http.get(url, params=query))

    def _post(self, path: str, body: Any) -> Json:
        return self._told(self._http.post(path, json=body))

    @staticmethod
    def _told(answer: httpx.Response) -> Json:
        assert answer.status_code == 200, f"{answer.request.url}: {answer.status_code} {answer.text}"
        return dict(answer.json())
