"""The front path's benchmark runs and its report parses: benchmarks that are not run rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_front_benchmark_measures_every_process(tmp_path: Path) -> None:
    out = tmp_path / "front.json"
    command = [sys.executable, "-m", "benchmarks.front.run", "--streams", "1", "--tokens", "20", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=ROOT)
    (run,) = json.loads(out.read_text())["runs"]
    assert {"millstream::entry-0", "millstream::scheduler", "millstream::detokenizer"} < set(run["cpu_us_per_token"])
    assert run["requests"] == 1
    assert run["send_floor_us"] > 0


def test_the_cost_of_timelines_is_measured() -> None:
    command = [sys.executable, "benchmarks/front/timeline.py", "--rounds", "1", "--concurrent", "2", "--tokens", "4"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, cwd=ROOT).stdout
    assert [line.split()[0] for line in found.splitlines()] == ["entry", "scheduler", "divergence", "engine"]
