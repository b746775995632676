"""What the benchmarks' programs have in common: options, turns, the quickest of several tries, a description of the machine.

No figure of its own. Standard library only.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def machine() -> dict[str, Any]:
    """What a report says of the machine it was made on."""
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}


def by_name(options: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` options by name; a value may have `=` in it."""
    return {name: value for name, _, value in (option.partition("=") for option in options)}


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """The names in the order of round `number`: each round another comes first."""
    every = list(names)
    first = number % max(1, len(every))
    return every[first:] + every[:first]


def fastest(work: Callable[[], object], tries: int) -> float:
    """Seconds of the quickest of some tries."""
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def output_of(command: Sequence[str]) -> dict[str, Any]:
    """The JSON object in the last line that a command prints.

    Raises:
        SystemExit: the command failed.
    """
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{ended.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return report
