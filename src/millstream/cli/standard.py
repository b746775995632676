"""The standard streams of a command: there though the caller closed them, and quiet where nobody reads any more."""

from __future__ import annotations

import os
import select
import sys


def open_closed_streams() -> None:
    """Open the null device where the caller closed a stream (`<&-`). First of all, so that no other file takes its number."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115  # for the process's life, as the others
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def reader_has_gone() -> bool:
    """Whether nobody reads standard output any more, as behind `| head`. Then nothing is written there at the exit, either."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True
