"""Measures the real bridge against the simulated WeChat, from outside, and shows each figure beside its target.

    scripts/bench [--peers N] [--turns N] [--workers N] [--only PART] [--json] [--plot FILE]
    scripts/bench --ratios

--ratios is what CI runs: ratios of processor time, each held against ratios.json; more than 30 % above it fails. Medians
and high percentiles, since a machine that does other things has outliers.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import conversation, cores, crowds
from tests.bench.figures import HEAD, Figure, as_json, plot

KNOWN = Path(__file__).with_name("ratios.json")
REGRESSION = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="The bridge's figures beside their targets.")
    parser.add_argument("--peers", type=int, default=100, metavar="N", help="who write one after the other")
    parser.add_argument("--turns", type=int, default=200, metavar="N", help="how many warm turns are timed")
    parser.add_argument("--workers", type=int, default=500, metavar="N", help="how many live at once")
    parser.add_argument("--only", choices=PARTS, metavar="PART", help=f"one part: {', '.join(PARTS)}")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write an SVG of them too")
    parser.add_argument("--ratios", action="store_true", help="hold the ratios that CI holds, and nothing else")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # workers with a uid of their own pass through
        if asked.ratios:
            sys.exit(held_ratios(folder))
        figures = []
        say = sys.stderr if asked.json else sys.stdout
        print(HEAD, file=say)
        for part in [asked.only] if asked.only else PARTS:
            for figure in PARTS[part](folder, asked):
                figures.append(figure)
                print(figure.row(), file=say, flush=True)
    if asked.json:
        print(as_json(figures))
    if asked.plot:
        asked.plot.write_text(plot(figures), encoding="utf-8")


PARTS: dict[str, Callable[[Path, argparse.Namespace], Iterator[Figure]]] = {
    "conversation": lambda folder, asked: conversation.measure(folder, peers=asked.peers, turns=asked.turns),
    "acp": lambda folder, asked: crowds.acp(folder, turns=asked.turns),
    "turns": lambda folder, asked: crowds.throughput(folder),
    "workers": lambda folder, asked: crowds.alive_at_once(folder, workers=asked.workers),
    "flood": lambda folder, asked: crowds.flood(folder),
    "misdeeds": lambda folder, asked: crowds.misdeeds(folder),
    "strangers": lambda folder, asked: crowds.strangers(folder),
    "cores": lambda folder, asked: cores.measure(folder),
}


def held_ratios(folder: Path) -> int:
    """The exit code: 1 where one is more than 30 % above the one on record."""
    known: dict[str, float] = json.loads(KNOWN.read_text(encoding="utf-8"))
    worse = 0
    for name, value in cores.ratios(folder).items():
        most = known[name] * REGRESSION
        worse += value > most
        print(
            f"{name:<58} {value:6.2f}  on record {known[name]:6.2f}, at most {most:6.2f}  {'OVER' if value > most else 'ok'}"
        )
    return 1 if worse else 0


if __name__ == "__main__":
    main()
