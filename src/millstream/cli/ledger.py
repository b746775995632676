"""`millstream ledger`: what a running server holds for which request, by whom, since when, as a table."""

from __future__ import annotations

from typing import Any

HEADINGS = ("request", "process", "what", "amount", "for")


def ledger_table(found: dict[str, Any]) -> str:
    """The answer of /debug/ledger for people."""
    rows = [
        (each["rid"] or "-", each["process"], each["kind"], f"{each['amount']:,}", age(each["since_s"]))
        for each in found["held"]
    ]
    lines = []
    if rows:
        table = [HEADINGS, *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    if found["left_out"]:
        lines.append(f"... and {found['left_out']:,} more")
    if found["totals"]:
        lines += ["", "in all: " + ", ".join(f"{kind} {amount:,}" for kind, amount in sorted(found["totals"].items()))]
    else:
        lines.append("nothing is held")
    lines.append(f"mismatches: {found['mismatches']}")
    return "\n".join(lines) + "\n"


def age(seconds: float) -> str:
    """A time span in a form to read at a glance."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
