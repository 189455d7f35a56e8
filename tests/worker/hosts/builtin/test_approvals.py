"""approvals: what has to be asked, and what an "always" covers."""

import pytest

from protocol.agents import Approvals
from protocol.to_supervisor import ALLOW_ONCE, REFUSE, RULE_CHARS
from protocol.to_worker import Confirmed, DialogAnswer, Dismissed, Picked, Typed
from worker.hosts.builtin.approvals import Request, granted, must_ask, options, rule_of


@pytest.mark.parametrize("tool", ["write", "edit", "bash"])
@pytest.mark.parametrize("approvals", [Approvals.ASK, Approvals.NEVER_ASK_READS])
def test_what_changes_something_is_asked(tool: str, approvals: Approvals) -> None:
    assert must_ask(Request(tool, "x", "x"), approvals, frozenset())
    assert not must_ask(Request(tool, "x", "x"), Approvals.ALLOW, frozenset())


@pytest.mark.parametrize("tool", ["read", "todo", "ask", "send_file", "exit_plan_mode"])
def test_what_changes_nothing_is_not(tool: str) -> None:
    assert not must_ask(Request(tool, "x", "x"), Approvals.ASK, frozenset())


def test_a_rule_covers_one_command_word_for_word_and_nothing_that_only_looks_like_it() -> None:
    rules = frozenset({"bash: ls -l"})

    assert not must_ask(Request("bash", "ls -l", "ls -l"), Approvals.ASK, rules)
    for command in ("ls", "ls -l; rm -rf .", "ls  -l", " ls -l", "ls -l\nrm x", "ls\t-l"):
        assert must_ask(Request("bash", "ls", command), Approvals.ASK, rules), command


def test_what_is_too_long_or_has_lines_can_only_be_allowed_once() -> None:
    for command in ("x" * RULE_CHARS, "a\nb"):
        assert rule_of(Request("bash", "ls", command)) == ""
        assert [one.option_id for one in options(Request("bash", "ls", command))] == [ALLOW_ONCE, REFUSE]


def test_running_a_command_is_dangerous_and_writing_is_not_but_always_is() -> None:
    assert [one.dangerous for one in options(Request("bash", "ls", "ls"))] == [True, True, False]
    assert [one.dangerous for one in options(Request("write", "a", ""))] == [False, True, False]


@pytest.mark.parametrize(
    ("answer", "yes"),
    [
        (Picked(ALLOW_ONCE), True),
        (Picked("always"), True),
        (Picked(REFUSE), False),
        (Picked("other"), False),
        (Confirmed(True), True),
        (Confirmed(False), False),
        (Typed("yes"), False),
        (Dismissed(), False),
    ],
)
def test_only_a_clear_yes_is_one(answer: DialogAnswer, yes: bool) -> None:
    assert granted(answer) is yes


@pytest.mark.parametrize("tool", ["write", "edit"])
def test_a_rule_for_files_ends_at_the_workspace(tool: str) -> None:
    rules = frozenset({tool})

    assert not must_ask(Request(tool, "a", "x"), Approvals.ASK, rules)
    assert must_ask(Request(tool, "../a", "x", within=False), Approvals.ASK, rules)
    assert [one.rule for one in options(Request(tool, "../a", "x", within=False))] == ["", ""]
