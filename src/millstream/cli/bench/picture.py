"""The picture: an SVG with one curve for each kind of time, without a drawing library.

A curve says which share of times is at most so long. Its horizontal axis is logarithmic: the slow few are what one looks for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from millstream.cli.bench.figures import TIMES, percentile

WIDTH, LEFT, RIGHT, TOP = 760, 60, 30, 56  # pixels
HEIGHT, GAP = 150, 62  # of one panel, and below it for its axis and the next one's title
CURVE, MARK, GRID, INK = "#4269d0", "#ff725c", "#dddddd", "#222222"
STEPS = 200
SHORTEST_MS = 0.1
MARKS = (50, 99)


def draw(heading: str, under: str, times: Mapping[str, Sequence[float]]) -> str:
    """The file's text. `times`: sorted milliseconds by name; those of which there are none get no panel."""
    parts = [_text(LEFT, 22, heading, weight="bold", size=14), _text(LEFT, 40, under)]
    top = TOP
    for name, values in times.items():
        if values:
            top += 20
            parts += _panel(name, values, top)
            top += HEIGHT + GAP - 20
    style = f'font-family="sans-serif" font-size="12" fill="{INK}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}" {style}>'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="white"/>', *parts, "</svg>"]) + "\n"


def _panel(name: str, values: Sequence[float], top: int) -> list[str]:
    low, high = _decades(values)

    def x(value: float) -> float:
        place = (math.log10(max(value, low)) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return LEFT + (WIDTH - LEFT - RIGHT) * place

    def y(point: float) -> float:
        return top + HEIGHT * (1 - point / 100)

    parts = [_text(LEFT, top - 8, f"{name.removesuffix('_ms').upper()}, {TIMES[name]}: {len(values):,} times", weight="bold")]
    for point in (0, 50, 100):
        parts.append(_line(LEFT, y(point), WIDTH - RIGHT, y(point)))
        parts.append(_text(LEFT - 8, y(point) + 4, f"{point} %", anchor="end"))
    tick = low
    while tick <= high * 1.001:
        parts.append(_line(x(tick), top, x(tick), top + HEIGHT))
        parts.append(_text(x(tick), top + HEIGHT + 16, f"{tick:g} ms", anchor="middle"))
        tick *= 10
    points = [(x(percentile(values, step * 100 / STEPS)), y(step * 100 / STEPS)) for step in range(STEPS + 1)]
    curve = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
    parts.append(f'<polyline points="{curve}" fill="none" stroke="{CURVE}" stroke-width="2"/>')
    for point in MARKS:
        value = percentile(values, point)
        is_right = x(value) > WIDTH - 160
        parts.append(f'<circle cx="{x(value):.1f}" cy="{y(point):.1f}" r="4" fill="{MARK}"/>')
        label = f"p{point} {value:,.4g} ms"
        parts.append(_text(x(value) + (-8 if is_right else 8), y(point) + 14, label, anchor="end" if is_right else "start"))
    return parts


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Powers of ten around all values, at least one apart; what is shorter than `SHORTEST_MS` is drawn as that."""
    low = math.floor(math.log10(max(values[0], SHORTEST_MS)))
    high = max(math.ceil(math.log10(max(values[-1], SHORTEST_MS))), low + 1)
    return 10.0**low, 10.0**high


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GRID}"/>'


def _text(x: float, y: float, text: str, *, weight: str = "normal", anchor: str = "start", size: int = 12) -> str:
    shown = f'font-weight="{weight}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {shown}>{escape(text)}</text>'
