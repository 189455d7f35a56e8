"""tests/promises/README.md says which test shows which promise: every name in it is a test's, and no row is without one."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SECTIONS = re.split(r"^## ", (TESTS / "promises" / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
EXISTING = {
    node.name
    for file in TESTS.rglob("test_*.py")
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
}


def rows_of(section: str) -> list[tuple[str, str]]:
    """Promise and what stands beside it."""
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [(cells[1].strip(), cells[2].strip()) for cells in (line.split("|") for line in lines)]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_every_promise_is_shown_by_a_test_that_exists_or_says_why_not(section: str) -> None:
    title, rows = section.splitlines()[0], rows_of(section)

    named = {name for _, shown in rows for name in re.findall(r"\btest_\w+", shown)}

    assert f"({len(rows)})" in title
    assert named <= EXISTING, f"no such test: {', '.join(sorted(named - EXISTING))}"
    bare = [row for row, shown in rows if not re.search(r"`test_\w+`|does not apply: \w|open: \w", shown)]
    assert not bare
