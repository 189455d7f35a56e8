"""The reference pages, from the tables of the product: settings from their dataclasses, commands from protocol.ctl.VERBS.

A setting's meaning is the comment behind its field.
"""

import inspect
import io
import tokenize
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from protocol.ctl import VERBS, Verb
from supervisor import config
from supervisor.core.policy import PeerOverrides, Range

UNITS = {
    "_ms": "milliseconds",
    "_s": "seconds",
    "_minutes": "minutes",
    "_hours": "hours",
    "_days": "days",
    "_per_hour": "turns",
    "_per_day": "tokens",
    "_bytes": "bytes",
    "_mb": "MiB",
    "_chars": "UTF-16 units",
}
COUNTED_IN_CODE_POINTS = ("max_inbound_chars", "max_answer_chars")
NAMED_BY_THE_OPERATOR = {
    "accounts": "`[accounts.NAME]`, by the name given at login, takes every key of `[peers.ID]`.",
    "snippets": '`[snippets]`: `standup = "What changed?"` makes `/standup` send that text.',
}


@dataclass(frozen=True, slots=True)
class Setting:
    section: str
    name: str
    type: str
    default: str
    unit: str
    meaning: str

    @property
    def reload(self) -> str:
        return "at a start" if f"{self.section}.{self.name}" in config.AT_START else "yes"


def settings() -> Iterator[Setting]:
    """Every key that has a field, in the order of the files."""
    hints = typing.get_type_hints(config.Settings)
    for section in config.SECTIONS:
        if is_dataclass(hints[section]):
            yield from _of_class(section, typing.cast(type[Any], hints[section]))
    yield from _of_class('peers."ID"', PeerOverrides)


def _of_class(section: str, kind: type[Any]) -> Iterator[Setting]:
    hints = typing.get_type_hints(kind, include_extras=True)
    meanings = _comments(kind)
    for one in fields(kind):
        default = {} if one.default is MISSING else one.default
        yield Setting(
            section=section,
            name=one.name,
            type=_type(hints[one.name]),
            default=_toml(default),
            unit="characters" if one.name in COUNTED_IN_CODE_POINTS else _unit(one.name),
            meaning=meanings.get(one.name, ""),
        )


def _comments(kind: type[Any]) -> dict[str, str]:
    """Field → the comment at the end of its line."""
    found: dict[str, str] = {}
    first = ""
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(kind)).readline):
        match token.type:
            case tokenize.NAME if not first:
                first = token.string
            case tokenize.COMMENT if first:
                found[first] = token.string.removeprefix("#").strip()
            case tokenize.NEWLINE | tokenize.NL:
                first = ""
    return found


def _unit(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def _type(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _type(next(one for one in typing.get_args(kind) if one is not types.NoneType))
    if origin is Annotated:
        of, allowed = typing.get_args(kind)
        assert isinstance(allowed, Range)
        return f"{'integer' if of is int else 'number'}, {allowed.low:.15g} to {allowed.high:.15g}"
    if origin is tuple:
        return "list of texts"
    if kind in (bool, str):
        return "true or false" if kind is bool else "text"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "one of " + ", ".join(f"`{one.value}`" for one in kind if one.value)
    return "table"


def _toml(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case StrEnum() | str():
            return f'`"{value}"`'
        case tuple():
            return "`[" + ", ".join(f'"{one}"' for one in value) + "]`"
        case Mapping():
            return "`{}`"
    return f"`{value:.15g}`" if isinstance(value, float) else f"`{value}`"


def settings_page() -> str:
    lines = ["# Settings", "", "`bridge.toml` in the bridge's home; `peers.toml` beside it holds `[peers]` alone."]
    lines += ["`reload` says whether `bridge-ctl reload` is enough.", ""]
    lines += [f"- {text}" for text in NAMED_BY_THE_OPERATOR.values()]
    section = ""
    for one in settings():
        if one.section != section:
            section = one.section
            lines += ["", f"## `[{section}]`", ""]
        facts = (one.type, one.unit, f"default {one.default or 'none'}", f"reload: {one.reload}")
        # A list, since a table of six columns is wider than a page.
        lines += [f"- **`{one.name}`**: {one.meaning}\\", f"  {' · '.join(filter(None, facts))}"]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    lines = ["# bridge-ctl", "", "Without a verb: the control screen on a terminal, one line where it is piped.", ""]
    lines += ["Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no supervisor runs on this home."]
    for verb in VERBS:
        lines += ["", f"## {verb.name}", "", f"{verb.help[0].upper()}{verb.help[1:]}.", "", *_usage(verb)]
    return "\n".join(lines) + "\n"


def _usage(verb: Verb) -> Iterator[str]:
    yield from ("```text", _call(verb), "```", "")
    for one in verb.arguments:
        choices = f": {', '.join(one.choices)}" if one.choices else ""
        yield f"- `{' '.join(filter(None, (one.flag, one.metavar)))}`: {one.help}{choices}"
    if verb.json:
        yield "- `--json`: print JSON"


def _call(verb: Verb) -> str:
    words = [f"[{one.flag}{' ' * bool(one.metavar)}{one.metavar}]" for one in verb.arguments if one.flag]
    words += ["[--json]"] * verb.json
    words += [one.metavar if one.required else f"[{one.metavar}]" for one in verb.arguments if not one.flag]
    return " ".join(["bridge-ctl", verb.name, *words])


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in (("settings.md", settings_page()), ("commands.md", commands_page())):
        (folder / name).write_text(text, encoding="utf-8")
