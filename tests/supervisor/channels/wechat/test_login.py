"""Signing in over real HTTP, against a server that answers by script."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from protocol.ids import AccountId
from supervisor.channels.base import Credentials
from supervisor.channels.wechat import WeChatSettings
from supervisor.channels.wechat.login import AlreadyBound, Confirmed, LoginResult, NotConfirmed, log_in
from supervisor.core.login import LoginLimits
from tests.fakes.scripted_http import CLOSE, HANG, ScriptedHttp, Step, answer

pytestmark = pytest.mark.anyio
DEADLINE_S = 20.0
TOKEN = "0a1b2c3d4e5f@im.bot:060000canary"
TICKET = "ticketcanary+/="
QR = answer({"ret": 0, "qrcode": TICKET, "qrcode_img_content": "https://liteapp.weixin.qq.com/q/x?qrcode=ticketcanary"})


class Swift:
    """A clock that never waits."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at

    async def sleep_until(self, at: float) -> None:
        self.at = at
        await asyncio.sleep(0)


class Person:
    """A desk with somebody who types these numbers."""

    def __init__(self, *numbers: str) -> None:
        self._numbers = list(numbers)
        self.seen: list[str] = []
        self.asked: list[bool] = []

    async def show_qr(self, url: str, number: int, of: int) -> None:
        self.seen.append(f"qr {number}/{of} {url}")

    async def tell(self, line: str) -> None:
        self.seen.append(line)

    async def ask_code(self, *, again: bool) -> str:
        self.asked.append(again)
        return self._numbers.pop(0)


def status(name: str, **more: object) -> Step:
    return answer({"ret": 0, "status": name} | more)


def confirmed(**changed: object) -> Step:
    whole = {"bot_token": TOKEN, "ilink_bot_id": "0a1b@im.bot", "ilink_user_id": "o9cq80Owner@im.wechat", "baseurl": ""}
    return status("confirmed", **(whole | changed))


async def signing_in(
    statuses: Sequence[Step],
    *,
    codes: Sequence[Step] = (QR, QR, QR),
    person: Person | None = None,
    known_tokens: Sequence[str] = (),
    trusted_hosts: tuple[str, ...] = ("weixin.qq.com",),
    limits: LoginLimits | None = None,
) -> tuple[LoginResult, ScriptedHttp]:
    async with ScriptedHttp({"get_bot_qrcode": codes, "get_qrcode_status": statuses}) as server:
        settings = WeChatSettings(base_url=server.url, trusted_hosts=trusted_hosts)
        async with asyncio.timeout(DEADLINE_S):
            result = await log_in(
                settings, known_tokens=known_tokens, desk=person or Person(), clock=Swift(), limits=limits
            )
    return result, server


async def test_a_confirmed_login_yields_credentials_of_the_one_who_scanned() -> None:
    person = Person()

    result, server = await signing_in([status("wait"), status("scaned"), confirmed()], person=person)

    assert result == Confirmed(Credentials(AccountId("o9cq80Owner@im.wechat"), "0a1b@im.bot", TOKEN, server.url))
    assert person.seen == [
        "qr 1/3 https://liteapp.weixin.qq.com/q/x?qrcode=ticketcanary",
        "Scanned. Confirm on the phone.",
    ]


async def test_the_requests_are_the_official_ones() -> None:
    tokens = [f"token-{number}" for number in range(12)]

    _, server = await signing_in([confirmed()], known_tokens=tokens)

    create, ask = server.requests
    assert (create.method, create.target) == ("POST", "/ilink/bot/get_bot_qrcode?bot_type=3")
    assert create.json == {"local_token_list": tokens[:10]}
    assert "authorization" not in create.headers
    assert create.headers["authorizationtype"] == "ilink_bot_token"
    assert (ask.method, ask.target) == ("GET", "/ilink/bot/get_qrcode_status?qrcode=ticketcanary%2B%2F%3D")
    assert (ask.headers["ilink-app-id"], ask.headers["ilink-app-clientversion"]) == ("bot", "256")
    assert not {"authorizationtype", "x-wechat-uin", "authorization"} & ask.headers.keys()


async def test_the_number_on_the_phone_is_asked_for_and_sent() -> None:
    person = Person(" 12 ", "34")

    result, server = await signing_in(
        [status("need_verifycode"), status("need_verifycode"), status("scaned"), confirmed()], person=person
    )

    assert isinstance(result, Confirmed)
    assert person.asked == [False, True]
    queries = [request.query for request in server.asked("get_qrcode_status")]
    assert [query.partition("&")[2] for query in queries] == ["", "verify_code=12", "verify_code=34", ""]


async def test_an_account_that_is_bound_already_needs_no_new_credentials() -> None:
    result, _ = await signing_in([status("binded_redirect")])

    assert result == AlreadyBound()


async def test_b085_an_expired_code_is_replaced_on_the_desk() -> None:
    codes = [answer({"qrcode": f"t{n}", "qrcode_img_content": f"https://qr/{n}"}) for n in (1, 2, 3)]
    person = Person()

    result, server = await signing_in([status("expired"), status("expired"), confirmed()], codes=codes, person=person)

    assert isinstance(result, Confirmed)
    assert [line for line in person.seen if line.startswith("qr")] == [f"qr {n}/3 https://qr/{n}" for n in (1, 2, 3)]
    assert [request.query for request in server.asked("get_qrcode_status")] == ["qrcode=t1", "qrcode=t2", "qrcode=t3"]


async def test_b106_codes_that_run_out_end_with_a_clear_reason() -> None:
    result, _ = await signing_in([status("wait"), status("expired")] * 3)

    assert isinstance(result, NotConfirmed)
    assert "The phone never confirmed" in result.reason


@pytest.mark.parametrize(
    "broken",
    [CLOSE, answer("", status=524), answer("<html>"), answer(""), answer({"ret": -1}), status("what?"), answer({})],
    ids=["close", "524", "HTML", "nothing", "a code", "an unknown status", "no status"],
)
async def test_a_status_that_cannot_be_learned_counts_as_wait(broken: Step) -> None:
    result, _ = await signing_in([broken, confirmed()])

    assert isinstance(result, Confirmed)


async def test_a_status_poll_that_says_nothing_counts_as_wait() -> None:
    result, server = await signing_in([HANG, confirmed()], limits=LoginLimits(status_s=0.5))

    assert isinstance(result, Confirmed)
    assert len(server.asked("get_qrcode_status")) == 2


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (answer({"ret": 2}), "get_bot_qrcode: 2"),
        (answer("", status=502), "HTTP 502"),
        (answer({"ret": 0, "qrcode": "x"}), "holds none"),
    ],
)
async def test_without_a_code_the_login_ends_and_says_why(step: Step, words: str) -> None:
    result, server = await signing_in([], codes=[step] * 3)

    assert isinstance(result, NotConfirmed)
    assert words in result.reason
    assert len(server.requests) == 3


async def test_a_redirect_is_followed_from_loopback_to_loopback() -> None:
    async with ScriptedHttp({"get_qrcode_status": [confirmed()]}) as other:
        result, first = await signing_in([status("scaned_but_redirect", redirect_host=f"127.0.0.1:{other.port}")])

    assert isinstance(result, Confirmed)
    assert result.credentials.base_url == first.url
    assert len(other.requests) == 1


async def test_a_redirect_without_a_host_stays() -> None:
    result, server = await signing_in([status("scaned_but_redirect"), confirmed()])

    assert isinstance(result, Confirmed)
    assert len(server.asked("get_qrcode_status")) == 2


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1@evil.example", "weixin.qq.com.evil.example/x?", "a b"])
async def test_a_redirect_to_a_host_that_is_not_trusted_ends_the_login(host: str) -> None:
    result, _ = await signing_in([status("scaned_but_redirect", redirect_host=host), confirmed()])

    assert isinstance(result, NotConfirmed)
    assert "trusted_hosts" in result.reason


@pytest.mark.parametrize(
    ("baseurl", "taken"),
    [("https://idc2.weixin.qq.com", True), ("https://evil.example", False), ("http://weixin.qq.com", False)],
)
async def test_the_token_goes_only_to_a_trusted_address(baseurl: str, taken: bool) -> None:
    result, _ = await signing_in([confirmed(baseurl=baseurl)])

    assert isinstance(result, Confirmed) is taken
    if isinstance(result, Confirmed):
        assert result.credentials.base_url == baseurl


@pytest.mark.parametrize("name", ["bot_token", "ilink_bot_id", "ilink_user_id"])
@pytest.mark.parametrize("value", [None, "", "two\nlines", 7])
async def test_a_confirmation_that_lacks_something_is_a_failure(name: str, value: object) -> None:
    result, _ = await signing_in([confirmed(**{name: value})])

    assert result == NotConfirmed(f"WeChat confirmed, but its answer lacks {name}.")


async def test_a_desk_that_goes_away_ends_the_login() -> None:
    with pytest.raises(IndexError):
        await signing_in([status("need_verifycode")], person=Person())


async def test_b060_no_ticket_and_no_token_reaches_log_or_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told = []
    for last in (confirmed(ilink_bot_id=""), answer({"ret": -1, "errmsg": TOKEN}), status("expired")):
        person = Person()
        result, _ = await signing_in([CLOSE, answer("", status=502), last], codes=[QR], person=person)
        told += [str(result), *(line for line in person.seen if not line.startswith("qr"))]

    assert len(told) >= 6
    assert "canary" not in caplog.text + "".join(told)
