"""What a measurement says about its target."""

import json
from xml.etree import ElementTree

from tests.bench.figures import Figure, as_json, plot

FAST = Figure("fast", "a quick thing", [1.0, 2.0, 9.0], "ms", 5)
TAIL = Figure("tail", "its slow ones", [1.0, 2.0, 9.0], "ms", 5, held="p95")
RATE = Figure("rate", "how many & how often", [10.0, 30.0, 20.0], "/s", 15, least=True)
NONE = Figure("none", "not here", [], "MiB", 5)


def test_the_held_value_is_judged_against_the_most_or_the_least() -> None:
    assert [one.met() for one in (FAST, TAIL, RATE, NONE)] == [True, False, True, None]
    assert "OVER" in TAIL.row() and "not measurable" in NONE.row()


def test_json_and_plot_hold_every_figure_that_was_measured() -> None:
    rows = json.loads(as_json([FAST, TAIL, RATE, NONE]))
    drawn = ElementTree.fromstring(plot([FAST, TAIL, RATE, NONE]))

    assert [(row["key"], row["p50"], row["met"]) for row in rows] == [
        ("fast", 2.0, True),
        ("tail", 2.0, False),
        ("rate", 20.0, True),
        ("none", None, None),
    ]
    names = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert RATE.name in names and NONE.name not in names
