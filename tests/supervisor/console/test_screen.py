"""The control screen at 80×24, driven by Textual's pilot. Behind it is a real control socket with a scripted supervisor."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable

from protocol.ctl import (
    AccountRow,
    Allow,
    Cancel,
    CodeWanted,
    CtlReply,
    CtlRequest,
    DialogRow,
    Done,
    EventBatch,
    EventRow,
    Events,
    Failed,
    History,
    HistoryLine,
    HistoryReply,
    IsolationRow,
    LockRow,
    Login,
    Logout,
    NeedsYes,
    Pause,
    PeerRow,
    Progress,
    QrShown,
    RefusedRow,
    Reset,
    Resume,
    Status,
    StatusReply,
    Stop,
    TurnRow,
    WorkerRow,
)
from supervisor.console.screen import ControlScreen
from supervisor.ctlserver import Conversation, CtlServer
from supervisor.home import Home
from supervisor.lockfile import HomeLock
from tests.fakes.workers import until

HOSTILE = "[/foo] [red]x[/red] \x1b[2J\u202eevil"


def account(name: str = "default", state: str = "running") -> AccountRow:
    return AccountRow(
        account=f"{name}@im.bot",
        name=name,
        owner="me@im.wechat",
        role="operator",
        state=state,
        token_age_s=90.0,
        last_poll_age_s=1.0,
        last_hold_s=18.2,
        poll_failures=0,
        last_error=None,
        lock=LockRow(True, 1),
    )


def peer(name: str, state: str = "idle") -> PeerRow:
    layers = ["landlock", "seccomp"]
    worker = WorkerRow(5151, 3, 0.0, 31 * 1024 * 1024, layers, [], {"memory": "watched"})
    return PeerRow(
        peer=f"{name}@im.wechat",
        label=name,
        account="default@im.bot",
        role="guest",
        agent="echo",
        access="readonly",
        state=state,
        turn=TurnRow("7", 3.0) if state == "running" else None,
        queued=1,
        turns=7,
        budget_left=6,
        parked_parts=2,
        session_age_s=None,
        media_bytes=0,
        worker=worker,
    )


def status(**changed: Any) -> StatusReply:
    made = StatusReply(
        version="0.1.0",
        pid=1,
        uptime_s=1.0,
        home="/h",
        isolation=IsolationRow("required", "strong", []),
        accounts=[account()],
        peers=[peer("alice", "running"), peer("bob")],
        refused=[],
        dialogs=[],
        counters={},
        problems=[],
    )
    return msgspec.structs.replace(made, **changed)


@dataclass
class Supervisor:
    """answers: what each kind of order is answered with; heard: the orders. tell() makes an event happen."""

    status: StatusReply
    answers: dict[type[Any], list[CtlReply]] = field(default_factory=dict)
    heard: list[CtlRequest] = field(default_factory=list)
    silent: bool = False
    looks: int = 0

    def __post_init__(self) -> None:
        self._events: list[EventRow] = []
        self._more = asyncio.Event()

    def tell(self, name: str, **data: str) -> None:
        at = "2026-11-30T12:00:00.000Z"
        self._events.append(EventRow(len(self._events) + 1, at, name, None, "alice@im.wechat", None, dict(data)))
        self._more.set()

    async def handle(self, request: CtlRequest, talk: Conversation) -> None:
        match request:
            case Status():
                self.looks += 1
                if self.silent:
                    await asyncio.sleep(3600)
                talk.reply(self.status)
            case Events():
                seen = 0
                while True:
                    if self._events[seen:]:
                        talk.reply(EventBatch(self._events[seen:]))
                        seen = len(self._events)
                    self._more.clear()
                    await self._more.wait()
            case _:
                self.heard.append(request)
                for reply in self.answers.get(type(request), [Done(["done so"])]):
                    talk.reply(reply)
                    if isinstance(reply, CodeWanted):
                        talk.reply(Done([f"signed in with {(await talk.next()).code}"]))


class Driven:
    """The screen, its supervisor, and keys."""

    def __init__(self, app: ControlScreen, pilot: Pilot[None], behind: Supervisor) -> None:
        self.app, self.pilot, self.behind = app, pilot, behind

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    def text(self) -> str:
        """All that stands on the terminal."""
        lines = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in lines)

    async def shows(self, *words: str) -> str:
        try:
            await until(lambda: all(word in self.text() for word in words), within_s=20)
        except TimeoutError:
            raise AssertionError(f"not {words} but:\n{self.text()}") from None
        return self.text()

    async def heard(self, *orders: CtlRequest) -> None:
        await until(lambda: self.behind.heard == list(orders))


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="b") as folder:  # short, since a socket lies below it
        made = Home(Path(folder))
        made.make()
        yield made


@contextlib.asynccontextmanager
async def driven(home: Home, behind: Supervisor, *, ready: bool = True) -> AsyncIterator[Driven]:
    with HomeLock(home.lock):
        server = CtlServer(home)
        serving = asyncio.ensure_future(server.serve(behind.handle))
        try:
            app = ControlScreen(home.path)
            async with app.run_test(size=(80, 24)) as pilot:
                screen = Driven(app, pilot, behind)
                if ready:
                    await screen.shows("default")
                yield screen
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            server.close()


Scenario = Callable[[Driven], Any]


def play(home: Home, behind: Callable[[], Supervisor], scenario: Scenario, *, ready: bool = True) -> None:
    async def play_it() -> None:
        async with driven(home, behind(), ready=ready) as screen:
            await scenario(screen)

    asyncio.run(play_it())


def test_accounts_peers_questions_refused_and_events_stand_on_24_lines(home: Home) -> None:
    dialog = DialogRow("alice@im.wechat", "default@im.bot", "select", "Pick one", 2.0, 178.0)
    refused = [RefusedRow("mallory@im.wechat", "default@im.bot", 3, 5.0)]

    async def scenario(screen: Driven) -> None:
        screen.behind.tell("worker_ready", after_ms="12")
        text = await screen.shows("worker_ready")
        for words in (
            *("default", "operator", "running", "18.2 s", "alice", "bob", "5151", "31 MB"),
            *("questions 1: alice@im.wechat: Pick one", "refused 1: mallory", "? help q"),
        ):
            assert words in text, words
        assert len(text.splitlines()) == 24
        assert max(map(len, text.splitlines())) <= 80

    play(home, lambda: Supervisor(status(dialogs=[dialog], refused=refused)), scenario)


def test_what_changes_is_shown_within_the_blink_of_an_eye_of_its_event(home: Home) -> None:
    """300 ms are promised; the deadline of a busy machine is another."""

    async def scenario(screen: Driven) -> None:
        await until(lambda: screen.behind.looks >= 1)
        screen.behind.status = status(peers=[peer("carol")])
        began = time.monotonic()
        screen.behind.tell("turn_started")
        await screen.shows("carol")
        assert time.monotonic() - began < 10

    play(home, lambda: Supervisor(status()), scenario)


def test_orders_go_to_the_row_under_the_cursor(home: Home) -> None:
    async def scenario(screen: Driven) -> None:
        await screen.press("s")
        await screen.shows("done so")
        await screen.press("j", "d")
        alice, bob = "default@im.bot/alice@im.wechat", "default@im.bot/bob@im.wechat"
        await screen.heard(Stop(alice), Reset(bob))
        await screen.press("j", "k", "k", "c")
        await screen.heard(Stop(alice), Reset(bob), Cancel(alice))

    play(home, lambda: Supervisor(status()), scenario)


def test_the_cursor_stays_on_its_row_when_others_change(home: Home) -> None:
    async def scenario(screen: Driven) -> None:
        await screen.press("j")
        screen.behind.status = status(peers=[peer("alice"), peer("bob", "running")])
        screen.behind.tell("turn_started")
        await until(lambda: "3 s" in screen.text().split("bob")[1].splitlines()[0])
        assert screen.app.query_one("#peers", DataTable).cursor_row == 1

    play(home, lambda: Supervisor(status()), scenario)


@pytest.mark.parametrize(
    ("state", "order"), [("running", Pause("default@im.bot")), ("paused", Resume("default@im.bot"))]
)
def test_p_pauses_and_resumes(home: Home, state: str, order: CtlRequest) -> None:
    async def scenario(screen: Driven) -> None:
        await screen.press("p")
        await screen.heard(order)

    play(home, lambda: Supervisor(status(accounts=[account(state=state)])), scenario)


@pytest.mark.parametrize(("key", "goes"), [("y", True), ("n", False), ("enter", False), ("escape", False)])
def test_what_needs_a_yes_asks_and_anything_else_means_no(home: Home, key: str, goes: bool) -> None:
    asked = Logout("default@im.bot")

    async def scenario(screen: Driven) -> None:
        await screen.press("o")
        await screen.shows("Forget the login?")
        screen.behind.answers[Logout] = [Done(["logged out"])]
        await screen.press(key)
        await screen.shows("logged out" if goes else "nothing was done")
        await screen.heard(*([asked, msgspec.structs.replace(asked, yes=True)] if goes else [asked]))

    play(home, lambda: Supervisor(status(), {Logout: [NeedsYes(["Forget the login?"])]}), scenario)


def test_a_refused_sender_is_chosen_from_a_list(home: Home) -> None:
    refused = [RefusedRow(f"{name}@im.wechat", "default@im.bot", 3, 5.0) for name in ("mallory", "trudy")]

    async def scenario(screen: Driven) -> None:
        await screen.press("a")
        await screen.shows("trudy@im.wechat  3×")
        await screen.press("j", "enter")
        await screen.heard(Allow(peer="default@im.bot/trudy@im.wechat"))

    play(home, lambda: Supervisor(status(refused=refused)), scenario)


def test_history_opens_over_the_screen_and_closes(home: Home) -> None:
    lines = [HistoryLine("peer", f"message {number}", 60.0) for number in range(20)]

    async def scenario(screen: Driven) -> None:
        await screen.press("h")
        await screen.shows("message 3")
        await screen.heard(History("default@im.bot/alice@im.wechat", 20))
        await screen.press("escape")
        await until(lambda: "message 3" not in screen.text())

    play(home, lambda: Supervisor(status(), {History: [HistoryReply("alice@im.wechat", lines)]}), scenario)


def test_enter_opens_all_of_a_row_and_of_a_line(home: Home) -> None:
    refused = [RefusedRow("mallory@im.wechat", "default@im.bot", 3, 5.0)]

    async def scenario(screen: Driven) -> None:
        await screen.press("enter")
        await screen.shows("worker.isolation: landlock, seccomp", "worker.limits.memory: watched")
        await screen.press("escape", "tab", "tab", "enter")
        await screen.shows("mallory@im.wechat 3×, 5 s ago")

    play(home, lambda: Supervisor(status(refused=refused)), scenario)


def test_a_login_shows_its_code_asks_for_the_number_and_says_how_it_ended(home: Home) -> None:
    script = [QrShown("https://example.invalid/scan", 1, 3), Progress("scanned"), CodeWanted(False)]

    async def scenario(screen: Driven) -> None:
        await screen.press("l")
        await screen.shows("type the number")
        await screen.press("4", "2", "enter")
        await screen.shows("signed in with 42")
        await screen.heard(Login())

    play(home, lambda: Supervisor(status(), {Login: list(script)}), scenario)


def test_a_qr_code_fits_the_smallest_screen(home: Home) -> None:
    async def scenario(screen: Driven) -> None:
        await screen.press("l")
        text = await screen.shows("▄▄▄▄▄ ██", "qrcode=xxx")
        assert max(map(len, text.splitlines())) <= 80
        await screen.press("escape")
        await screen.shows("nobody was signed in")

    script: list[CtlReply] = [
        QrShown("https://liteapp.weixin.qq.com/q/7GiQu1?qrcode=" + "x" * 40, 1, 3),
        CodeWanted(False),
    ]
    play(home, lambda: Supervisor(status(), {Login: script}), scenario)


def test_a_refusal_is_one_line(home: Home) -> None:
    async def scenario(screen: Driven) -> None:
        await screen.press("d")
        await screen.shows("a turn is running")

    play(home, lambda: Supervisor(status(), {Reset: [Failed(1, "a turn is running")]}), scenario)


def test_a_supervisor_that_hangs_blocks_no_key(home: Home) -> None:
    def silent() -> Supervisor:
        behind = Supervisor(status())
        behind.silent = True
        return behind

    async def scenario(screen: Driven) -> None:
        await screen.press("question_mark")
        await screen.shows("withdraw its question")
        await screen.press("escape", "q")
        await until(lambda: not screen.app.is_running)

    play(home, silent, scenario, ready=False)


def test_a_supervisor_that_goes_away_is_named_and_found_again(home: Home) -> None:
    async def scenario() -> None:
        behind = Supervisor(status())
        async with driven(home, behind) as screen:
            home.lock.rename(home.lock.with_name("elsewhere"))
            await screen.shows("no supervisor runs")
            home.lock.with_name("elsewhere").rename(home.lock)
            await screen.shows("default running")

    asyncio.run(scenario())


def test_words_from_outside_are_shown_and_never_obeyed(home: Home) -> None:
    hostile = msgspec.structs.replace(peer("x"), peer=HOSTILE, label=HOSTILE)
    rows = [RefusedRow(HOSTILE, "default@im.bot", 1, 1.0)]
    dialogs = [DialogRow(HOSTILE, "default@im.bot", "select", HOSTILE, 1.0, 2.0)]
    named = replace_name(account())

    async def scenario(screen: Driven) -> None:
        screen.behind.tell("odd_thing", reason=HOSTILE)
        text = await screen.shows("refused 1: [/foo]", "odd_thing")
        assert "\x1b" not in text and "\u202e" not in text
        for keys in (("a", "escape"), ("enter", "escape"), ("h", "escape"), ("s",)):
            await screen.press(*keys)
        assert screen.app.is_running

    lines = [HistoryLine("peer", HOSTILE, 1.0)]
    made = status(peers=[hostile], refused=rows, dialogs=dialogs, accounts=[named])
    answers: dict[type[Any], list[CtlReply]] = {History: [HistoryReply(HOSTILE, lines)], Stop: [Done([HOSTILE])]}
    play(home, lambda: Supervisor(made, answers), scenario)


def replace_name(row: AccountRow) -> AccountRow:
    return msgspec.structs.replace(row, name=f"default{HOSTILE}")


def test_a_hundred_peers_scroll(home: Home) -> None:
    many = [peer(f"peer{number:03}") for number in range(100)]

    async def scenario(screen: Driven) -> None:
        await screen.press("end")
        await screen.shows("peer099")
        await screen.press("s")
        await screen.heard(Stop("default@im.bot/peer099@im.wechat"))

    play(home, lambda: Supervisor(status(peers=many)), scenario)
