"""What the system says of a process: CPU time and memory. Read from /proc; where there is none, nothing is known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """What a process has used and uses."""

    cpu_s: float
    resident_bytes: int


def usage_of(pid: int) -> Usage | None:
    """What the process uses; None where it is gone or the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # a process's name may hold anything
    ticks = int(fields[11]) + int(fields[12])
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
