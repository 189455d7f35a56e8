"""What the built-in agent has to ask its peer before it does it, and the answers that stand for good. Pure.

Reading, lists, questions and files that are offered to the peer are never asked about: the sandbox bounds the first, and the peer sees
the others. A rule is what an "always" answer says yes to: a tool that changes files of the workspace, or one command word for word.
What is asked shows all of what would be done: a command whose end nobody sees is a way round the question.
"""

from dataclasses import dataclass

from protocol.agents import Approvals
from protocol.to_supervisor import ALLOW_ONCE, REFUSE, RULE_CHARS, DialogKind, DialogOption, DialogPurpose
from protocol.to_worker import Confirmed, DialogAnswer, Picked

ASKED = frozenset({"write", "edit", "bash"})
DANGEROUS = frozenset({"bash"})
ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Request:
    """A call of a tool.

    title   what it is about, in one line that may be cut
    body    the whole of what it would do: a command, a file's new content
    within  it touches nothing but the workspace
    """

    tool: str
    title: str
    body: str
    within: bool = True


def rule_of(request: Request) -> str:
    """What "always" would allow; "" where nothing so general may be allowed."""
    if request.tool == "bash":
        line = " ".join(request.body.split())
        rule = f"bash: {line}"
        return rule if line == request.body and len(rule) <= RULE_CHARS else ""
    return request.tool if request.within else ""


def must_ask(request: Request, approvals: Approvals, rules: frozenset[str]) -> bool:
    if request.tool not in ASKED or approvals is Approvals.ALLOW:
        return False
    return not rule_of(request) or rule_of(request) not in rules


def options(request: Request) -> tuple[DialogOption, ...]:
    """Yes, always and no, worded by the supervisor. Who may not have the second is not shown it."""
    dangerous = request.tool in DANGEROUS
    rule = rule_of(request)
    always = (DialogOption(ALWAYS, "", dangerous=True, rule=rule),) if rule else ()
    return (DialogOption(ALLOW_ONCE, "", dangerous=dangerous), *always, DialogOption(REFUSE, ""))


def kind() -> tuple[DialogKind, DialogPurpose]:
    return DialogKind.SELECT, DialogPurpose.PERMISSION


def granted(answer: DialogAnswer) -> bool:
    match answer:
        case Picked(option_id=option_id):
            return option_id in (ALLOW_ONCE, ALWAYS)
        case Confirmed(yes=yes):
            return yes
    return False
