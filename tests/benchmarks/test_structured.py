"""The benchmark of grammars runs and its report parses: benchmarks that are not run rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_benchmark_compares_constrained_steps_with_free_ones(tmp_path: Path) -> None:
    out = tmp_path / "structured.json"
    few = ["--rows", "2", "--steps", "5", "--compiles", "1", "--answers", "1", "--executor", "scripted"]
    command = [sys.executable, "-m", "benchmarks.structured.run", *few, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=ROOT)
    report = json.loads(out.read_text())
    assert [run["rows"] for run in report["runs"]] == [2]
    assert len(report["compile_ms"]) > 1
    assert all(run["steps_jumped"] < run["steps_drawn"] for run in report["jumps"])
