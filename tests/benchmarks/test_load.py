"""The load client runs against a real server and its report parses: benchmarks that are not run rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parent.parent.parent / "benchmarks" / "load.py"


def run(url: str) -> dict[str, object]:
    command = [sys.executable, str(CLIENT), "--url", url, "--clients", "4", "--requests", "12", "--max-tokens", "16"]
    report: dict[str, object] = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return report


def test_the_load_client_counts_every_token_and_gets_the_same_text_each_time(scripted_server: str) -> None:
    first, second = run(scripted_server), run(scripted_server)
    assert first["requests"] == 12
    assert first["output_tokens_per_s"] > 0  # type: ignore[operator]
    assert first["text_sha256"] == second["text_sha256"]
