"""What a measurement came to: its values, the target beside them, and how both are shown. Pure."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

HEAD = f"{'':<58} {'p50':>8} {'p95':>8} {'p99':>8}      {'target':>12}"


@dataclass(frozen=True, slots=True)
class Figure:
    """held: which value is held against the target, p50, p95 or p99. least: the target is the least, not the most."""

    key: str
    name: str
    values: Sequence[float]
    unit: str
    target: float
    held: str = "p50"
    least: bool = False

    def value(self, which: str) -> float:
        if which == "p50":
            return statistics.median(self.values)
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(len(ordered) * int(which[1:]) / 100))]

    def met(self) -> bool | None:
        """None: nothing could be measured here."""
        if not self.values:
            return None
        value = self.value(self.held)
        return value >= self.target if self.least else value <= self.target

    def row(self) -> str:
        if not self.values:
            return f"{self.name:<58} not measurable here"
        shown = " ".join(f"{self.value(which):8.1f}" for which in ("p50", "p95", "p99"))
        target = f"{self.held} {'≥' if self.least else '≤'} {self.target:g}"
        return f"{self.name:<58} {shown} {self.unit:<4} {target:>12}  {'ok' if self.met() else 'OVER'}  n={len(self.values)}"


def as_json(figures: Sequence[Figure]) -> str:
    """An object a figure: key, name, unit, p50, p95, p99 (null where nothing was measured), target, held, least, met, n."""
    return json.dumps([_row(figure) for figure in figures], indent=1)


def _row(figure: Figure) -> dict[str, object]:
    values = {which: round(figure.value(which), 3) if figure.values else None for which in ("p50", "p95", "p99")}
    return {
        "key": figure.key,
        "name": figure.name,
        "unit": figure.unit,
        **values,
        "target": figure.target,
        "held": figure.held,
        "least": figure.least,
        "met": figure.met(),
        "n": len(figure.values),
    }


def plot(figures: Sequence[Figure]) -> str:
    """SVG: each figure as a share of its target, so that everything left of the line is well."""
    bar, left, scale = 22, 400, 300
    rows = []
    for number, figure in enumerate(one for one in figures if one.values):
        value = figure.value(figure.held)
        share = figure.target / value if figure.least else value / figure.target
        y, colour = 30 + number * bar, "#3a7d5d" if figure.met() else "#b5483a"
        rows.append(
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{_escaped(figure.name)}</text>'
            f'<rect x="{left}" y="{y + 3}" width="{min(share, 2) * scale:.0f}" height="14" fill="{colour}"/>'
            f'<text x="{left + min(share, 2) * scale + 6:.0f}" y="{y + 14}">{_short(value)} {figure.unit}</text>'
        )
    height = 40 + len(rows) * bar
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 2 * scale + 90}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{left + scale}" y="18" text-anchor="middle">target</text>'
        f'<line x1="{left + scale}" x2="{left + scale}" y1="24" y2="{height}" stroke="#888"/>{"".join(rows)}</svg>\n'
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
