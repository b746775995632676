"""`millstream replay`: what a recording comes to, in words and as the lines that differ."""

from __future__ import annotations

import difflib

from millstream.engine.replay import Result

MAX_LINES = 200


def replay_report(name: str, result: Result) -> str:
    """One line, and where the bytes differ, the masked events that do."""
    if result.is_equal:
        return f"{name}: equal, {len(result.now)} bytes\n"
    lines = [f"{name}: different"]
    if result.status[0] != result.status[1]:
        lines.append(f"status {result.status[0]} then, {result.status[1]} now")
    before, now = (data.decode("utf-8", "backslashreplace").splitlines() for data in (result.before, result.now))
    diff = list(difflib.unified_diff(before, now, "then", "now", lineterm="", n=1))
    lines += diff[:MAX_LINES]
    if len(diff) > MAX_LINES:
        lines.append(f"... and {len(diff) - MAX_LINES} lines more")
    return "\n".join(lines) + "\n"
