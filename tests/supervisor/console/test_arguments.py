import shutil
import subprocess

import pytest

from protocol.content import Access, Role
from protocol.ctl import (
    VERBS,
    Accounts,
    Allow,
    Audit,
    Cancel,
    CtlRequest,
    Deny,
    Doctor,
    Events,
    Forget,
    History,
    Login,
    Logout,
    Metrics,
    Pause,
    Reload,
    Reset,
    Resume,
    Revoke,
    Rules,
    Send,
    Shutdown,
    Status,
    Stop,
    Trace,
)
from supervisor.console.arguments import SHELLS, Call, completion, parse


def call(*argv: str) -> Call:
    return parse(argv, version="9")


@pytest.mark.parametrize(
    ("argv", "request_"),
    [
        ("status", Status()),
        ("login", Login()),
        ("login --name work --role guest", Login(name="work", role=Role.GUEST)),
        ("accounts", Accounts()),
        ("logout", Logout()),
        ("logout work --yes", Logout(account="work", yes=True)),
        ("pause", Pause()),
        ("resume work", Resume(account="work")),
        ("stop alice", Stop(peer="alice")),
        ("cancel alice", Cancel(peer="alice")),
        ("rules", Rules()),
        ("rules alice --json", Rules(peer="alice")),
        ("revoke alice 3", Revoke(peer="alice", rule=3)),
        ("reset work/alice", Reset(peer="work/alice")),
        ("history alice", History(peer="alice", count=10)),
        ("history alice 3", History(peer="alice", count=3)),
        ("allow", Allow()),
        ("allow alice", Allow(peer="alice", tools=None)),
        ("allow alice --tools read,todo --access chat", Allow("alice", ("read", "todo"), Access.CHAT)),
        ("allow alice --tools=", Allow(peer="alice", tools=())),
        ("deny alice --yes", Deny(peer="alice", yes=True)),
        ("doctor", Doctor()),
        ("doctor --probe --json", Doctor(probe=True)),
        ("forget alice", Forget(peer="alice")),
        ("send hello", Send(text="hello")),
        ("send --account work --image a.png", Send(account="work", image="a.png")),
        ("audit verify", Audit(action="verify")),
        ("events", Events()),
        ("events --follow --since 0 --json", Events(since=0, follow=True)),
        ("trace work/7400000000000000001", Trace(message_id="work/7400000000000000001")),
        ("metrics", Metrics()),
        ("reload", Reload()),
        ("shutdown", Shutdown()),
    ],
)
def test_a_command_line_becomes_its_request(argv: str, request_: CtlRequest) -> None:
    assert call(*argv.split()).request == request_


def test_every_verb_of_the_table_is_among_those_tried_above() -> None:
    tried = test_a_command_line_becomes_its_request.pytestmark[0].args[1]  # type: ignore[attr-defined]

    assert {argv.split()[0] for argv, _ in tried} == {verb.name for verb in VERBS}


def test_no_verb_at_all_is_the_bare_call() -> None:
    assert call() == Call(verb="", request=None)
    assert call("--home", "/h") == Call(verb="", request=None, home="/h")


@pytest.mark.parametrize("argv", [["--home", "/h", "status"], ["status", "--home", "/h"], ["status", "--home=/h"]])
def test_the_home_may_stand_before_and_after_the_verb(argv: list[str]) -> None:
    assert call(*argv).home == "/h"


def test_json_and_watch_belong_to_the_call_and_not_to_the_request() -> None:
    watched = call("status", "--json", "--watch")

    assert (watched.request, watched.json, watched.watch) == (Status(), True, True)


def test_a_peer_may_have_any_characters_behind_a_double_dash() -> None:
    assert call("stop", "--", "-alice\n用户").request == Stop(peer="-alice\n用户")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("statsu", "bridge-ctl: no such verb: statsu; did you mean status?"),
        ("xyzzy", "bridge-ctl: no such verb: xyzzy"),
        ("stop", "bridge-ctl stop: the following arguments are required: PEER"),
        ("stop a b", "bridge-ctl: unrecognized arguments: b"),
        ("history a ten", "bridge-ctl history: argument N: expected a number of 1 or more, got ten"),
        ("history a 0", "bridge-ctl history: argument N: expected a number of 1 or more, got 0"),
        ("history a ²", "bridge-ctl history: argument N: expected a number of 1 or more, got ²"),
        ("login --role king", "bridge-ctl login: argument --role: invalid choice: 'king'"),
        ("status --jso", "bridge-ctl: unrecognized arguments: --jso"),
        ("reload --json", "bridge-ctl: unrecognized arguments: --json"),
        ("completion tcsh", "bridge-ctl completion: argument shell: invalid choice: 'tcsh'"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_says_why(
    argv: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        call(*argv.split())

    first, *usage = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert first.startswith(line)
    assert usage[0].startswith("usage: bridge-ctl")


@pytest.mark.parametrize("argv", [[], *([verb.name] for verb in VERBS), ["completion"]], ids=" ".join)
def test_help_is_there_for_every_verb(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        call(*argv, "--help")

    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: bridge-ctl")
    if not argv:
        assert all(verb.help in " ".join(out.split()) for verb in VERBS)


@pytest.mark.parametrize("argv", [["--version"], ["status", "--version"]])
def test_the_version_is_there_everywhere(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        call(*argv)

    assert (caught.value.code, capsys.readouterr().out) == (0, "bridge-ctl 9\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_completions_hold_every_verb_and_option(shell: str) -> None:
    script = completion(call("completion", shell).shell)

    for verb in VERBS:
        assert verb.name in script
        for argument in verb.arguments:
            assert argument.flag.removeprefix("--") in script


@pytest.mark.parametrize("shell", SHELLS)
def test_completions_are_sound_scripts_of_their_shell(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here")

    subprocess.run([program, "-n"], input=completion(shell), text=True, check=True, timeout=60)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bridge-ctl st", {"status", "stop"}),
        ("bridge-ctl --home /tmp st", {"status", "stop"}),
        ("bridge-ctl status --", {"--watch", "--json", "--home", "--help"}),
        ("bridge-ctl allow bob --access w", {"workspace"}),
        ("bridge-ctl completion f", {"fish"}),
    ],
)
def test_bash_offers_what_fits(line: str, offered: set[str]) -> None:
    words = line.split(" ")
    script = f"""{completion("bash")}
        COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
        _bridge_ctl; printf '%s\\n' "${{COMPREPLY[@]}}"
    """

    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert set(shown.stdout.split()) == offered
