"""The executor benchmark runs, its report parses, and its floor is what its definition says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bars import Panel, draw
from benchmarks.engine.floor import Work, floor_ms, work_of
from benchmarks.engine.steps import Bench, closed_loop, decode_ms
from millstream.checkpoint.locate import resolve_model
from millstream.config import ServerConfig
from millstream.execution.interface import Executor, ForwardBatch, ForwardOutput
from millstream.execution.registry import load_executor

ROOT = Path(__file__).parent.parent.parent


class Watched:
    """An executor that notes the spans it was asked for."""

    def __init__(self, executor: Executor) -> None:
        self.capabilities = executor.capabilities
        self._executor = executor
        self.spans: list[list[tuple[int, int]]] = []

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        self.spans.append([(row.start, row.end) for row in batch.rows])
        return self._executor.forward(batch)

    def close(self) -> None:
        self._executor.close()


@pytest.fixture
def watched() -> Watched:
    return Watched(load_executor(ServerConfig(executor="scripted", max_total_tokens=4096), None))


def test_decode_steps_start_where_the_prompts_end_however_often_they_are_measured(watched: Watched) -> None:
    bench = Bench(watched, budget=64)
    sequences = [bench.sequence(100, 9) for _ in range(3)]
    for sequence in sequences:
        bench.prefill(sequence)
    assert watched.spans == [[(0, 64)], [(64, 100)]] * 3
    for _ in range(2):
        watched.spans.clear()
        decode_ms(bench, sequences, 8)
        assert watched.spans == [[(at, at + 1)] * 3 for at in range(99, 107)]


def test_a_closed_loop_computes_every_position_once_within_its_budget(watched: Watched) -> None:
    bench = Bench(watched, budget=64)
    assert closed_loop(bench, clients=4, requests=8, prompt_tokens=100, shared_tokens=16, new_tokens=8) > 0
    (prefix, *steps) = watched.spans
    assert prefix == [(0, 16)]
    sizes = [sum(end - start for start, end in spans) for spans in steps]
    assert max(sizes) <= 64
    assert sum(sizes) == 8 * (100 - 16 + 7)  # the last token of each is drawn, not computed


def test_the_floor_is_the_slower_of_reading_and_multiplying_and_then_the_kv() -> None:
    work = Work(weight_bytes=10**9, body_weights=10**9, head_weights=10**8, kv_bytes=1000, is_int8=True)
    ceilings = {"read_gb_s": 10.0, "int8_gops": 1000.0, "fp32_gflops": 1.0}
    assert floor_ms(work, ceilings, tokens=1, sampled=1, context=0) == pytest.approx(100)
    assert floor_ms(work, ceilings, tokens=100, sampled=1, context=10_000) == pytest.approx(200.2 + 1)


def test_the_embedded_model_s_work_is_known() -> None:
    source = resolve_model("embedded")
    fp32, native = work_of(source, "torch"), work_of(source, "native")
    assert fp32.weight_bytes == 4 * 134_479_872  # its parameters without the norms
    assert (fp32.kv_bytes, native.kv_bytes) == (46_080, 23_040)
    assert native.weight_bytes == 96_436_224  # 4-bit matrices and the 8-bit embedding, which is the head


@pytest.mark.parametrize("script", ["llama_cpp_steps.py", "openvino_steps.py"])
def test_a_peer_s_script_starts_in_a_python_that_has_none_of_our_packages(script: str, tmp_path: Path) -> None:
    command = [sys.executable, "-E", "-S", str(ROOT / "benchmarks" / "engine" / "peers" / script), "--help"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "--repeats" in ended.stdout


def test_a_picture_has_a_bar_for_every_value(tmp_path: Path) -> None:
    draw(tmp_path / "x.svg", "a < b", [Panel("one", {"ours": 3.0, "theirs": 1.0}), Panel("two", {"ours": 2000.0})])
    svg = (tmp_path / "x.svg").read_text()
    assert svg.count('height="16"') == 3
    assert "a &lt; b" in svg
    assert "2,000" in svg


@pytest.mark.long
def test_the_engine_benchmark_reports_every_executor_and_its_distance_from_the_floor(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.engine", "--executors", "torch", "--rounds", "1", "--threads", "1"]
    command += ["--batch", "1", "2", "--steps", "4", "--context", "32", "--prefill", "64", "--repeats", "1"]
    command += ["--out", str(tmp_path / "engine.json"), "--picture", str(tmp_path / "engine.svg")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230)
    assert ended.returncode == 0, ended.stderr
    (round_,) = json.loads((tmp_path / "engine.json").read_text())["rounds"]
    torch = round_["engines"]["torch"]
    assert [len(torch["decode_ms"][size]) for size in ("1", "2")] == [4, 4]
    assert len(torch["prefill_ms"]["64"]) == 1
    assert round_["ceilings"]["read_gb_s"] > 0
    assert "floor" in ended.stdout
    assert (tmp_path / "engine.svg").exists()
