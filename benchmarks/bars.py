"""Bars as an SVG file, without a drawing library: one panel a quantity, one bar a contestant. For the benchmarks' reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, LABEL, VALUE = 760, 190, 90  # pixels: of all, of the names at the left, of the numbers at the right
BAR, GAP, HEAD = 16, 5, 26
COLOURS = ("#4269d0", "#6cc5b0", "#efb118", "#ff725c", "#9c6b4e", "#a463f2", "#97bbf5", "#9498a0")


@dataclass(frozen=True)
class Panel:
    """One quantity: a title with its unit, and a value for each contestant that has one."""

    title: str
    values: Mapping[str, float]


def draw(path: Path, heading: str, panels: Sequence[Panel]) -> None:
    """Write the picture. A contestant has the same colour in every panel; each panel has its own scale, which begins at 0."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.values))
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    parts = [_text(10, 20, heading, weight="bold")]
    top = 34
    for panel in panels:
        parts += _panel(panel, colours, top)
        top += HEAD + len(panel.values) * (BAR + GAP) + 8
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" font-family="sans-serif" font-size="12">'
    background = f'<rect width="{WIDTH}" height="{top}" fill="white"/>'
    path.write_text("\n".join([head, background, *parts, "</svg>"]) + "\n")


def _panel(panel: Panel, colours: Mapping[str, str], top: int) -> list[str]:
    longest = max(panel.values.values(), default=0.0) or 1.0
    parts = [_text(10, top + 16, panel.title, weight="bold")]
    for index, (name, value) in enumerate(panel.values.items()):
        y = top + HEAD + index * (BAR + GAP)
        width = (WIDTH - LABEL - VALUE) * value / longest
        parts.append(_text(LABEL - 8, y + 12, name, anchor="end"))
        parts.append(f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colours[name]}"/>')
        parts.append(_text(LABEL + width + 6, y + 12, f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"))
    return parts


def _text(x: float, y: float, text: str, *, weight: str = "normal", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-weight="{weight}" text-anchor="{anchor}">{escape(text)}</text>'
