"""IlinkBot: the smallest bot client, plain httpx, for tests of the simulated service itself."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.fakes.wechat import SimulatedWeChat

Json = dict[str, Any]
OFFICIAL = {
    "Content-Type": "application/json",
    "AuthorizationType": "ilink_bot_token",
    "X-WECHAT-UIN": "MzA1NDE5ODk2",
    "iLink-App-Id": "bot",
    "iLink-App-ClientVersion": "132105",
}
BASE_INFO = {"channel_version": "2.4.9", "bot_agent": "OpenClaw"}


def sign_in(wechat: SimulatedWeChat, person: str) -> "IlinkBot":
    """A new bot for this person: QR, scan, credentials."""
    with httpx.Client(base_url=wechat.base_url, verify=False, trust_env=False, timeout=30) as http:
        qr = http.post("/ilink/bot/get_bot_qrcode", params={"bot_type": "3"}, json={"local_token_list": []}).json()
        wechat.scan(person, qr["qrcode"], action="redirect", redirect_host=wechat.base_url.removeprefix("http://"))
        told = http.get("/ilink/bot/get_qrcode_status", params={"qrcode": qr["qrcode"]}).json()
    return IlinkBot(wechat.base_url, told["bot_token"], told["ilink_bot_id"], told["ilink_user_id"])


@dataclass
class IlinkBot:
    """One bot's calls. answer(...) gives JSON, post(...) the raw response."""

    base_url: str
    token: str
    id: str
    owner: str
    cursor: str = ""
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def post(
        self, path: str, body: Any, *, headers: dict[str, str] | None = None, timeout_s: float = 30
    ) -> httpx.Response:
        own = {**OFFICIAL, "Authorization": f"Bearer {self.token}"} if headers is None else headers
        with httpx.Client(base_url=self.base_url, verify=False, trust_env=False, timeout=timeout_s) as http:
            return http.post(f"/ilink/bot/{path}", json=body, headers=own)

    def answer(self, path: str, body: Json) -> Json:
        return dict(self.post(path, {**body, "base_info": BASE_INFO}).raise_for_status().json())

    def poll(self, cursor: str | None = None, **more: Any) -> Json:
        """One poll with the newest cursor (or the one given), which it adopts."""
        told = self.answer("getupdates", {"get_updates_buf": self.cursor if cursor is None else cursor, **more})
        self.cursor = told.get("get_updates_buf") or self.cursor
        return told

    def inbound(self) -> Json:
        """The one message that is waiting."""
        (message,) = self.poll()["msgs"]
        return dict(message)

    def send(self, to: Json | str, text: str = "yes", **changes: Any) -> Json:
        """A text, as an answer to an inbound message or to somebody without a token. changes: members of msg."""
        peer, token = (to, None) if isinstance(to, str) else (to["from_user_id"], to["context_token"])
        item = {"type": 1, "text_item": {"text": text}}
        return self.send_item(peer, token, item, **changes)

    def send_item(self, peer: str, token: str | None, item: Json, **changes: Any) -> Json:
        return dict(self.send_raw(peer, token, item, **changes).json())

    def send_raw(self, peer: str, token: str | None, item: Json, **changes: Any) -> httpx.Response:
        message: Json = {
            "from_user_id": "",
            "to_user_id": peer,
            "client_id": f"openclaw-weixin:{next(self._numbers)}",
            "message_type": 2,
            "message_state": 2,
            "item_list": [item],
        }
        if token is not None:
            message["context_token"] = token
        return self.post("sendmessage", {"msg": {**message, **changes}, "base_info": BASE_INFO})

    def typing_ticket(self, peer: str) -> str:
        return str(self.answer("getconfig", {"ilink_user_id": peer})["typing_ticket"])
