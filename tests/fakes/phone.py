"""The phone page in a real headless browser: the browser, and the page by its test ids."""

import contextlib
import os
import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
QUIETER = ("--disable-background-networking", "--disable-component-update", "--window-size=1000,800")


class Page:
    """The page by its test ids."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def all(self, name: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, f'[data-testid="{name}"]')

    def the(self, name: str) -> WebElement:
        return WebDriverWait(self.driver, 30).until(
            lambda _: next((e for e in self.all(name) if e.is_displayed()), None)
        )

    def bubbles(self) -> list[tuple[str, str]]:
        script = (
            "return [...document.querySelectorAll('[data-testid=bubble]')]"
            ".map((bubble) => [bubble.dataset.side, bubble.innerText])"
        )
        return [(side, text) for side, text in self.driver.execute_script(script)]

    def waits_for(self, bubble: tuple[str, str]) -> None:
        WebDriverWait(self.driver, 30).until(lambda _: bubble in self.bubbles())

    def writes(self, text: str) -> None:
        WebDriverWait(self.driver, 30).until(lambda _: self.the("composer").is_enabled())
        self.the("composer").send_keys(text, Keys.ENTER)


@contextlib.contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Skips where there is none, and says so; in CI that is a failure."""
    program = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    chauffeur = shutil.which("chromedriver")
    if program is None or chauffeur is None:
        reason = "no Chromium with chromedriver on PATH"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for switch in (*QUIET, *QUIETER):
        options.add_argument(switch)
    driver = webdriver.Chrome(options=options, service=Service(chauffeur))
    try:
        yield driver
    finally:
        driver.quit()
