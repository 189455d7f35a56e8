"""The control screen: what `bridge-ctl` shows on a terminal when it is called without a verb.

Accounts and peers are tables that scroll; questions, refused senders and events take a few lines; the last line names the
keys. Nothing here waits for the supervisor (feed.py does), and every word from outside is shown as it is, never as markup.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, OptionList, Static
from textual.widgets.option_list import Option

from protocol.ctl import (
    AccountRow,
    Allow,
    Cancel,
    CodeWanted,
    CtlReply,
    CtlRequest,
    Done,
    EventRow,
    Failed,
    History,
    HistoryReply,
    Login,
    Logout,
    NeedsYes,
    Pause,
    PeerRow,
    Progress,
    QrShown,
    Reset,
    Resume,
    StatusReply,
    Stop,
)
from supervisor.console import feed, render
from supervisor.console.render import safe

T = TypeVar("T")
Row = TypeVar("Row", AccountRow, PeerRow)

PEER_HEADS = ("PEER", "STATE", "SINCE", "Q", "LEFT", "PARK", "AGENT", "PID", "MEMORY")
CELL_COLUMNS = 16
EVENTS_KEPT = 200
EVENTS_SHOWN = 4
HISTORY_SHOWN = 20
KEYS = "s stop d fresh h history a allow c withdraw p pause l login o logout ? help q"
HELP = """\
j k, arrows  move            g G    first and last row
Tab          the other table, the lines below
Enter        all of the row, or all of the line

on the peer under the cursor
s  stop its turn             d  start a fresh conversation
h  its recent messages       c  withdraw its question

on the account under the cursor
p  pause it, or poll it again
l  sign in, this account or another one
o  log it out

a  admit somebody who was refused
r  look again now            ?  this help
Esc, q  close"""


def plain(text: str) -> Text:
    """As it is: no markup, no wrapping inside a cell."""
    return Text(text, no_wrap=True, overflow="ellipsis")


class Block(ModalScreen[None]):
    """Lines to read, over the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close"),
        Binding("j", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]

    def __init__(self, title: str, lines: Iterable[str]) -> None:
        super().__init__()
        self._title = title
        self._lines = list(lines)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="block") as block:
            block.border_title = Text(self._title).markup
            yield Static(Text("\n".join(self._lines)), markup=False)

    def action_scroll(self, lines: int) -> None:
        self.query_one("#block").scroll_relative(y=lines, animate=False)


class Question(ModalScreen[bool]):
    """Yes or no, and no is what any other key means."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        with Vertical(id="block"):
            yield Static(Text("\n".join([*self._lines, "", "y yes   any other key: no"])), markup=False)

    def on_key(self, event: object) -> None:
        self.dismiss(getattr(event, "key", "") == "y")


class Choice(ModalScreen[int | None]):
    """One of several lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "give_up", "close"),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        with Vertical(id="block") as block:
            block.border_title = Text(self._title).markup
            yield OptionList(*(Option(plain(line)) for line in self._lines), markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)

    def action_give_up(self) -> None:
        self.dismiss(None)

    def action_move(self, lines: int) -> None:
        options = self.query_one(OptionList)
        (options.action_cursor_down if lines > 0 else options.action_cursor_up)()


class LoginScreen(ModalScreen[str]):
    """The QR code, what happens on the phone, and a field for the number that WeChat may show."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", "close")]

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home
        self._login: feed.Login | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="login"):
            yield Static("asking WeChat for a code", markup=False, id="told")
            yield Input(placeholder="the number that WeChat shows", id="code", max_length=20, compact=True)
            yield Static(markup=False, id="qr")
            yield Static(markup=False, id="url")

    def on_mount(self) -> None:
        self.query_one("#code").display = False
        self._login = feed.Login(self._home, Login(), lambda reply: self.call_later(self._heard, reply))

    def _heard(self, reply: CtlReply) -> None:
        if not self.is_current:
            return
        match reply:
            case QrShown():
                self._draw(reply)
            case Progress(line=line):
                self._tell(safe(line))
            case CodeWanted(again=again):
                self._tell("that was not the number" if again else "type the number that WeChat shows")
                field = self.query_one("#code", Input)
                field.display, field.value = True, ""
                field.focus()
            case Done(lines=lines):
                self.dismiss(" ".join(lines))
            case Failed(line=line):
                self.dismiss(line)

    def _draw(self, shown: QrShown) -> None:
        import segno

        modules = segno.make(shown.url, error="l", micro=False).matrix
        lines = render.qr_lines(modules, columns=self.size.width, encoding="utf-8", look=render.Look())
        self.query_one("#qr", Static).update(Text("\n".join(lines or ["open the link on another screen:"])))
        self.query_one("#url", Static).update(Text(safe(shown.url, 400)))
        self._tell(f"code {shown.number} of {shown.of}: scan it with WeChat; Esc closes")

    def _tell(self, text: str) -> None:
        self.query_one("#told", Static).update(Text(text))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if self._login is not None and event.value.strip():
            self._login.say(event.value.strip())
            event.input.display = False
            self._tell("asking WeChat")

    def action_give_up(self) -> None:
        if self._login is not None:
            self._login.give_up()
        self.dismiss("nobody was signed in")


class Line(Static, can_focus=True):
    """One line with a count; Enter opens all of it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", show=False)]

    def __init__(self, id: str) -> None:
        super().__init__(markup=False, id=id)
        self.title = ""
        self.lines: list[str] = []

    def show(self, head: str, title: str, lines: list[str]) -> None:
        self.title, self.lines = title, lines
        self.update(plain(head))

    def action_open(self) -> None:
        self.app.push_screen(Block(self.title, self.lines or ["nothing"]))


class ControlScreen(App[None]):
    """run() until closed."""

    TITLE = "bridge-ctl"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #summary, #questions, #refused, #said, #keys { height: 1; }
    #accounts { height: auto; max-height: 6; }
    #peers { height: 1fr; }
    #events { height: auto; max-height: 4; }
    #keys { text-style: reverse; }
    Line, #summary, #said, #keys { text-wrap: nowrap; text-overflow: ellipsis; }
    Line:focus { text-style: reverse; }
    DataTable { scrollbar-size: 1 1; }
    ModalScreen { align: center middle; }
    #login { width: 100%; height: 100%; }
    #qr { width: auto; text-wrap: nowrap; }
    #block { border: round; width: auto; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; }
    #block Static { width: auto; }
    OptionList { height: auto; max-height: 16; width: 76; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", show=False),
        Binding("k,up", "move(-1)", show=False),
        Binding("g,home", "far(-1)", show=False, priority=True),
        Binding("G,end", "far(1)", show=False, priority=True),
        Binding("s", "stop"),
        Binding("d", "fresh"),
        Binding("h", "history"),
        Binding("a", "allow"),
        Binding("c", "withdraw"),
        Binding("p", "pause"),
        Binding("l", "login"),
        Binding("o", "logout"),
        Binding("r", "look"),
        Binding("question_mark", "help"),
        Binding("q,escape", "quit"),
    ]

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home
        self._feed = feed.Feed(home, self)
        self._status: StatusReply | None = None
        self._events: deque[EventRow] = deque(maxlen=EVENTS_KEPT)

    def compose(self) -> ComposeResult:
        yield Static("looking", markup=False, id="summary")
        yield DataTable(cursor_type="row", id="accounts")
        yield DataTable(cursor_type="row", id="peers")
        yield Line("questions")
        yield Line("refused")
        yield Line("events")
        yield Static(markup=False, id="said")
        yield Static(plain(KEYS), markup=False, id="keys")

    def on_mount(self) -> None:
        self._table("accounts").add_columns("ACCOUNT", "ROLE", "STATE", "TOKEN", "HOLD", "OWNER")
        self._table("peers").add_columns(*PEER_HEADS)
        self._table("peers").focus()
        self._feed.start()

    def on_unmount(self) -> None:
        self._feed.stop()

    # -- from the feed's threads

    def on_status(self, status: StatusReply) -> None:
        self._bring(self._show, status)

    def on_events(self, events: Sequence[EventRow]) -> None:
        self._bring(self._show_events, events)

    def on_trouble(self, line: str) -> None:
        self._bring(self._show_trouble, line)

    def _bring(self, to: Callable[[T], None], what: T) -> None:
        """To the screen's own thread, as a message: nobody waits, and one that is closing drops it."""
        self.call_later(self._if_open, to, what)

    def _if_open(self, to: Callable[[T], None], what: T) -> None:
        if self.is_running and self.is_attached:
            to(what)

    # -- showing

    def _table(self, name: str) -> DataTable[Text]:
        return self.screen_stack[0].query_one(f"#{name}", DataTable)

    def _static(self, name: str) -> Static:
        return self.screen_stack[0].query_one(f"#{name}", Static)

    def _line(self, name: str) -> Line:
        return self.screen_stack[0].query_one(f"#{name}", Line)

    def _show(self, status: StatusReply) -> None:
        self._status = status
        self._static("summary").update(plain(render.summary(status)))
        _fill(self._table("accounts"), {row.account: _account_cells(row) for row in status.accounts})
        _fill(self._table("peers"), {f"{row.account}/{row.peer}": _peer_cells(row) for row in status.peers})
        asked = [
            f"{safe(row.peer, 30)}: {safe(row.title, 60)} ({row.kind}), {render.age(row.expires_in_s)} left"
            for row in status.dialogs
        ]
        head = asked[0] if asked else "-"
        self._line("questions").show(f"questions {len(asked)}: {head}", "Questions that wait", asked)
        refused = [f"{safe(row.peer, 40)} {row.count}×, {render.age(row.last_age_s)} ago" for row in status.refused]
        head = ", ".join(safe(row.peer, 30) for row in status.refused) or "-"
        self._line("refused").show(f"refused {len(refused)}: {head}", "Refused senders", refused)

    def _show_events(self, events: Sequence[EventRow]) -> None:
        self._events.extend(events)
        lines = list(render.event_lines(list(self._events), render.Look()))
        short = [_event_line(one) for one in list(self._events)[-EVENTS_SHOWN:]]
        self._line("events").show("\n".join(short), "Events", lines)

    def _show_trouble(self, line: str) -> None:
        self._static("summary").update(plain(safe(line)))

    def _say(self, line: str) -> None:
        self._static("said").update(plain(safe(line)))

    # -- orders

    def _account(self) -> AccountRow | None:
        rows = self._status.accounts if self._status else []
        return _under_cursor(self._table("accounts"), rows)

    def _peer(self) -> PeerRow | None:
        rows = self._status.peers if self._status else []
        return _under_cursor(self._table("peers"), rows)

    def _order(self, request: CtlRequest) -> None:
        self._feed.order(request, lambda reply: self._bring(self._answered, (request, reply)))

    def _answered(self, told: tuple[CtlRequest, CtlReply]) -> None:
        request, reply = told
        match reply:
            case Done(lines=lines):
                self._say(" ".join(lines))
            case Failed(line=line):
                self._say(line)
            case HistoryReply(peer=peer):
                lines = list(render.history_lines(reply))
                self.push_screen(Block(safe(peer), lines or ["nothing was said yet"]))
            case NeedsYes(question=question):
                self._ask(request, question)

    def _ask(self, request: CtlRequest, question: Sequence[str]) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._order(msgspec.structs.replace(request, yes=True))
            else:
                self._say("nothing was done")

        self.push_screen(Question([safe(line) for line in question]), answered)

    def _of_peer(self, request: Callable[[str], CtlRequest]) -> None:
        row = self._peer()
        if row is None:
            self._say("no peer is under the cursor")
        else:
            self._order(request(f"{row.account}/{row.peer}"))

    def _of_account(self, request: Callable[[AccountRow], CtlRequest]) -> None:
        row = self._account()
        if row is None:
            self._say("there is no account: l signs one in")
        else:
            self._order(request(row))

    def action_stop(self) -> None:
        self._of_peer(Stop)

    def action_fresh(self) -> None:
        self._of_peer(Reset)

    def action_history(self) -> None:
        self._of_peer(lambda peer: History(peer, HISTORY_SHOWN))

    def action_withdraw(self) -> None:
        self._of_peer(Cancel)

    def action_pause(self) -> None:
        self._of_account(lambda row: (Resume if row.state == "paused" else Pause)(row.account))

    def action_logout(self) -> None:
        self._of_account(lambda row: Logout(row.account))

    def action_allow(self) -> None:
        refused = self._status.refused if self._status else []
        if not refused:
            self._say("nobody has been refused")
            return

        def chosen(number: int | None) -> None:
            if number is not None:
                self._order(Allow(peer=f"{refused[number].account}/{refused[number].peer}"))

        lines = [f"{safe(row.peer, 50)}  {row.count}×" for row in refused]
        self.push_screen(Choice("Admit whom?", lines), chosen)

    def action_login(self) -> None:
        self.push_screen(LoginScreen(self._home), lambda line: self._say(line or ""))

    def action_look(self) -> None:
        self._feed.refresh()

    def action_help(self) -> None:
        self.push_screen(Block("Keys", HELP.splitlines()))

    def action_move(self, lines: int) -> None:
        table = self.focused
        if isinstance(table, DataTable):
            (table.action_cursor_down if lines > 0 else table.action_cursor_up)()

    def action_far(self, way: int) -> None:
        table = self.focused
        if isinstance(table, DataTable):
            table.move_cursor(row=0 if way < 0 else table.row_count - 1)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        row = self._account() if event.data_table.id == "accounts" else self._peer()
        if row is not None:
            self.push_screen(Block(safe(row.account if isinstance(row, AccountRow) else row.peer), _whole(row)))


def _account_cells(row: AccountRow) -> tuple[str, ...]:
    token = "-" if row.token_age_s is None else render.age(row.token_age_s)
    hold = "-" if row.last_hold_s is None else f"{row.last_hold_s:.1f} s"
    return (row.name or row.account, row.role, row.state, token, hold, row.owner)


def _peer_cells(row: PeerRow) -> tuple[str, ...]:
    return (
        row.label or row.peer,
        row.state,
        render.age(row.turn.age_s) if row.turn else "-",
        str(row.queued),
        str(row.budget_left),
        str(row.parked_parts),
        row.agent,
        str(row.worker.pid) if row.worker else "-",
        f"{row.worker.rss_bytes // (1024 * 1024)} MB" if row.worker else "-",
    )


def _event_line(one: EventRow) -> str:
    data = " ".join(f"{name}={value}" for name, value in one.data.items())
    return safe(f"{one.at[11:19]} {one.event} {(one.peer or '').partition('@')[0][:12]} {data}", 200)


def _fill(table: DataTable[Text], rows: dict[str, tuple[str, ...]]) -> None:
    """Change what has changed; the cursor stays on its row."""
    if [key.value for key in table.rows] != list(rows):
        at = table.cursor_row
        table.clear()
        for key, cells in rows.items():
            table.add_row(*(plain(safe(cell, CELL_COLUMNS)) for cell in cells), key=key)
        table.move_cursor(row=min(at, max(0, len(rows) - 1)))
        return
    for key, cells in rows.items():
        before = table.get_row(key)
        for column, old, cell in zip(table.columns, before, cells, strict=True):
            if old.plain != safe(cell, CELL_COLUMNS):
                table.update_cell(key, column, plain(safe(cell, CELL_COLUMNS)), update_width=True)


def _under_cursor(table: DataTable[Text], rows: Sequence[Row]) -> Row | None:
    return rows[table.cursor_row] if 0 <= table.cursor_row < len(rows) else None


def _whole(row: AccountRow | PeerRow) -> list[str]:
    return list(_lines_of("", msgspec.to_builtins(row)))


def _lines_of(name: str, value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from _lines_of(f"{name}.{inner}" if name else str(inner), one)
    elif isinstance(value, list):
        yield f"{name}: {safe(', '.join(map(str, value)) or '-')}"
    else:
        yield f"{name}: {safe('-' if value is None else str(value))}"


def run(home: Path) -> int:
    """Until closed. The exit code of bridge-ctl."""
    ControlScreen(home).run()
    return 0
