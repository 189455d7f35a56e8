"""bridge-ctl's command line: argv → a request. Help, usage lines and completions all come from protocol.ctl.VERBS.

argparse and not click: importing click takes 20 ms of the 150 that `status` may take.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from protocol.content import Access, Role
from protocol.ctl import VERBS, Argument, CtlRequest, Verb
from supervisor.console.render import safe

PROGRAM = "bridge-ctl"
SHELLS = ("bash", "zsh", "fish")
_COMPLETION_HELP = "print the completions for a shell"
_COMMON = (
    Argument("home", "--home", "DIR", "the bridge's home (default: $BRIDGE_HOME, else the user's state folder)"),
)
_JSON = Argument("json", "--json", "", "print JSON", kind="yes")


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked for. request None and shell "": the bare call."""

    verb: str
    request: CtlRequest | None
    home: str | None = None
    json: bool = False
    watch: bool = False
    shell: str = ""


def parse(argv: Sequence[str], *, version: str) -> Call:
    """Exits with 2 and a usage line when argv is wrong, with 0 after --help and --version."""
    given = vars(_parser(version).parse_args(argv))
    name = given.pop("verb", None) or ""
    verb = next((verb for verb in VERBS if verb.name == name), None)
    return Call(
        verb=name,
        request=None if verb is None else _request(verb, given),
        home=given.get("home"),
        json=given.get("json", False),
        watch=given.get("watch", False),
        shell=given.get("shell", ""),
    )


def _request(verb: Verb, given: dict[str, Any]) -> CtlRequest:
    named = verb.request.__struct_fields__
    values = {name: value for name, value in given.items() if name in named and value is not None}
    if isinstance(values.get("role"), str):
        values["role"] = Role(values["role"])
    if isinstance(values.get("access"), str):
        values["access"] = Access(values["access"])
    request: CtlRequest = verb.request(**values)
    return request


class _Parser(argparse.ArgumentParser):
    """One line on stderr, as for every other failure, then the usage."""

    def error(self, message: str) -> NoReturn:
        found = re.match(r"argument VERB: invalid choice: '(.*?)'", message, re.DOTALL)
        if found is not None:
            import difflib  # 3 ms that only a mistake has to pay

            verb = safe(found[1], 40)
            near = difflib.get_close_matches(verb, [verb.name for verb in VERBS], n=1)
            message = f"no such verb: {verb}" + (f"; did you mean {near[0]}?" if near else "")
        self.exit(2, f"{self.prog}: {message}\n{self.format_usage()}")


def _parser(version: str) -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    for argument in _COMMON:
        common.add_argument(argument.flag, metavar=argument.metavar, help=argument.help, default=argparse.SUPPRESS)
    common.add_argument("--version", action="version", version=f"{PROGRAM} {version}", help="print the version")
    parser = _Parser(
        prog=PROGRAM,
        parents=[common],
        allow_abbrev=False,
        description="Looks after a running bridge-supervisor. Without a verb: the bridge in one line.",
        epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no supervisor runs on this home.",
    )
    verbs: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        dest="verb", metavar="VERB", title="verbs", parser_class=_Parser
    )
    for verb in VERBS:
        row = verbs.add_parser(
            verb.name, help=verb.help, description=_sentence(verb.help), parents=[common], allow_abbrev=False
        )
        for argument in _arguments(verb):
            _add(row, argument)
    completion = verbs.add_parser(
        "completion", help=_COMPLETION_HELP, description=_sentence(_COMPLETION_HELP), parents=[common]
    )
    completion.add_argument("shell", choices=SHELLS)
    return parser


def _arguments(verb: Verb) -> tuple[Argument, ...]:
    return (*verb.arguments, _JSON) if verb.json else verb.arguments


def _add(parser: argparse.ArgumentParser, argument: Argument) -> None:
    if argument.kind == "yes":
        parser.add_argument(argument.flag, dest=argument.name, action="store_true", help=argument.help)
        return
    options: dict[str, Any] = {"metavar": argument.metavar, "help": argument.help}
    match argument.kind:
        case "number":
            options["type"] = _number
        case "count":
            options["type"] = _count
        case "names":
            options["type"] = _names
        case "choice":
            options["choices"] = argument.choices
            options["help"] = f"{argument.help}: {', '.join(argument.choices)}"
    if argument.flag:
        parser.add_argument(argument.flag, dest=argument.name, **options)
    else:
        parser.add_argument(argument.name, nargs=None if argument.required else "?", **options)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= 10_000):
        raise argparse.ArgumentTypeError(f"expected a number of 1 or more, got {safe(text, 40)}")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {safe(text, 40)}")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    """`a,b`; an empty text is an empty list: no tools at all."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _sentence(help_line: str) -> str:
    return f"{help_line[0].upper()}{help_line[1:]}."


# --- completions ----------------------------------------------------------------------------------------------


def completion(shell: str) -> str:
    """A script for that shell to evaluate."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _words() -> dict[str, list[Argument]]:
    """Each verb's options."""
    words = {verb.name: [a for a in _arguments(verb) if a.flag] + list(_COMMON) for verb in VERBS}
    words["completion"] = list(_COMMON)
    return words


def _helps() -> dict[str, str]:
    return {**{verb.name: verb.help for verb in VERBS}, "completion": _COMPLETION_HELP}


def _bash() -> str:
    cases = "\n".join(
        f"        {name}) words='{' '.join([*(a.flag for a in options), '--help', *(SHELLS if name == 'completion' else ())])}' ;;"
        for name, options in _words().items()
    )
    choices = "\n".join(
        f"        {verb.name}:{argument.flag}) words='{' '.join(argument.choices)}' ;;"
        for verb in VERBS
        for argument in verb.arguments
        if argument.choices
    )
    return f"""_bridge_ctl() {{
    local words='' verb='' word='' last='' current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        if [[ $word != -* && $last != --home ]]; then verb=$word; break; fi
        last=$word
    done
    if [[ $before == --home ]]; then
        local IFS=$'\n'
        COMPREPLY=($(compgen -d -- "$current"))
        return
    fi
    case $verb:$before in
{choices}
        *) case $verb in
        '') words='{" ".join([*_helps(), *(a.flag for a in _COMMON), "--help", "--version"])}' ;;
{cases}
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -F _bridge_ctl {PROGRAM}
"""


def _zsh() -> str:
    verbs = "\n".join(f"        '{name}:{_zsh_text(text)}'" for name, text in _helps().items())
    cases = "\n".join(
        f"        {name}) _arguments {' '.join(_zsh_option(a) for a in options)}"
        f"{' ' + repr('1:shell:(' + ' '.join(SHELLS) + ')') if name == 'completion' else ''} ;;"
        for name, options in _words().items()
    )
    return f"""#compdef {PROGRAM}
_bridge_ctl() {{
    local -a verbs
    verbs=(
{verbs}
    )
    if (( CURRENT == 2 )); then
        _describe verb verbs
        return
    fi
    local verb=$words[2]
    shift words
    (( CURRENT-- ))
    case $verb in
{cases}
    esac
}}
compdef _bridge_ctl {PROGRAM}
"""


def _zsh_text(text: str) -> str:
    return text.replace("'", "'\\''").replace(":", "\\:").replace("[", "\\[").replace("]", "\\]")


def _zsh_option(argument: Argument) -> str:
    value = ""
    if argument.kind != "yes":
        action = (
            f"({' '.join(argument.choices)})" if argument.choices else "_files -/" if argument.name == "home" else ""
        )
        value = f":{argument.metavar}:{action}"
    return f"'{argument.flag}[{_zsh_text(argument.help)}]{value}'"


def _fish() -> str:
    lines = [f"complete -c {PROGRAM} -f"]
    for name, text in _helps().items():
        lines.append(f"complete -c {PROGRAM} -n __fish_use_subcommand -a {name} -d '{_fish_text(text)}'")
    for name, options in _words().items():
        for argument in options:
            takes = "" if argument.kind == "yes" else " -r" if argument.name == "home" else " -x"  # -x: no file names
            if argument.choices:
                takes += f" -a '{' '.join(argument.choices)}'"
            seen = f"'__fish_seen_subcommand_from {name}'"
            lines.append(
                f"complete -c {PROGRAM} -n {seen} -l {argument.flag[2:]}{takes} -d '{_fish_text(argument.help)}'"
            )
    lines.append(f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from completion' -a '{' '.join(SHELLS)}'")
    return "\n".join(lines) + "\n"


def _fish_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
