"""bridge-ctl as a process of its own, against a scripted supervisor."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import zmq

from protocol.ctl import (
    AccountRow,
    Accounts,
    AccountsReply,
    Allow,
    CodeWanted,
    Done,
    Failed,
    History,
    HistoryLine,
    HistoryReply,
    IsolationRow,
    LockRow,
    Login,
    Logout,
    NeedsYes,
    Offered,
    PeerRow,
    Progress,
    QrShown,
    RefusedRow,
    Reload,
    Status,
    StatusReply,
    TurnRow,
    VerifyCode,
    WorkerRow,
)
from tests.fakes.ctl import ScriptedSupervisor

CTL = (sys.executable, "-c", "from supervisor.console.main import main; main()")
URL = "https://liteapp.weixin.qq.com/q/7GiQu1?qrcode=0123456789abcdef0123456789abcdef"
REFUSED = [RefusedRow("mallory@im.wechat", "bot-1", 3, 5.0), RefusedRow("[/foo]\x1b[2J", "bot-1", 1, 9.0)]


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "BRIDGE_HOME": str(home), "LC_ALL": "C.UTF-8", "TERM": "xterm", **(extra or {})}


def ctl(
    home: Path, *argv: str, stdin: str = "", extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """bridge-ctl with its output piped."""
    done = subprocess.run(
        [*CTL, *argv], input=stdin.encode(), capture_output=True, env=environment(home, extra), timeout=60, check=False
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode()
    )


def ctl_on_a_terminal(
    home: Path, *argv: str, answers: str = "", extra: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """bridge-ctl on a terminal of 100 columns: exit code and all that was shown."""
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", "100", "rows", "40"], stdin=theirs, check=True, timeout=60)
    process = subprocess.Popen(
        [*CTL, *argv], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(home, extra), start_new_session=True
    )
    os.close(theirs)
    os.write(ours, answers.encode())
    shown = b""
    deadline = time.monotonic() + 60
    while select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not data:
            break
        shown += data
    os.close(ours)
    return process.wait(timeout=60), shown.decode(errors="replace")


def test_lines_of_a_verb_that_worked_go_to_stdout_with_exit_0(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(Done(lines=["settings read again", "a\x1b[2Jb [/foo]"]))

    done = ctl(supervisor.home.path, "reload")

    assert (done.returncode, done.stdout, done.stderr) == (0, "settings read again\na\\x1b[2Jb [/foo]\n", "")
    assert supervisor.heard == [Reload()]


@pytest.mark.parametrize("code", [1, 2])
def test_a_refusal_is_one_line_on_stderr_with_its_exit_code(supervisor: ScriptedSupervisor, code: int) -> None:
    supervisor.says(Failed(code=code, line="nothing changed: bridge.toml: line 3\x1b[2J\nx"))

    done = ctl(supervisor.home.path, "reload")

    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == "bridge-ctl: nothing changed: bridge.toml: line 3\\x1b[2J\\nx\n"


@pytest.mark.parametrize("argv", [["status"], ["status", "--json"], [], ["reload"], ["login"]], ids=" ".join)
def test_without_a_supervisor_the_exit_code_is_3_and_the_home_is_named(tmp_path: Path, argv: list[str]) -> None:
    done = ctl(tmp_path, *argv)

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"bridge-ctl: no supervisor runs on {tmp_path}; start one with: bridge-supervisor start\n"


def test_a_wrong_key_exits_with_1(supervisor: ScriptedSupervisor) -> None:
    public, secret = zmq.curve_keypair()
    (supervisor.home.run / "ctl-client.key").write_bytes(public + b"\n" + secret + b"\n")

    done = ctl(supervisor.home.path, "status")

    assert done.returncode == 1
    assert "does not accept the key" in done.stderr


def test_the_home_option_wins_over_the_environment(supervisor: ScriptedSupervisor, tmp_path: Path) -> None:
    supervisor.says(Done(lines=["ok"]))

    assert ctl(tmp_path / "nowhere", "reload", "--home", str(supervisor.home.path)).returncode == 0


def test_accounts_and_history_print_json_when_asked(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(AccountsReply(accounts=[]))
    supervisor.says(HistoryReply(peer="alice", lines=[HistoryLine("peer", "用户\x1b", 1.5)]))

    accounts = ctl(supervisor.home.path, "accounts", "--json")
    history = ctl(supervisor.home.path, "history", "alice", "--json", extra={"PYTHONIOENCODING": "ascii"})

    assert json.loads(accounts.stdout) == []
    assert json.loads(history.stdout) == [{"who": "peer", "text": "用户\x1b", "age_s": 1.5, "flag": ""}]
    assert "\x1b" not in history.stdout
    assert supervisor.heard == [Accounts(), History(peer="alice")]


# --- yes or no


def test_without_a_terminal_a_question_is_refused_and_names_yes(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(NeedsYes(question=["Forget work?", "1 turn is cut."]))

    done = ctl(supervisor.home.path, "logout", "work", stdin="y\n")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "bridge-ctl: Forget work? 1 turn is cut. Not done: say --yes.\n"
    assert supervisor.heard == [Logout(account="work")]


def test_on_a_terminal_a_yes_carries_the_verb_out(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(NeedsYes(question=["Forget work?"]))
    supervisor.says(Done(lines=["work: logged out"]))

    code, shown = ctl_on_a_terminal(supervisor.home.path, "logout", "work", answers="y\n")

    assert code == 0
    assert "Forget work?" in shown
    assert "work: logged out" in shown
    assert supervisor.heard == [Logout(account="work"), Logout(account="work", yes=True)]


@pytest.mark.parametrize("answer", ["\n", "n\n", "yellow\n", "\x04"])
def test_on_a_terminal_anything_but_a_yes_does_nothing(supervisor: ScriptedSupervisor, answer: str) -> None:
    supervisor.says(NeedsYes(question=["Forget work?"]))

    code, shown = ctl_on_a_terminal(supervisor.home.path, "logout", "work", answers=answer)

    assert code == 1
    assert "nothing was done" in shown
    assert supervisor.heard == [Logout(account="work")]


def test_allow_without_a_peer_offers_the_refused_ones_and_admits_the_chosen(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(Offered(refused=REFUSED))
    supervisor.says(NeedsYes(question=["Admit mallory@im.wechat?"]))
    supervisor.says(Done(lines=["admitted"]))

    code, shown = ctl_on_a_terminal(supervisor.home.path, "allow", "--tools", "read", answers="1\ny\n")

    assert code == 0
    assert "[/foo]\\x1b[2J" in shown
    assert supervisor.heard == [
        Allow(tools=("read",)),
        Allow(peer="bot-1/mallory@im.wechat", tools=("read",)),
        Allow(peer="bot-1/mallory@im.wechat", tools=("read",), yes=True),
    ]


@pytest.mark.parametrize("answer", ["\n", "3\n", "x\n", "0\n"])
def test_a_choice_that_is_none_admits_nobody(supervisor: ScriptedSupervisor, answer: str) -> None:
    supervisor.says(Offered(refused=REFUSED))

    code, _ = ctl_on_a_terminal(supervisor.home.path, "allow", answers=answer)

    assert code == 1
    assert supervisor.heard == [Allow()]


def test_without_a_terminal_the_refused_ones_are_listed(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(Offered(refused=REFUSED))
    supervisor.says(Offered(refused=[]))

    listed, nobody = ctl(supervisor.home.path, "allow"), ctl(supervisor.home.path, "allow")

    assert listed.returncode == 0
    assert "mallory@im.wechat" in listed.stdout
    assert (nobody.returncode, nobody.stdout) == (0, "nobody has been refused\n")


# --- login


def says_login(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(
        QrShown(url=URL, number=1, of=3),
        Progress(line="scanned"),
        CodeWanted(again=False),
        CodeWanted(again=True),
        Done(lines=["signed in"]),
    )


def test_login_without_a_terminal_is_plain_lines_with_the_url_and_codes_from_stdin(
    supervisor: ScriptedSupervisor,
) -> None:
    says_login(supervisor)

    done = ctl(supervisor.home.path, "login", stdin="123456\n 654321 \n")

    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "Scan this with WeChat on your phone (code 1 of 3):",
        URL,
        "scanned",
        "The number that WeChat shows:",
        "That was not the number.",
        "The number that WeChat shows:",
        "signed in",
    ]
    assert supervisor.heard == [Login(), VerifyCode(code="123456"), VerifyCode(code="654321")]


def test_login_whose_input_ends_before_the_code_exits_with_1(supervisor: ScriptedSupervisor) -> None:
    says_login(supervisor)

    done = ctl(supervisor.home.path, "login")

    assert done.returncode == 1
    assert done.stderr == "bridge-ctl: the input ended before the code\n"


@pytest.mark.parametrize(
    "locale",
    [
        {"PYTHONIOENCODING": "gbk"},
        {"PYTHONIOENCODING": "cp1252"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {},
    ],
    ids=str,
)
def test_login_works_in_every_encoding_and_always_prints_the_link(
    supervisor: ScriptedSupervisor, locale: dict[str, str]
) -> None:
    """B-077"""
    for _ in range(2):
        supervisor.says(QrShown(url=URL, number=1, of=3), Progress(line="已扫码 🦀"), Done(lines=["signed in"]))

    piped = ctl(supervisor.home.path, "login", extra=locale)
    code, shown = ctl_on_a_terminal(supervisor.home.path, "login", extra={**locale, "NO_COLOR": "1"})

    assert (piped.returncode, piped.stderr) == (0, "")
    assert URL in piped.stdout.splitlines()
    assert code == 0
    assert URL in shown.splitlines()


def test_a_terminal_shows_the_code_itself(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(QrShown(url=URL, number=1, of=3), QrShown(url=URL + "2", number=2, of=3), Done(lines=["signed in"]))

    code, shown = ctl_on_a_terminal(supervisor.home.path, "login")

    assert code == 0
    assert shown.count("code 1 of 3") == shown.count("code 2 of 3") == 1
    assert sum("▀" in line or "▄" in line for line in shown.splitlines()) > 30


# --- the shape of it all


def test_output_is_plain_when_piped_or_when_no_color_is_set(supervisor: ScriptedSupervisor) -> None:
    for _ in range(3):
        supervisor.says(status())

    piped = ctl(supervisor.home.path, "status")
    _, coloured = ctl_on_a_terminal(supervisor.home.path, "status")
    _, plain = ctl_on_a_terminal(supervisor.home.path, "status", extra={"NO_COLOR": "1"})

    assert "\x1b" not in piped.stdout
    assert "\x1b[31mexpired" in coloured
    assert "\x1b" not in plain


def test_the_bare_call_is_one_line(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(status())

    done = ctl(supervisor.home.path)

    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("work expired; 0 running, 100 waiting, 100 asking")
    assert supervisor.heard == [Status()]


def test_status_json_has_exactly_the_promised_keys(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(status())

    shown = json.loads(ctl(supervisor.home.path, "status", "--json").stdout)

    assert set(shown) == {
        *("version", "pid", "uptime_s", "home", "isolation", "accounts", "peers", "refused", "dialogs", "counters"),
    }
    assert set(shown["accounts"][0]) == {
        *("account", "name", "owner", "role", "state", "token_age_s", "last_poll_age_s", "last_hold_s"),
        *("poll_failures", "last_error", "lock"),
    }
    assert set(shown["peers"][0]) == {
        *("peer", "label", "account", "role", "agent", "access", "state", "turn", "queued", "turns", "budget_left"),
        *("parked_parts", "session_age_s", "media_bytes", "worker"),
    }


def test_watch_shows_the_status_again_until_the_supervisor_is_gone(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(status())
    supervisor.says(status())
    supervisor.says(Failed(code=1, line="stopping"))

    done = ctl(supervisor.home.path, "status", "--watch", "--json")

    assert done.returncode == 1
    assert done.stdout.count('"version"') == 2


def test_a_reader_that_leaves_early_gets_no_traceback(supervisor: ScriptedSupervisor) -> None:
    supervisor.says(Done(lines=["x" * 400] * 2000))

    done = subprocess.run(
        ["bash", "-c", '"$@" | head -n 1', "bash", *CTL, "reload"],
        capture_output=True,
        text=True,
        env=environment(supervisor.home.path),
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("x" * 400 + "\n", "")


def test_status_imports_neither_asyncio_nor_rich_and_is_quick_with_100_peers(supervisor: ScriptedSupervisor) -> None:
    """The promise is 150 ms of wall time on a quiet machine; the best of several runs is compared with twice that."""
    walls = []
    for _ in range(5):
        supervisor.says(status())
        began = time.perf_counter()
        assert ctl(supervisor.home.path, "status").returncode == 0
        walls.append(time.perf_counter() - began)
    supervisor.says(status())
    script = (
        "import sys; from supervisor.console.main import run; run(['status']); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment(supervisor.home.path),
        timeout=60,
        check=True,
    )

    assert not {"asyncio", "rich", "click", "segno"} & set(done.stderr.split())
    assert min(walls) < 0.3


def status() -> StatusReply:
    """100 peers."""
    peer = PeerRow(
        *("alice@im.wechat", "alice", "bot-1", "guest", "echo", "readonly", "asking"),
        turn=TurnRow("7400", 3.1),
        queued=1,
        turns=7,
        budget_left=6,
        parked_parts=0,
        session_age_s=900.0,
        media_bytes=0,
        worker=WorkerRow(5151, 3, 0.0, 31457280, ["landlock"] * 10, [], {"memory": "capped"}),
    )
    account = AccountRow("bot-1", "work", "o", "operator", "expired", None, None, None, 3, None, LockRow(False, None))
    return StatusReply(
        *("0.1.0", 4242, 12.5, "/h", IsolationRow("required", "strong", []), [account], [peer] * 100, [], [], {}, [])
    )
