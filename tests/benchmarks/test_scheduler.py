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
