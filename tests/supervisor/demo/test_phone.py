"""The phone page in a real browser, driven by clicks and keys, against the service alone."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.fakes.ilink_bot import IlinkBot
from tests.fakes.phone import Page, browser
from tests.fakes.wechat import SimulatedWeChat

pytestmark = pytest.mark.second

OWNER = "owner@im.wechat"
STRANGER = "stranger@im.wechat"


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with browser() as driver:
        yield driver


@pytest.fixture
def wechat() -> Iterator[SimulatedWeChat]:
    with SimulatedWeChat(hold_s=5) as wechat:
        yield wechat


@pytest.fixture
def page(driver: webdriver.Chrome, wechat: SimulatedWeChat) -> Page:
    driver.get(wechat.page_url)
    return Page(driver)


def log_in_by_click(wechat: SimulatedWeChat, page: Page) -> IlinkBot:
    with httpx.Client(base_url=wechat.base_url, trust_env=False, timeout=30) as http:
        ticket = http.post("/ilink/bot/get_bot_qrcode?bot_type=3").json()["qrcode"]
        page.the("qr")
        page.the("scan-button").click()
        told = http.get("/ilink/bot/get_qrcode_status", params={"qrcode": ticket}).json()
        while told["status"] == "wait":
            told = http.get("/ilink/bot/get_qrcode_status", params={"qrcode": ticket}).json()
    return IlinkBot(wechat.base_url, told["bot_token"], told["ilink_bot_id"], told["ilink_user_id"])


def test_a_click_scans_the_qr_and_enter_sends_and_the_answer_shows(wechat: SimulatedWeChat, page: Page) -> None:
    bot = log_in_by_click(wechat, page)
    page.writes("what is up")
    page.waits_for(("me", "what is up"))

    bot.send(bot.inbound(), "not much")

    page.waits_for(("bot", "not much"))
    assert bot.owner == OWNER
    assert "9 of 10" in page.the("budget").text
    assert not page.all("qr")


def test_words_of_others_are_never_markup(wechat: SimulatedWeChat, page: Page) -> None:
    bot = log_in_by_click(wechat, page)
    hostile = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>"
    page.writes(hostile)

    bot.send(bot.inbound(), hostile)

    page.waits_for(("bot", hostile))
    page.waits_for(("me", hostile))
    assert page.driver.title == "Simulated WeChat"


def test_typing_shows_and_goes(wechat: SimulatedWeChat, page: Page) -> None:
    bot = log_in_by_click(wechat, page)
    page.writes("hello")
    bot.inbound()
    body = {"ilink_user_id": OWNER, "typing_ticket": bot.typing_ticket(OWNER)}

    bot.answer("sendtyping", {**body, "status": 1})
    page.the("typing")
    bot.answer("sendtyping", {**body, "status": 2})

    WebDriverWait(page.driver, 30).until(lambda _: not page.all("typing"))


def test_a_stranger_writes_to_the_owners_agent(wechat: SimulatedWeChat, page: Page) -> None:
    bot = log_in_by_click(wechat, page)
    page.the("tab-stranger").click()
    page.writes("let me in")

    message = bot.inbound()

    assert message["from_user_id"] == STRANGER
    page.waits_for(("me", "let me in"))
    page.the("tab-owner").click()
    assert page.bubbles() == []


def test_a_file_is_attached_by_the_picker_and_offered_for_download(
    wechat: SimulatedWeChat, page: Page, tmp_path: Path
) -> None:
    bot = log_in_by_click(wechat, page)
    report = tmp_path / "report.pdf"
    report.write_bytes(b"%PDF-1.7")
    WebDriverWait(page.driver, 30).until(lambda _: page.the("composer").is_enabled())

    page.all("file")[0].send_keys(str(report))

    item = bot.inbound()["item_list"][0]
    link = WebDriverWait(page.driver, 30).until(
        lambda driver: driver.find_elements(By.CSS_SELECTOR, '[data-testid="bubble"] a')
    )[0]
    assert (item["type"], item["file_item"]["file_name"]) == (4, "report.pdf")
    assert link.get_attribute("download") == "report.pdf"


def test_a_number_can_be_asked_for_before_the_login(wechat: SimulatedWeChat, page: Page) -> None:
    with httpx.Client(base_url=wechat.base_url, trust_env=False, timeout=30) as http:
        ticket = http.post("/ilink/bot/get_bot_qrcode?bot_type=3").json()["qrcode"]
        page.the("scan-with-code").click()
        number = (
            WebDriverWait(page.driver, 30).until(lambda d: d.find_elements(By.CSS_SELECTOR, ".login .code"))[0].text
        )

        asked = http.get("/ilink/bot/get_qrcode_status", params={"qrcode": ticket}).json()
        answered = http.get("/ilink/bot/get_qrcode_status", params={"qrcode": ticket, "verify_code": number}).json()

    assert [asked["status"], answered["status"]] == ["need_verifycode", "scaned"]


def test_the_page_says_what_the_demo_wants_it_to_say(wechat: SimulatedWeChat, page: Page) -> None:
    wechat.change_settings(note="The agent follows a script.")

    assert page.the("note").text == "The agent follows a script."
