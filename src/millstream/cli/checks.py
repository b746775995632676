"""Check: one finding of `millstream doctor`, how it is made, and how all of them are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millstream.errors import MillstreamError, StartupError


class Check(NamedTuple):
    """One finding."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


def look(name: str, find: Callable[[], str]) -> Check:
    """What `find` found, or why it failed."""
    try:
        return Check(name, True, find())
    except StartupError as error:
        return Check(name, False, str(error), error.hint)
    except MillstreamError as error:  # such as a request's, where the check makes one
        return Check(name, False, error.message)


def report(title: str, checks: list[Check]) -> str:
    """The findings for people."""
    width = max(len(check.name) for check in checks)
    lines = [title]
    for check in checks:
        lines.append(f"  {'ok  ' if check.ok else 'FAIL'}  {check.name.ljust(width)}  {check.detail}")
        if check.hint:
            lines.append(f"        {' ' * width}  hint: {check.hint}")
    failed = sum(not check.ok for check in checks)
    lines.append("all is well" if not failed else f"{failed} of {len(checks)} checks failed")
    return "\n".join(lines) + "\n"
