"""The GPU benchmark's parts on a small model and a CPU: its comparison, its floors, its steps, its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.accuracy import compare, greedy_agreement
from benchmarks.gpu.floors import Work, ceilings, decode_floor_ms, prefill_floor_ms, work_of
from benchmarks.gpu.report import table, verdict
from benchmarks.gpu.steps import decode_ms, prefill_ms, sequence_logits
from millstream.checkpoint.locate import resolve_model
from millstream.checkpoint.weights import load_model_config
from millstream.execution.torch.runner import TorchExecutor
from tests.unit.execution.torch.families import make_model
from tests.unit.execution.torch.steps import load

GOOD = {"tokens": 40, "argmax_agreement": 1.0, "mean_kl": 1e-4, "max_kl": 1e-3, "decode_agreement": 1.0}
IDS = list(range(20, 60))


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> TorchExecutor:
    folder = tmp_path_factory.mktemp("llama")
    make_model("llama-tied", folder)
    return load(resolve_model(str(folder)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ended.returncode == 2
    assert ended.stderr.startswith("no GPU: ")


def test_logits_are_compared_with_a_reference(executor: TorchExecutor) -> None:
    logits = sequence_logits(executor, IDS)
    same = compare(logits, logits)
    assert (same["argmax_agreement"], same["mean_kl"]) == (1.0, pytest.approx(0.0, abs=1e-12))
    off = compare(logits, logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    assert 1e-4 < off["mean_kl"] < off["max_kl"] < 0.1
    assert compare(logits, logits.roll(1, 0))["argmax_agreement"] < 0.5


def test_decode_steps_are_compared_with_the_whole_sequence(executor: TorchExecutor) -> None:
    logits = sequence_logits(executor, IDS)
    assert greedy_agreement(executor, IDS, logits) == {"decode_agreement": 1.0}
    assert greedy_agreement(executor, IDS, -logits) == {"decode_agreement": 0.0}


def test_steps_are_timed(executor: TorchExecutor) -> None:
    assert decode_ms(executor, rows=3, context=10, steps=2) > 0
    assert prefill_ms(executor, tokens=12) > 0


def test_the_work_of_a_model_is_its_weights() -> None:
    work = work_of(load_model_config(resolve_model("embedded")))
    assert work.body_weights + work.head_weights == pytest.approx(134.5e6, rel=1e-2)
    assert work.kv_bytes == 30 * 2 * 3 * 64 * 2


def test_a_floor_is_bound_by_memory_or_by_multiplication() -> None:
    work = Work(body_weights=900, head_weights=100, kv_bytes=10, attention_operations=4)
    tops = {"gb_s": 1e-6, "tflops": 1e-9}  # 1,000 bytes and 1,000 operations a second
    assert decode_floor_ms(work, tops, rows=1, context=50) == pytest.approx(2500)
    assert decode_floor_ms(work, tops, rows=4, context=0) == pytest.approx(8000)
    assert prefill_floor_ms(work, tops, tokens=3) == pytest.approx(2 * 2800 + 4 * 6)
    measured = ceilings(torch.device("cpu"), copied=1 << 16, side=32)
    assert measured["gb_s"] > 0
    assert measured["tflops"] > 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"argmax_agreement": 0.9}, "argmax_agreement"),
        ({"decode_agreement": 0.5}, "decode_agreement"),
        ({"mean_kl": 0.1}, "mean_kl"),
        ({"mean_kl": float("nan")}, "mean_kl"),
    ],
)
def test_logits_that_are_too_far_off_fail_the_run(change: dict[str, float], says: str | None) -> None:
    complaint = verdict(GOOD | change)
    assert complaint is None if says is None else says in (complaint or "")


def test_the_table_has_a_line_for_each_step() -> None:
    report: dict[str, Any] = {
        "model": "m", "gpu": "g", "torch": "2", "load_s": 1.0, "accuracy": GOOD, "ceilings": {"gb_s": 4000.0, "tflops": 700.0},
        "steps": [{"name": "decode, 8 rows", "ms": 2.0, "floor_ms": 0.5, "tokens": 8}],
    }  # fmt: skip
    assert table(report).splitlines()[-1].split() == ["decode,", "8", "rows", "2.000", "0.500", "4.0", "4,000"]
