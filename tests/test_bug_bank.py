"""Every case of the bug bank, by theme, is carried by a test: its id stands in the test's name (b007) or docstring (B-007).

The table (tests/data/bug-bank-themes.json) says of each theme, or of a single case, which later part of the product it
waits for, if any. What waits may be carried already; then only the table is behind.
"""

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = json.loads((TESTS / "data" / "bug-bank-themes.json").read_text())
THEMES: dict[str, list[str]] = {name: theme["ids"] for name, theme in TABLE["themes"].items()}
LATER: dict[str, str] = {
    **{case: theme["later"] for theme in TABLE["themes"].values() if "later" in theme for case in theme["ids"]},
    **TABLE["later"],
}


def ids_in(text: str, pattern: str) -> Iterator[str]:
    return (f"B-{number}" for number in re.findall(pattern, text))


@functools.cache  # and not when it is imported: each process that runs tests imports it
def carried() -> dict[str, list[str]]:
    """Id → tests that carry it. A class's or module's docstring carries nothing: a test has to say what it is for."""
    found: dict[str, list[str]] = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                words = ast.get_docstring(node) or ""
                for case in {*ids_in(node.name, r"b(\d{3})(?=_|$)"), *ids_in(words, r"\bB-(\d{3})\b")}:
                    found.setdefault(case, []).append(f"{file.relative_to(TESTS)}::{node.name}")
    return found


def test_the_table_names_115_cases_each_in_one_theme() -> None:
    listed = [case for cases in THEMES.values() for case in cases]

    assert sorted(listed) == [f"B-{number:03}" for number in range(1, 116)]
    assert set(LATER) <= set(listed)


@pytest.mark.parametrize("theme", THEMES)
def test_each_case_of_a_theme_is_carried_by_a_test_unless_it_waits_for_a_later_part(theme: str) -> None:
    missing = [case for case in THEMES[theme] if case not in carried() and case not in LATER]

    assert not missing, f"{theme}: no test carries {', '.join(missing)}"


def test_no_test_carries_an_id_that_is_not_in_the_bank() -> None:
    unknown = {case: tests for case, tests in carried().items() if case not in {*sum(THEMES.values(), [])}}

    assert not unknown
