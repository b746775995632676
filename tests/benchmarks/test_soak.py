"""The soak in short: afterwards nothing is left, and nothing was wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.long
@pytest.mark.timeout(300)
def test_after_half_a_minute_of_clients_of_every_kind_the_server_is_as_before(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak.run", "--seconds", "30", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(out.read_text())
    assert report["faults"] == []
    assert set(report["done"]) == {"reads_both_ways", "leaves", "stalls", "sends_garbage", "aborts", "asks_small_things"}
