"""`bridge-supervisor demo`, as a newcomer meets it: the program itself, and its page in a real browser."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from tests.fakes.bridge import CTL, DEADLINE_S, ROOT, assert_gone
from tests.fakes.phone import Page, browser

pytestmark = pytest.mark.second


@dataclass
class Demo:
    process: subprocess.Popen[str]
    url: str
    home: str

    def ctl(self, *arguments: str) -> str:
        command = [sys.executable, "-c", CTL, "--home", self.home, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, input="")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        return json.loads(self.ctl("status", "--json"))  # type: ignore[no-any-return]


@pytest.fixture(params=[("--agent", "echo")], ids=["echo"])
def demo(request: pytest.FixtureRequest) -> Iterator[Demo]:
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "demo", *request.param],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    said = process.stdout.readline() + process.stdout.readline()
    page, home = re.search(r"http://\S+", said), re.search(r"--home (\S+)", said)
    assert page and home, said
    tree = psutil.Process(process.pid).children(recursive=True)
    yield Demo(process, page[0], home[1])
    tree += psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 0
    process.stdout.close()
    assert_gone(tree)
    assert not os.path.exists(home[1]), "nothing of the demo is kept"


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with browser() as driver:
        yield driver


def until(driver: webdriver.Chrome, check: Any) -> Any:
    return WebDriverWait(driver, DEADLINE_S).until(lambda _: check())


def test_scan_write_read_the_answer_be_refused_as_a_stranger_be_allowed_be_answered(
    demo: Demo, driver: webdriver.Chrome
) -> None:
    driver.get(demo.url)
    page = Page(driver)

    page.the("scan-button").click()
    page.writes("hello from the phone")
    page.waits_for(("bot", "hello from the phone"))
    worker = next(row["worker"] for row in demo.status()["peers"] if row["label"] == "owner")
    assert psutil.pid_exists(worker["pid"]) and worker["pid"] != demo.process.pid

    page.the("tab-stranger").click()
    page.writes("let me in")
    refused = until(driver, lambda: demo.status()["refused"])
    assert refused[0]["peer"] == "stranger@im.wechat"
    assert ("bot", "let me in") not in page.bubbles()

    demo.ctl("allow", "stranger", "--yes")
    page.writes("and now?")
    page.waits_for(("bot", "and now?"))
    assert ("bot", "let me in") not in page.bubbles(), "what was refused stays refused"


def test_a_second_person_scans_and_becomes_a_guest_with_a_process_of_its_own(
    demo: Demo, driver: webdriver.Chrome
) -> None:
    driver.get(demo.url)
    page = Page(driver)
    page.the("scan-button").click()
    page.writes("one")
    page.waits_for(("bot", "one"))

    page.the("tab-guest").click()
    page.the("scan-button").click()
    page.writes("two")
    page.waits_for(("bot", "two"))

    rows = {row["label"]: row for row in demo.status()["peers"]}
    assert (rows["owner"]["role"], rows["guest"]["role"]) == ("operator", "guest")
    assert (rows["owner"]["access"], rows["guest"]["access"]) == ("workspace", "readonly")
    assert rows["owner"]["worker"]["pid"] != rows["guest"]["worker"]["pid"]


@pytest.mark.parametrize("demo", [()], ids=["as it comes"], indirect=True)
def test_without_a_key_a_scripted_model_answers_asks_and_writes(demo: Demo, driver: webdriver.Chrome) -> None:
    driver.get(demo.url)
    page = Page(driver)
    page.the("scan-button").click()
    page.writes("hello")
    until(driver, lambda: any(side == "bot" and "script" in text for side, text in page.bubbles()))

    page.writes("write a file")
    until(driver, lambda: any(side == "bot" and "hello.txt" in text for side, text in page.bubbles()))
    page.writes("1")
    until(driver, lambda: any(side == "bot" and "Written" in text for side, text in page.bubbles()))
    assert demo.status()["peers"][0]["agent"] == "builtin"
