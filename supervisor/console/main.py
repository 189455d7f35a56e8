"""bridge-ctl: argv → request → replies → words and an exit code.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no supervisor. Plain when piped, colour on a terminal unless
NO_COLOR is set. Printing never fails on a character: what an encoding cannot hold is escaped.
"""

import io
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec import structs

from protocol.ctl import (
    AccountsReply,
    Allow,
    CodeWanted,
    CtlReply,
    CtlRequest,
    Deny,
    DoctorReply,
    Done,
    EventBatch,
    EventRow,
    Events,
    Failed,
    Forget,
    HistoryReply,
    Logout,
    MetricsReply,
    NeedsYes,
    Offered,
    Progress,
    QrShown,
    RulesReply,
    Send,
    Status,
    StatusReply,
    TraceReply,
    VerifyCode,
)
from protocol.errors import BridgeError
from protocol.home import find_home
from supervisor.console import arguments, render
from supervisor.console.client import Client, NoSupervisor, NotAdmitted

VERSION = "0.1.0"
WATCH_S = 1.0
_LOGIN_QR_LEVEL = "l"  # least redundancy, smallest code: a screen has no scratches


def main() -> None:
    """The program's entry."""
    # `bridge-ctl history alice | head` ends quietly, as it does with every other tool.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """One call, from its arguments to its exit code."""
    call = arguments.parse(argv, version=VERSION)
    if call.shell:
        sys.stdout.write(arguments.completion(call.shell))
        return 0
    try:
        home = find_home(call.home, os.environ, Path.home())
        return Console(home, json=call.json).perform(call)
    except (NoSupervisor, NotAdmitted) as error:
        _complain(str(error))
        return error.exit_code
    except (BridgeError, OSError) as error:
        _complain(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


class Console:
    """One call's way through the control socket."""

    def __init__(self, home: Path, *, json: bool) -> None:
        self._home = home
        self._json = json
        self._look = render.Look(colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))

    def perform(self, call: arguments.Call) -> int:
        if call.request is None:
            if _talks_to_a_human():
                with Client(self._home):  # is there anybody?
                    pass
                from supervisor.console import screen  # 0.4 s that no verb has to pay

                return screen.run(self._home)
            return self._ask(Status(), bare=True)
        if call.watch:
            return self._watch(call.request)
        request = call.request
        if isinstance(request, Send) and request.image:  # the supervisor has a working folder of its own
            request = structs.replace(request, image=os.path.abspath(request.image))
        try:
            return self._ask(request)
        except KeyboardInterrupt:
            if isinstance(call.request, Events) and call.request.follow:
                return 0  # the way to end it
            raise

    def _watch(self, request: CtlRequest) -> int:
        try:
            while True:
                code = self._ask(request, before="\x1b[H\x1b[2J" if sys.stdout.isatty() else "")
                if code:
                    return code
                time.sleep(WATCH_S)
        except KeyboardInterrupt:
            return 0  # the way to end it

    def _ask(self, request: CtlRequest, *, bare: bool = False, before: str = "") -> int:
        with Client(self._home) as client:
            for reply in client.ask(request):
                match reply:
                    case QrShown():
                        self._show_qr(reply)
                    case Progress(line=line):
                        _say([render.safe(line)])
                    case CodeWanted(again=again):
                        code = _read_code(again)
                        if code is None:
                            _complain("the input ended before the code")
                            return 1
                        client.say(VerifyCode(code=code))
                    case EventBatch(events=events):
                        self._show_events(events)
                    case final:
                        break
        sys.stdout.write(before)
        if bare and isinstance(final, StatusReply):
            _say([render.summary(final)])
            return 0
        return self._finish(request, final)

    def _finish(self, request: CtlRequest, reply: CtlReply) -> int:
        match reply:
            case StatusReply():
                self._show(reply, render.status_lines(reply, self._look))
            case AccountsReply():
                self._show(reply.accounts, render.account_lines(reply.accounts, self._look))
            case HistoryReply():
                self._show(reply.lines, render.history_lines(reply))
            case RulesReply():
                self._show(reply.rules, render.rule_lines(reply.rules, self._look))
            case TraceReply():
                self._show(reply, render.trace_lines(reply))
            case MetricsReply(text=text):
                sys.stdout.write(text)
                sys.stdout.flush()
            case DoctorReply(ok=ok):
                self._show(reply, render.finding_lines(reply, self._look))
                return 0 if ok else 1
            case Done(lines=lines):
                _say(render.safe(line) for line in lines)
            case Failed(code=code, line=line):
                _complain(line)
                return code
            case NeedsYes(question=question):
                return self._confirm(request, question)
            case Offered(refused=refused):
                return self._offer(request, refused)
            case _:
                raise AssertionError(reply)
        return 0

    def _show(self, reply: Any, lines: Iterable[str]) -> None:
        if not self._json:
            _say(lines)
            return
        data = msgspec.to_builtins(reply)
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if key not in ("type", "problems")}
        sys.stdout.flush()
        # Past the stream's own encoding: JSON is UTF-8.
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
        sys.stdout.buffer.flush()

    def _show_events(self, events: Sequence[EventRow]) -> None:
        """With --json one object a line, as other programs read a stream."""
        if not self._json:
            _say(render.event_lines(events, self._look))
            return
        sys.stdout.flush()
        sys.stdout.buffer.write(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
        sys.stdout.buffer.flush()

    def _confirm(self, request: CtlRequest, question: list[str]) -> int:
        if not _talks_to_a_human():
            _complain(" ".join([*question, "Not done: say --yes."]))
            return 1
        _say(render.safe(line) for line in question)
        if _input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
            _complain("nothing was done")
            return 1
        assert isinstance(request, (Logout, Allow, Deny, Forget))
        return self._ask(msgspec.structs.replace(request, yes=True))

    def _offer(self, request: CtlRequest, refused: list[Any]) -> int:
        if not refused:
            _say(["nobody has been refused"])
            return 0
        _say(render.refused_lines(refused, self._look))
        if not _talks_to_a_human():
            return 0
        choice = _input(f"Admit which one? [1-{len(refused)}, Enter for none] ").strip()
        if not (choice.isascii() and choice.isdecimal() and 1 <= int(choice[:9]) <= len(refused)):
            _complain("nothing was done")
            return 1
        row = refused[int(choice) - 1]
        assert isinstance(request, Allow)
        return self._ask(msgspec.structs.replace(request, peer=f"{row.account}/{row.peer}"))

    def _show_qr(self, shown: QrShown) -> None:
        _say([f"Scan this with WeChat on your phone (code {shown.number} of {shown.of}):"])
        if sys.stdout.isatty():
            import segno  # 28 ms that no other verb has to pay

            modules = segno.make(shown.url, error=_LOGIN_QR_LEVEL, micro=False).matrix
            size = os.get_terminal_size(sys.stdout.fileno())
            lines = render.qr_lines(
                modules, columns=size.columns, encoding=sys.stdout.encoding or "ascii", look=self._look
            )
            _say(lines or ["This terminal cannot show the code; open the link on another screen and scan it there:"])
        _say([render.safe(shown.url, len(shown.url) * 2)])


def _read_code(again: bool) -> str | None:
    """One line from the human; None at the end of input."""
    if again:
        _say(["That was not the number."])
    line = _input("The number that WeChat shows: ")
    return line.strip() if line else None


def _input(question: str) -> str:
    sys.stdout.write(question if sys.stdin.isatty() else question.rstrip() + "\n")
    sys.stdout.flush()
    return sys.stdin.readline()


def _talks_to_a_human() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _say(lines: Iterable[str]) -> None:
    _write(sys.stdout, lines)


def _complain(line: str) -> None:
    sys.stdout.flush()
    _write(sys.stderr, [f"{arguments.PROGRAM}: {render.safe(line)}"])


def _write(stream: TextIO, lines: Iterable[str]) -> None:
    for line in lines:
        stream.write(line + "\n")
    stream.flush()
