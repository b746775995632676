"""The comparison of logits says what its definitions say, and agrees with itself on the real model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy.__main__ import compare

ROOT = Path(__file__).parent.parent.parent


def test_logits_that_differ_by_a_constant_are_the_same_distribution() -> None:
    logits = np.random.default_rng(1).normal(size=(70, 50)).astype(np.float32)
    same, divergence, error = compare(logits, logits + np.float32(3))
    assert same == [True] * 70
    assert max(map(abs, divergence)) < 1e-6
    assert max(error) < 1e-6


def test_divergence_is_that_from_the_reference() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    same, divergence, _ = compare(np.log(p[None]).astype(np.float32), np.log(q[None]).astype(np.float32))
    assert same == [False]
    assert divergence == pytest.approx([0.5 * np.log(2) + 0.25 * np.log(0.5)])


@pytest.mark.long
def test_float32_in_chunks_agrees_with_float32(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.accuracy", "--executors", "--ours", "chunks=--executor torch --chunk 64"]
    command += ["--texts", "explain"]
    ended = subprocess.run([*command, "--out", str(tmp_path / "a.json")], cwd=ROOT, capture_output=True, text=True, timeout=230)
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "a.json").read_text())["results"]["chunks"]
    assert result["positions"] > 500
    assert result["argmax_agreement"] > 0.999
    assert result["kl_mean"] < 1e-6
