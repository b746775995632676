"""The scheduler's benchmark runs: benchmarks that are not run rot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parent.parent.parent / "benchmarks" / "scheduler" / "run.py"


def test_the_scheduler_benchmark_prints_a_line_for_each_case() -> None:
    command = [sys.executable, str(RUN), "--only", "32 running, 512 waiting for pages, lpm"]
    output = subprocess.run(command, check=True, capture_output=True, timeout=120, text=True).stdout
    (line,) = output.splitlines()[1:]
    total, plan, settle, send = map(float, line.rsplit(maxsplit=4)[1:])
    assert total > 0
    assert abs(total - plan - settle - send) < 1


def test_the_scenarios_say_that_the_bound_and_the_turns_of_the_oldest_do_what_they_are_for() -> None:
    command = [sys.executable, str(RUN.with_name("scenarios.py")), "long", "starvation"]
    lines = subprocess.run(command, check=True, capture_output=True, timeout=120, text=True).stdout.splitlines()
    itl_p99 = [float(line.split("/")[1].split()[0]) for line in lines[1:4]]
    assert itl_p99[0] > 0.1 >= itl_p99[1] > 0.05 >= itl_p99[2]
    waits = [float(line[46:57]) for line in lines[5:8]]
    assert waits[0] > 2 * waits[1] > 4 * waits[2]
