"""The pictures of README and docs/: the demo's phone page in a headless browser, the control screen as Textual draws it.

python -m tests.screenshots FOLDER
"""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from supervisor.console.screen import ControlScreen
from tests.fakes.bridge import DEADLINE_S, ROOT
from tests.fakes.phone import Page, browser
from tests.fakes.workers import until


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    demo = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "demo"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert demo.stdout is not None
        said = demo.stdout.readline() + demo.stdout.readline()
        page, home = re.search(r"http://\S+", said), re.search(r"--home (\S+)", said)
        assert page and home, said
        with browser() as driver:
            _phone(driver, page[0], folder / "phone.png")
        picture = asyncio.run(_control_screen(Path(home[1])))
        (folder / "control-screen.svg").write_text(picture, encoding="utf-8")
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(DEADLINE_S)


def _phone(driver: webdriver.Chrome, url: str, file: Path) -> None:
    """The owner lets a file be written; then, for the control screen, a stranger writes."""
    driver.set_window_size(1000, 960)
    driver.get(url)
    page = Page(driver)

    def hears(words: str) -> None:
        WebDriverWait(driver, DEADLINE_S).until(
            lambda _: any(side == "bot" and words in text for side, text in page.bubbles())
        )

    page.the("scan-button").click()
    page.writes("hello")
    hears("script")
    page.writes("write a file")
    hears("hello.txt")
    page.writes("1")
    hears("Written")
    driver.save_screenshot(str(file))
    page.the("tab-stranger").click()
    page.writes("let me in")


async def _control_screen(home: Path) -> str:
    app = ControlScreen(home)
    async with app.run_test(size=(100, 28)):
        shown: Callable[[], str] = app.export_screenshot
        await until(
            lambda: "owner" in shown() and "stranger" in shown() and "part_sent" in shown(), within_s=DEADLINE_S
        )
        # Fonts by name from whoever looks at it: nothing is fetched from elsewhere.
        picture = re.sub(r"@font-face \{.*?\}\s*", "", app.export_screenshot(title="bridge-ctl"), flags=re.DOTALL)
    return picture.replace("Fira Code", "monospace")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
