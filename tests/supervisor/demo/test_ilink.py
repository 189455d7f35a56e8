"""The iLink API over real HTTP with plain httpx: bodies, holds, login, CDN, and every wire fault."""

import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from supervisor.demo.cdn import decrypt, encrypt, md5_hex, padded_size, read_key
from supervisor.demo.state import quoted
from tests.fakes.ilink_bot import BASE_INFO, OFFICIAL, IlinkBot, sign_in
from tests.fakes.wechat import SimulatedWeChat

Json = dict[str, Any]
VECTOR_USER = "o9cq80AbCdEfGhIjKlMnOpQrStUv@im.wechat"
STALE = {"errcode": -14, "errmsg": "session timeout"}


class Background:
    """One call in a thread, with its result or exception."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.result: Any = None

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:
            self.result = error

    def join(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.result


def polls_in_flight(wechat: SimulatedWeChat, bot: IlinkBot, count: int) -> None:
    wechat.wait_for(lambda view: view.bot(bot.id)["polls_in_flight"] == count)


# --- bodies and answers -----------------------------------------------------------------------------------------------


def test_every_official_request_body_is_accepted(wechat: SimulatedWeChat, vectors: Json) -> None:
    bodies = vectors["request_bodies_2_4_9"]
    bot = sign_in(wechat, wechat.add_person(VECTOR_USER))
    wechat.say(VECTOR_USER, "hello", overrides={"context_token": "AARzJWctxtokenexample"})

    answers = {}
    for name in ("getupdates_first", "getuploadurl_image", "getconfig", "notifystart", "notifystop"):
        path = {"getupdates_first": "getupdates", "getuploadurl_image": "getuploadurl"}.get(name, name)
        answers[name] = bot.post(path.replace("notify", "msg/notify"), bodies[name]).json()
    for name in [name for name in bodies if name.startswith("sendmessage")]:
        body = json.loads(json.dumps(bodies[name]).replace("deadbeef", f"{len(answers):08x}"))
        answers[name] = bot.post("sendmessage", body).json()
    for name in ("sendtyping_start", "sendtyping_stop"):
        body = {**bodies[name], "typing_ticket": answers["getconfig"]["typing_ticket"]}
        answers[name] = bot.post("sendtyping", body).json()

    assert all(answer.get("ret", 0) == 0 and "errcode" not in answer for answer in answers.values()), answers
    assert [m["from_user_id"] for m in answers["getupdates_first"]["msgs"]] == [VECTOR_USER]
    assert all("message_id" in answer for name, answer in answers.items() if name.startswith("sendmessage"))
    assert answers["notifystart"] == answers["notifystop"] == {"ret": 0, "errmsg": ""}


def test_answers_are_octet_streams_with_bare_ids_above_2_to_the_53(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.say(bot.owner, "one")
    wechat.say(bot.owner, "two")

    answer = bot.post("getupdates", {"get_updates_buf": ""})

    first, second = [message["message_id"] for message in answer.json()["msgs"]]
    assert answer.headers["content-type"] == "application/octet-stream"
    assert 2**53 < first < second < 2**64
    assert f'"message_id":{first},' in answer.text
    assert "ret" not in answer.json()


@pytest.mark.parametrize(
    "path", ["getupdates", "sendmessage", "getuploadurl", "getconfig", "sendtyping", "msg/notifystart"]
)
@pytest.mark.parametrize("authorization", [None, "Bearer", "Bearer nobody:1", "nonsense"])
def test_without_a_known_token_every_call_is_stale_at_once(
    wechat: SimulatedWeChat, bot: IlinkBot, path: str, authorization: str | None
) -> None:
    wechat.change_settings(hold_s=30)
    headers = OFFICIAL if authorization is None else {**OFFICIAL, "Authorization": authorization}

    assert bot.post(path, {}, headers=headers, timeout_s=10).json() == STALE


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b"\xff"])
def test_a_body_that_is_no_object_is_refused_in_json(wechat: SimulatedWeChat, bot: IlinkBot, body: bytes) -> None:
    headers = {**OFFICIAL, "Authorization": f"Bearer {bot.token}"}

    answer = httpx.post(f"{wechat.base_url}/ilink/bot/sendmessage", content=body, headers=headers, trust_env=False)

    assert answer.json() == {"ret": -2, "errmsg": "invalid arguments"}


def test_a_body_of_unknown_length_gets_412_and_nothing(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    headers = {**OFFICIAL, "Authorization": f"Bearer {bot.token}"}

    answer = httpx.post(
        f"{wechat.base_url}/ilink/bot/getconfig", content=iter([b"{}"]), headers=headers, trust_env=False
    )

    assert (answer.status_code, answer.content) == (412, b"")


def test_the_log_keeps_headers_and_bodies_but_no_token(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    bot.answer("getconfig", {"ilink_user_id": bot.owner})
    httpx.post(
        f"{wechat.base_url}/ilink/bot/get_bot_qrcode?bot_type=3",
        json={"local_token_list": [bot.token, "old"]},
        trust_env=False,
    )

    config, qr = wechat.requests("getconfig")[-1], wechat.requests("get_bot_qrcode")[-1]

    assert config["bot"] == bot.id
    assert config["headers"]["authorization"] == f"Bearer <{bot.id}>"
    assert config["headers"]["x-wechat-uin"] == OFFICIAL["X-WECHAT-UIN"]
    assert config["body"] == {"ilink_user_id": bot.owner, "base_info": BASE_INFO}
    assert (config["status"], config["answer"]["ret"]) == (200, -4)
    assert qr["body"] == {"local_token_list": [bot.id, "<unknown>"]}
    assert bot.token not in json.dumps(wechat.requests())


# --- holds ------------------------------------------------------------------------------------------------------------


def test_an_idle_poll_is_held_and_then_empty(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    began = time.monotonic()

    answer = bot.poll()

    assert answer["msgs"] == []
    assert time.monotonic() - began >= 0.3


def test_a_held_poll_returns_as_soon_as_somebody_writes(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.change_settings(hold_s=60)
    poll = Background(bot.poll)
    polls_in_flight(wechat, bot, 1)

    wechat.say(bot.owner, "now")

    assert [m["item_list"][0]["text_item"]["text"] for m in poll.join()["msgs"]] == ["now"]


def test_two_polls_share_the_queue(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    polls = [Background(bot.poll), Background(bot.poll)]
    polls_in_flight(wechat, bot, 2)

    wechat.say(bot.owner, "for one of you")

    assert sorted(len(poll.join()["msgs"]) for poll in polls) == [0, 1]
    assert wechat.view().bot(bot.id)["polls_in_flight_max"] == 2


def test_a_poller_that_hung_up_takes_no_message_along(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.change_settings(hold_s=60)
    with pytest.raises(httpx.ReadTimeout):
        bot.post("getupdates", {}, timeout_s=0.2)
    polls_in_flight(wechat, bot, 0)

    wechat.say(bot.owner, "still here")

    assert len(bot.poll()["msgs"]) == 1


def test_a_new_scan_ends_the_old_bots_held_poll_with_stale(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.change_settings(hold_s=60, revoke_after_s=0.2)
    poll = Background(bot.poll)
    polls_in_flight(wechat, bot, 1)

    sign_in(wechat, bot.owner)

    assert poll.join() == STALE


def test_a_day_later_the_window_is_closed(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.say(bot.owner, "hi")
    message = bot.inbound()

    wechat.shift_clock(86_400)

    assert bot.send(message) == {"ret": -2, "errmsg": "prepare failed"}
    wechat.say(bot.owner, "hi again")
    assert bot.send(bot.inbound())["ret"] == 0


# --- login ------------------------------------------------------------------------------------------------------------


def log_in_by_script(wechat: SimulatedWeChat, script: Json) -> tuple[str, int]:
    """Plays the official client without its pauses; returns its result and how many QRs it asked for."""
    person = wechat.add_person()
    wechat.login_script(script["statuses"], person)
    with httpx.Client(base_url=wechat.base_url, trust_env=False, timeout=30) as http:
        qrs, code = 0, ""
        while True:
            qrs += 1
            if qrs > 3:
                return "failed", 3
            ticket = http.post("/ilink/bot/get_bot_qrcode?bot_type=3", json={"local_token_list": []}).json()["qrcode"]
            while True:
                answer = http.get("/ilink/bot/get_qrcode_status", params={"qrcode": ticket, "verify_code": code})
                status = answer.json()["status"] if answer.status_code == 200 else "wait"
                if status == "confirmed":
                    assert answer.json()["ilink_user_id"] == person
                    return "connected", qrs
                if status == "binded_redirect":
                    return "already_connected", qrs
                if status in ("expired", "verify_code_blocked"):
                    break
                code = "1234" if status == "need_verifycode" else ""


def test_every_login_script_of_the_vectors_can_be_played(wechat: SimulatedWeChat, vectors: Json) -> None:
    for script in vectors["behaviour_2_4_9"]["login"]:
        assert log_in_by_script(wechat, script) == (script["result"], script["qr_requests"]), script["name"]


def test_a_status_poll_waits_for_the_phone_and_old_tickets_expire(wechat: SimulatedWeChat) -> None:
    wechat.change_settings(hold_s=60)
    person = wechat.add_person()
    with httpx.Client(base_url=wechat.base_url, trust_env=False, timeout=30) as http:
        ticket = http.get("/ilink/bot/get_bot_qrcode?bot_type=3").json()["qrcode"]
        status = Background(lambda: http.get("/ilink/bot/get_qrcode_status", params={"qrcode": ticket}).json())
        wechat.wait_for(lambda view: any(t["ticket"] == ticket for t in view.tickets))
        wechat.scan(person, ticket, action="scan")
        assert status.join() == {"status": "scaned"}

        wechat.shift_clock(121)

        assert http.get("/ilink/bot/get_qrcode_status", params={"qrcode": ticket}).json() == {"status": "expired"}
        assert not wechat.view().tickets


def test_credentials_have_the_forms_of_captures(wechat: SimulatedWeChat) -> None:
    person = wechat.add_person()
    bot = sign_in(wechat, person)

    assert bot.token.startswith(f"{bot.id}:060000")
    assert bot.owner == person
    assert bot.base_url == wechat.base_url


def test_notify_is_tracked_as_the_online_state(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    bot.answer("msg/notifystart", {})
    assert wechat.view().bot(bot.id)["online"] is True

    bot.answer("msg/notifystop", {})

    assert wechat.view().bot(bot.id)["online"] is False


# --- media ------------------------------------------------------------------------------------------------------------


def announced(bot: IlinkBot, plain: bytes, key: bytes) -> Json:
    body = {
        "filekey": "ab" * 16,
        "media_type": 1,
        "to_user_id": bot.owner,
        "rawsize": len(plain),
        "rawfilemd5": md5_hex(plain),
        "filesize": padded_size(len(plain)),
        "no_need_thumb": True,
        "aeskey": key.hex(),
    }
    return bot.answer("getuploadurl", body)


def upload(url: str, secret: bytes, *, headers: dict[str, str] | None = None) -> httpx.Response:
    octets = {"Content-Type": "application/octet-stream", **(headers or {})}
    return httpx.post(url, content=secret, headers=octets, trust_env=False)


def by_parameter(wechat: SimulatedWeChat, allowed: Json) -> str:
    return (
        f"{wechat.cdn_url}/upload?encrypted_query_param={quoted(allowed['upload_param'])}&filekey={allowed['filekey']}"
    )


def test_a_picture_goes_up_by_full_url_or_parameter_and_shows_on_the_phone(
    wechat: SimulatedWeChat, bot: IlinkBot
) -> None:
    wechat.say(bot.owner, "draw")
    message, key, plain = bot.inbound(), bytes(range(16)), b"\x89PNG picture"
    allowed = announced(bot, plain, key)

    for url in (allowed["upload_full_url"], by_parameter(wechat, allowed)):
        param = upload(url, encrypt(key, plain)).headers["x-encrypted-param"]
        media = {
            "encrypt_query_param": param,
            "aes_key": "MDAwMTAyMDMwNDA1MDYwNzA4MDkwYTBiMGMwZDBlMGY=",
            "encrypt_type": 1,
        }
        item = {"type": 2, "image_item": {"media": media, "mid_size": 16}}
        assert bot.send_item(bot.owner, message["context_token"], item)["ret"] == 0

    first, second = wechat.bubbles(bot.owner)
    assert wechat.media(first) == wechat.media(second) == plain


def test_what_a_person_attaches_is_downloaded_by_url_or_ticket(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.attach(bot.owner, "file", b"%PDF-1.7", name="报告.pdf")
    media = bot.inbound()["item_list"][0]["file_item"]["media"]
    ticket_url = f"{wechat.cdn_url}/download?encrypted_query_param={quoted(media['encrypt_query_param'])}"

    bodies = [httpx.get(url, trust_env=False).content for url in (media["full_url"], ticket_url)]

    assert [decrypt(read_key(media["aes_key"])[0], body) for body in bodies] == [b"%PDF-1.7"] * 2
    unknown = httpx.get(f"{wechat.cdn_url}/download?encrypted_query_param=x", trust_env=False)
    assert unknown.status_code == 404


def test_the_cdn_refuses_put_a_wrong_length_and_a_leaked_token(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    url = announced(bot, b"x", bytes(16))["upload_full_url"]

    put = httpx.put(url, content=bytes(16), trust_env=False)
    short = upload(url, bytes(15))
    leaked = upload(url, bytes(16), headers={"Authorization": f"Bearer {bot.token}"})

    assert put.status_code == 404
    assert (short.status_code, "x-error-message" in short.headers) == (400, True)
    assert (leaked.status_code, leaked.headers["x-error-message"]) == (403, "unexpected credentials")


def test_cdn_faults_are_what_they_say(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    secret = encrypt(bytes(16), b"x" * 60_000)
    allowed = announced(bot, b"x" * 60_000, bytes(16))
    url = allowed["upload_full_url"]
    wechat.set_fault("http_status", path="cdn/upload", status=500, times=2)
    wechat.set_fault("http_status", path="cdn/upload", status=403, headers={"x-error-message": "no"}, after=2, times=1)
    wechat.set_fault("no_encrypted_param", times=1)
    wechat.set_fault("param_upload_fails", over_bytes=50_000)

    tries = [upload(url, secret) for _ in range(5)]

    assert [answer.status_code for answer in tries] == [500, 500, 403, 200, 200]
    assert tries[2].headers["x-error-message"] == "no"
    assert ["x-encrypted-param" in answer.headers for answer in tries[3:]] == [False, True]
    assert upload(by_parameter(wechat, allowed), secret).status_code == 500


def test_spoiled_downloads_are_short_or_badly_padded(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.attach(bot.owner, "file", b"0123456789", name="a.txt")
    media = bot.inbound()["item_list"][0]["file_item"]["media"]
    key = read_key(media["aes_key"])[0]
    wechat.set_fault("short_download", missing_bytes=3, times=1)
    wechat.set_fault("bad_padding", after=1, times=1)

    short, padded, good = [httpx.get(media["full_url"], trust_env=False).content for _ in range(3)]

    assert len(short) == 13
    with pytest.raises(ValueError, match="padding"):
        decrypt(key, padded)
    assert decrypt(key, good) == b"0123456789"


def test_upload_addresses_can_be_missing_or_refused(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.set_fault("upload_param_only", times=1)
    assert announced(bot, b"x", bytes(16)).keys() >= {"upload_param"}
    wechat.set_fault("no_upload_url", times=1)
    assert not {"upload_param", "upload_full_url"} & announced(bot, b"x", bytes(16)).keys()
    wechat.set_fault("refuse_upload", times=1)
    assert announced(bot, b"x", bytes(16))["ret"] == -2
    assert "upload_full_url" in announced(bot, b"x", bytes(16))


# --- faults of the service --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("envelope", "codes"),
    [("errcode", {"errcode": -14}), ("ret", {"ret": -14}), ("both", {"errcode": -14, "ret": -14})],
)
def test_a_stale_session_comes_in_each_envelope_and_only_where_asked(
    wechat: SimulatedWeChat, bot: IlinkBot, envelope: str, codes: Json
) -> None:
    wechat.set_fault("stale_session", envelope=envelope, path="sendmessage")

    assert bot.send(bot.owner) == {**codes, "errmsg": "session timeout"}
    assert bot.poll()["msgs"] == []


def test_a_session_turns_stale_after_n_polls_and_notifystart_revives_it(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.set_fault("stale_session", path="getupdates", after=1, until="notifystart")
    wechat.set_fault("no_hold")

    before, after, still = bot.poll(), bot.poll(), bot.poll()
    bot.answer("msg/notifystart", {})

    assert before["msgs"] == []
    assert after == still == STALE
    assert bot.poll()["msgs"] == []


def test_a_switch_ends_a_poll_that_is_held(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.change_settings(hold_s=60)
    poll = Background(bot.poll)
    polls_in_flight(wechat, bot, 1)

    wechat.set_fault("stale_session", bot=bot.id)

    assert poll.join() == STALE


def test_the_nth_send_is_refused_with_any_code(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.say(bot.owner, "hi")
    message = bot.inbound()
    wechat.set_fault("reject_send", after=1, times=1, code=-77, errmsg="surprise")

    answers = [bot.send(message) for _ in range(3)]

    assert answers[1] == {"ret": -77, "errmsg": "surprise"}
    assert [answer["ret"] for answer in answers] == [0, -77, 0]
    assert [send["outcome"] for send in wechat.sends(bot.id)] == ["delivered", "rejected", "delivered"]


def test_a_send_without_message_id_comes_in_three_forms(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.say(bot.owner, "hi")
    message = bot.inbound()
    bodies = []
    for form in ("ret", "object", "empty"):
        wechat.set_fault("no_message_id", answer=form, times=1)
        item = {"type": 1, "text_item": {"text": form}}
        bodies.append(bot.send_raw(bot.owner, message["context_token"], item).content)

    assert bodies == [b'{"ret":0}', b"{}", b""]
    assert wechat.bubbles(bot.owner) == []


def test_cursor_hint_ret_and_ids_can_be_odd(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.set_fault("no_hold")
    hints: list[Any] = [None, 0, -1, "35000", 1e12]
    for hint in hints:
        wechat.set_fault("odd_hint", value=hint)
        assert bot.poll()["longpolling_timeout_ms"] == hint
        wechat.clear_faults("odd_hint")
    for fault, check in (
        ({"name": "odd_hint", "mode": "absent"}, lambda told: "longpolling_timeout_ms" not in told),
        ({"name": "odd_cursor", "value": "empty"}, lambda told: told["get_updates_buf"] == ""),
        ({"name": "odd_cursor", "value": "absent"}, lambda told: "get_updates_buf" not in told),
        ({"name": "ret_zero"}, lambda told: told["ret"] == 0),
    ):
        wechat.set_fault(**fault, times=1)
        assert check(bot.poll()), fault

    wechat.set_fault("huge_ids", times=1)
    wechat.say(bot.owner, "huge")
    assert bot.inbound()["message_id"] > 2**64 - 1000
    wechat.set_fault("string_ids")
    wechat.say(bot.owner, "string")
    assert isinstance(bot.inbound()["message_id"], str)


def test_strict_headers_turn_a_missing_one_into_stale(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.set_fault("strict_headers")
    wechat.set_fault("no_hold")
    full = {**OFFICIAL, "Authorization": f"Bearer {bot.token}"}

    assert bot.post("getupdates", {}, headers=full).json()["msgs"] == []
    for name in OFFICIAL:
        fewer = {key: value for key, value in full.items() if key != name}
        if name == "Content-Type":
            fewer["Content-Type"] = "text/plain"
        assert bot.post("getupdates", {}, headers=fewer).json() == STALE, name


def test_typing_and_its_ticket_can_be_refused(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.say(bot.owner, "hi")
    ticket = bot.typing_ticket(bot.owner)
    for code in (-2, -4, -1):
        wechat.set_fault("refuse_typing", path="getconfig", code=code, times=1)
        assert bot.answer("getconfig", {"ilink_user_id": bot.owner})["ret"] == code
    wechat.set_fault("refuse_typing", path="sendtyping", code=-2, times=1)
    body = {"ilink_user_id": bot.owner, "typing_ticket": ticket, "status": 1}

    assert bot.answer("sendtyping", body)["ret"] == -2
    assert bot.answer("sendtyping", body)["ret"] == 0
    assert wechat.view().typing(bot.owner)


def test_a_requested_hold_is_mirrored_and_only_by_switch_honoured(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.change_settings(hold_s=0.6)
    began = time.monotonic()
    mirrored = bot.poll(longpolling_timeout_ms=100)
    ignored_s = time.monotonic() - began
    wechat.change_settings(hold_s=60)
    wechat.set_fault("honour_hold")

    honoured = bot.poll(longpolling_timeout_ms=100)

    assert ignored_s >= 0.6
    assert mirrored["longpolling_timeout_ms"] == honoured["longpolling_timeout_ms"] == 100


def test_a_hang_outlasts_hold_and_messages(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.set_fault("hang", hang_ms=60_000, times=1)
    wechat.say(bot.owner, "waiting")

    with pytest.raises(httpx.ReadTimeout):
        bot.post("getupdates", {}, timeout_s=1)

    assert len(bot.poll()["msgs"]) == 1


def test_quotes_shrink_to_ids_and_unknown_items_and_groups_come_on_request(
    wechat: SimulatedWeChat, bot: IlinkBot
) -> None:
    first = wechat.say(bot.owner, "before")
    wechat.set_fault("id_only_quotes", times=1)
    wechat.say(bot.owner, "after", quote={"message_id": first.message_id})
    wechat.say(bot.owner, item={"type": 99, "sticker_item": {}})
    wechat.say(bot.owner, "all of you", group_id="room@chatroom")
    wechat.attach(bot.owner, "voice", b"\x02#!SILK_V3", transcript="你好")

    _, quoting, sticker, group, voice = bot.poll()["msgs"]

    assert quoting["item_list"][0]["ref_msg"] == {"svr_id": int(first.message_id)}
    assert sticker["item_list"] == [{"type": 99, "sticker_item": {}}]
    assert group["group_id"] == "room@chatroom"
    assert voice["item_list"][0]["voice_item"]["text"] == "你好"


# --- faults of the wire -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [412, 500, 502, 524])
def test_an_http_status_comes_before_or_after_the_send_happened(
    wechat: SimulatedWeChat, bot: IlinkBot, status: int
) -> None:
    wechat.say(bot.owner, "hi")
    message = bot.inbound()
    item = {"type": 1, "text_item": {"text": "yes"}}
    wechat.set_fault("http_status", path="sendmessage", status=status, body="gateway", times=1)
    wechat.set_fault("http_status", path="sendmessage", status=status, when="after", after=1, times=1)

    lost = bot.send_raw(bot.owner, message["context_token"], item)
    assert wechat.bubbles(bot.owner) == []
    done = bot.send_raw(bot.owner, message["context_token"], item)

    assert (lost.status_code, lost.text, done.status_code) == (status, "gateway", status)
    assert len(wechat.bubbles(bot.owner)) == 1


@pytest.mark.parametrize(
    ("fault", "body"),
    [
        ({"name": "html_page"}, lambda text: text.startswith("<!doctype html>")),
        ({"name": "empty_body"}, lambda text: text == ""),
        ({"name": "fixed_answer", "body": {"ret": -99}}, lambda text: text == '{"ret":-99}'),
        ({"name": "fixed_answer"}, lambda text: text == "{}"),
        ({"name": "truncated_json"}, lambda text: text.startswith('{"ret"') and not text.endswith("}")),
    ],
)
def test_a_200_with_an_unusable_body(wechat: SimulatedWeChat, bot: IlinkBot, fault: Json, body: Any) -> None:
    wechat.say(bot.owner, "hi")
    wechat.set_fault(**fault, path="getconfig", times=1)

    answer = bot.post("getconfig", {"ilink_user_id": bot.owner})

    assert answer.status_code == 200
    assert body(answer.text), answer.text


@pytest.mark.parametrize("fault", ["close_unanswered", "cut_body"])
def test_a_connection_that_breaks(wechat: SimulatedWeChat, bot: IlinkBot, fault: str) -> None:
    wechat.set_fault(fault, path="getconfig", times=1)

    with pytest.raises(httpx.RemoteProtocolError):
        bot.post("getconfig", {"ilink_user_id": bot.owner})

    assert bot.answer("getconfig", {"ilink_user_id": bot.owner})["ret"] == -4


def test_silence_lasts_until_the_client_leaves(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.set_fault("never_answer", path="getconfig", times=1)

    with pytest.raises(httpx.ReadTimeout):
        bot.post("getconfig", {}, timeout_s=1)

    assert wechat.requests("getconfig")[-1]["fault"] == "never_answer"


def test_a_dribbled_body_and_a_late_answer_arrive_whole_but_slowly(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.set_fault("dribbled_body", path="getconfig", gap_ms=5, step_bytes=4, times=1)
    wechat.set_fault("late", path="getconfig", delay_ms=200, after=1, times=1)

    for least_s in (0.05, 0.2):
        began = time.monotonic()
        assert bot.answer("getconfig", {"ilink_user_id": bot.owner})["ret"] == -4
        assert time.monotonic() - began >= least_s


def test_a_batch_whose_answer_was_lost_is_lost_unless_rewind_is_on(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    for rewind, left in ((False, 0), (True, 1)):
        cursor = bot.poll()["get_updates_buf"]
        if rewind:
            wechat.set_fault("rewind")
        wechat.say(bot.owner, "hi")
        wechat.set_fault("cut_body", path="getupdates", times=1)
        with pytest.raises(httpx.RemoteProtocolError):
            bot.poll(cursor)

        assert len(bot.poll(cursor)["msgs"]) == left


def test_several_faults_hold_together_and_each_for_its_bot(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    other = sign_in(wechat, wechat.add_person())
    wechat.set_fault("no_hold", bot=bot.id)
    wechat.set_fault("ret_zero", bot=bot.id)
    wechat.set_fault("http_status", bot=bot.id, path="getconfig", status=502)

    assert bot.poll()["ret"] == 0
    assert bot.post("getconfig", {}).status_code == 502
    assert "ret" not in other.poll()
    assert other.post("getconfig", {}).status_code == 200


def test_a_request_costs_the_server_less_than_two_milliseconds(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.say(bot.owner, "hi")
    for _ in range(30):
        bot.answer("getconfig", {"ilink_user_id": bot.owner})

    took = sorted(request["took_ms"] for request in wechat.requests("getconfig")[-30:])

    # The lower quartile: what the server adds, not what a busy machine does.
    assert took[len(took) // 4] < 2.0


def test_answers_leave_without_nagles_delay(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    # Two writes (head, body) on one kept connection: with Nagle's algorithm each answer would take 40 ms.
    with httpx.Client(base_url=wechat.base_url, trust_env=False) as http:
        http.get("/sim/clock")
        took = []
        for _ in range(10):
            began = time.perf_counter()
            http.get("/sim/clock")
            took.append(time.perf_counter() - began)

    assert min(took) < 0.03


def test_the_port_listens_on_loopback_only(wechat: SimulatedWeChat) -> None:
    port = int(wechat.base_url.rsplit(":", 1)[1])
    with socket.socket() as probe:
        probe.settimeout(2)
        # 127.0.0.2 is loopback too, but not the address we bind: a wildcard bind would take it.
        assert probe.connect_ex(("127.0.0.2", port)) != 0
