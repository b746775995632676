"""The server benchmark runs every workload against a real server, ours and a peer, and its report parses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.serve.report import figure, tables

ROOT = Path(__file__).parent.parent.parent


def test_every_workload_is_measured_on_ours_and_on_a_running_peer(scripted_server: str, tmp_path: Path) -> None:
    out = tmp_path / "serve.json"
    command = [sys.executable, "-m", "benchmarks.serve", "--executors", "--peer", f"other={scripted_server}"]
    command += ["--workloads", "load-1", "load-8", "mixed", "prefix", "turns"]
    command += ["--out", str(out), "--picture", str(tmp_path / "serve.svg")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230)
    assert ended.returncode == 0, ended.stderr
    (run,) = json.loads(out.read_text())["runs"]
    figures = run["workloads"]
    assert set(figures) == {"load-1", "load-8", "mixed", "prefix", "turns"}
    assert all(each["tokens_per_s"] > 0 and each["ttft_ms"]["p50"] > 0 for each in figures.values())
    assert figures["prefix"]["hit_share"] > 0.9
    assert figures["turns"]["hit_share_later"] > 0.5
    assert "| other |" in ended.stdout


def test_a_peer_is_started_by_its_command_and_stopped(tmp_path: Path) -> None:
    peers = tmp_path / "peers.json"
    command = [
        sys.executable,
        "-m",
        "millstream",
        "serve",
        "--executor",
        "scripted",
        "--port",
        "{port}",
        "--log-level",
        "error",
    ]
    peers.write_text(json.dumps({"scripted": {"command": command, "model": "scripted"}}))
    run = [
        sys.executable,
        "-m",
        "benchmarks.serve",
        "--executors",
        "--peers",
        str(peers),
        "--workloads",
        "load-1",
        "--rounds",
        "2",
    ]
    run += ["--out", str(tmp_path / "serve.json"), "--picture", str(tmp_path / "serve.svg")]
    ended = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=230)
    assert ended.returncode == 0, ended.stderr
    first, second = json.loads((tmp_path / "serve.json").read_text())["runs"]
    assert first["ready_s"] > 0
    assert first["memory_mib"] > 0
    assert first["workloads"]["load-1"]["text_sha256"] == second["workloads"]["load-1"]["text_sha256"]


def test_figures_are_medians_of_the_rounds_and_absent_ones_are_marked() -> None:
    runs = [
        {"server": name, "round": 0, "ready_s": None, "memory_mib": None, "workloads": {"prefix": {"ttft_ms_cold": cold}}}
        for name, cold in (("a", 3.0), ("a", 1.0), ("a", 2.0), ("b", 5.0))
    ]
    assert figure(runs, "a", "prefix", "ttft_ms_cold") == 2.0
    assert figure(runs, "a", "prefix", "ttft_ms.p50") is None
    assert "| b | 5 | – | – |" in tables(runs)
