"""The benchmark of guesses runs and its report parses: benchmarks that are not run rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_benchmark_compares_a_server_that_guesses_with_one_that_does_not(tmp_path: Path) -> None:
    out = tmp_path / "speculative.json"
    command = [sys.executable, "-m", "benchmarks.speculative.run", "--clients", "2", "--workloads", "repeat", "--tokens", "20"]
    command += ["--rounds", "1", "--option", "executor=scripted", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=ROOT)
    (run,) = json.loads(out.read_text())["runs"]
    assert run["plain"]["tokens_per_step"] == 1
    assert run["ngram"]["tokens_per_step"] >= 1
    assert run["same_texts"] == 2
    assert 0 <= run["accepted"] <= run["drafted"]
