"""The control API: phones, events, records, switches, and who may call it."""

import threading
from typing import Any

import httpx
import pytest

from tests.fakes.ilink_bot import IlinkBot, sign_in
from tests.fakes.wechat import SimulatedWeChat

PNG = b"\x89PNG\r\n\x1a\n rest"


@pytest.fixture
def http(wechat: SimulatedWeChat) -> Any:
    with httpx.Client(base_url=wechat.base_url, trust_env=False, timeout=30) as client:
        yield client


def test_people_are_made_once_by_id_or_name(wechat: SimulatedWeChat) -> None:
    chosen = wechat.add_person("carol@im.wechat", name="Carol")
    made = wechat.add_person(name="Dave")

    assert wechat.add_person("carol@im.wechat") == chosen == "carol@im.wechat"
    assert wechat.add_person(name="Dave") == made
    assert made.startswith("o9cq80") and made.endswith("@im.wechat")


def test_the_newest_pending_qr_is_scanned_and_drawn(wechat: SimulatedWeChat, http: httpx.Client) -> None:
    person = wechat.add_person()
    ticket = http.post("/ilink/bot/get_bot_qrcode?bot_type=3").json()["qrcode"]
    picture = http.get(f"/sim/tickets/{ticket}/qr.svg")

    assert http.post("/sim/scan", json={"person": person}).json() == {"ticket": ticket}

    assert picture.headers["content-type"] == "image/svg+xml"
    assert picture.text.startswith("<svg")
    assert http.get("/sim/tickets/unknown/qr.svg").status_code == 404


def test_events_wait_for_the_next_one(wechat: SimulatedWeChat, bot: IlinkBot, http: httpx.Client) -> None:
    since = wechat.view().last_event
    told: list[Any] = []
    waiting = threading.Thread(
        target=lambda: told.append(http.get("/sim/events", params={"since": since, "hold_s": 20}).json())
    )
    waiting.start()

    wechat.say(bot.owner, "hi")

    waiting.join(20)
    assert [event["event"] for event in told[0]["events"]] == ["said"]
    assert told[0]["last_event"] == told[0]["events"][-1]["seq"]
    assert http.get("/sim/events", params={"since": told[0]["last_event"]}).json()["events"] == []


def test_events_of_other_kinds_do_not_end_the_wait(wechat: SimulatedWeChat, bot: IlinkBot, http: httpx.Client) -> None:
    since = wechat.view().last_event
    wechat.say(bot.owner, "hi")
    bot.answer("msg/notifystart", {})

    told = http.get("/sim/events", params={"since": since, "hold_s": 20, "kinds": "notify,bubble"}).json()

    assert [event["event"] for event in told["events"]] == ["notify"]


def test_a_phone_shows_both_sides_in_order_and_what_is_left(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.say(bot.owner, "ask")
    bot.send(bot.inbound(), "answer")

    view = wechat.view()

    assert [(b.side, b.text) for b in view.bubbles(bot.owner, side="")] == [("me", "ask"), ("bot", "answer")]
    assert view.budget_left(bot.owner) == 9


def test_bubbles_since_a_number_are_only_the_newer_ones(
    wechat: SimulatedWeChat, bot: IlinkBot, http: httpx.Client
) -> None:
    wechat.say(bot.owner, "one")
    seen = wechat.bubbles(bot.owner, "me")[-1].seq
    wechat.say(bot.owner, "two")

    newer = http.get(f"/sim/people/{bot.owner}/phone", params={"since": seen}).json()["bubbles"]

    assert [b["text"] for b in newer] == ["two"]


def test_many_messages_can_be_said_in_one_call(wechat: SimulatedWeChat, bot: IlinkBot, http: httpx.Client) -> None:
    other = sign_in(wechat, wechat.add_person())
    orders = [{"person": b.owner, "said": {"text": "go"}} for b in (bot, other)]

    said = http.post("/sim/say", json=orders).json()["said"]

    assert [one["bot"] for one in said] == [bot.id, other.id]
    assert bot.inbound()["message_id"] == int(said[0]["message_id"])


def test_only_true_pictures_are_shown_and_nothing_runs_in_the_page(
    wechat: SimulatedWeChat, bot: IlinkBot, http: httpx.Client
) -> None:
    wechat.attach(bot.owner, "image", PNG)
    wechat.attach(bot.owner, "file", b"<script>alert(1)</script>", name="a.html")
    picture, page = [http.get(b.media["url"]) for b in wechat.bubbles(bot.owner, "me") if b.media]

    assert (picture.content, picture.headers["content-type"]) == (PNG, "image/png")
    assert page.headers["content-type"] == "application/octet-stream"
    assert page.headers["content-disposition"] == "attachment"
    assert "sandbox" in page.headers["content-security-policy"]


def test_the_page_is_one_file_with_a_strict_policy(http: httpx.Client) -> None:
    page = http.get("/")

    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page.text
    assert "innerHTML" not in page.text


def test_what_cannot_be_is_409_and_what_cannot_be_read_400(http: httpx.Client) -> None:
    for path, body, status in (
        ("/sim/people/nobody/say", {"text": "hi"}, 409),
        ("/sim/scan", {"person": "nobody", "ticket": "none"}, 409),
        ("/sim/revoke", {"bot": "none"}, 409),
        ("/sim/people/nobody/say", {"words": "hi"}, 400),
        ("/sim/faults", {"name": "no_such_switch"}, 400),
        ("/sim/faults", {"name": "hang", "hang_ms": "long"}, 400),
        ("/sim/clock", [], 400),
    ):
        answer = http.post(path, json=body)

        assert (answer.status_code, "error" in answer.json()) == (status, True), path


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}])
def test_a_foreign_web_page_reaches_nothing(http: httpx.Client, headers: dict[str, str]) -> None:
    assert http.post("/sim/people", json={}, headers=headers).status_code == 403


def test_settings_change_key_by_key_and_unknown_ones_are_refused(wechat: SimulatedWeChat, http: httpx.Client) -> None:
    wechat.change_settings(send_budget=3)

    assert http.get("/sim/settings").json()["send_budget"] == 3
    assert http.get("/sim/settings").json()["hold_s"] == 0.3
    assert http.patch("/sim/settings", json={"send_budgets": 3}).status_code == 400


def test_faults_are_listed_with_what_they_struck(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    number = wechat.set_fault("reject_send", after=1)
    for _ in range(3):
        bot.send(bot.owner)

    (row,) = wechat.faults()

    assert (row["number"], row["chances"], row["strikes"]) == (number, 3, 2)
    assert row["switch"]["name"] == "reject_send"


def test_stats_count_sends_by_outcome_and_polls(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    before = wechat.stats()["sends"].get("delivered", 0)
    wechat.say(bot.owner, "hi")
    bot.send(bot.inbound())

    stats = wechat.stats()

    assert stats["sends"]["delivered"] == before + 1
    assert next(b["polls"] for b in stats["bots"] if b["bot"] == bot.id) == 1


def test_a_bot_can_be_revoked_and_brought_back(wechat: SimulatedWeChat, bot: IlinkBot) -> None:
    wechat.revoke(bot.id)
    assert bot.poll()["errcode"] == -14

    wechat.revive(bot.id)

    assert bot.poll()["msgs"] == []
