"""Counts attacks for the summary of a run, those of an ordinary user's runs included: none is left out in silence.

An attack is a test on a stage (conftest.py): it leaves its mark in user_properties, which travel from pytest's other
processes. A skipped one has none, so that is known by its folder.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

# Environment of a run that test_as_ordinary_user.py starts.
STAGED_ONLY = "ATTACKS_STAGED_ONLY"
REPORT = "ATTACKS_REPORT"
SET_UID_PROGRAM = "ATTACKS_SET_UID_PROGRAM"


def count(stats: Mapping[str, Iterable[object]]) -> tuple[int, Counter[str]]:
    """How many were blocked, and how often an attack was skipped for which reason."""
    blocked, skipped = 0, Counter[str]()
    for report in stats.get("passed", ()):
        if isinstance(report, pytest.TestReport) and report.when == "call":
            properties = dict(report.user_properties)
            blocked += "attack" in properties
            if "attacks" in properties:
                inner = json.loads(str(properties["attacks"]))
                blocked += inner["blocked"]
                skipped.update(inner["skipped"])
    for report in stats.get("skipped", ()):
        if isinstance(report, pytest.TestReport) and "tests/attacks/" in report.nodeid:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            skipped[reason.removeprefix("Skipped: ")] += 1
    return blocked, skipped


def tell(reporter: pytest.TerminalReporter) -> None:
    """The line at the end, and, for a run within a run, the file that the outer one reads."""
    blocked, skipped = count(reporter.stats)
    if blocked or skipped:
        reasons = "; ".join(f"{times} × {reason}" for reason, times in skipped.most_common())
        reporter.write_line(f"attacks: {blocked} blocked, {skipped.total()} skipped{': ' if reasons else ''}{reasons}")
    if path := os.environ.get(REPORT):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"blocked": blocked, "skipped": skipped}, file)
