"""The torch executor on a GPU: are its logits right, and how far are its steps from the floor.

    benchmarks/gpu/run
    benchmarks/gpu/run --model path/to/model --json gpu.json

Compares logits with those of float32 on the CPU, teacher-forced; times decode at several batch sizes and prefill at several
lengths; measures the GPU's bandwidth and its rate of multiplication in the same run, and divides. Prints a table and one line
of JSON; ends with status 1 where the logits are too far off. With the embedded model it takes less than 4 minutes.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.accuracy import compare, greedy_agreement
from benchmarks.gpu.floors import Work, ceilings, decode_floor_ms, prefill_floor_ms, work_of
from benchmarks.gpu.report import table, verdict
from benchmarks.gpu.steps import decode_ms, prefill_ms, sequence_logits
from millstream.checkpoint.locate import ModelSource, resolve_model
from millstream.checkpoint.weights import load_model_config
from millstream.config import ServerConfig
from millstream.execution.torch.build import load_torch_executor
from millstream.execution.torch.runner import TorchExecutor
from millstream.text.tokenizer import load_tokenizer

TEXT = Path(__file__).parents[2] / "docs" / "design.md"


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks/gpu/run", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded", help="as for `millstream serve`")
    parser.add_argument("--tokens", type=int, default=384, help="tokens whose logits are compared")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 64], help="rows of a decode step")
    parser.add_argument("--prefill", type=int, nargs="+", default=[512, 2048], help="tokens of a prefill")
    parser.add_argument("--context", type=int, default=512, help="tokens each row has when its decodes are timed")
    parser.add_argument("--steps", type=int, default=50, help="decode steps that are timed")
    parser.add_argument("--json", type=Path, help="write the report there, too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} finds none that it can use, so there is nothing to measure.", file=sys.stderr)
        return 2
    began = time.monotonic()
    source = resolve_model(options.model)
    config = server_config(options)
    token_ids = load_tokenizer(source).encode(TEXT.read_text(encoding="utf-8"))[: options.tokens]
    reference = reference_logits(config, source, token_ids)
    loading = time.monotonic()
    executor = load_torch_executor(config, source)
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": source.names[0],
        "load_s": round(time.monotonic() - loading, 1),
        "kv_tokens": executor.capabilities.num_pages * executor.capabilities.page_size,
    }
    logits = sequence_logits(executor, token_ids)
    report["accuracy"] = compare(reference, logits) | greedy_agreement(executor, token_ids, logits)
    report |= timings(executor, work_of(load_model_config(source)), options)
    executor.close()
    report["seconds"] = round(time.monotonic() - began, 1)
    print(table(report))
    print(json.dumps(report))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    complaint = verdict(report["accuracy"])
    if complaint is not None:
        print(complaint, file=sys.stderr)
    return 0 if complaint is None else 1


def server_config(options: argparse.Namespace) -> ServerConfig:
    """The executor's options: a batch and a chunk as large as what is measured, and no larger a pool than that needs."""
    rows, tokens = max(options.batch), max(*options.prefill, options.tokens)
    return ServerConfig(
        model=options.model,
        executor="torch",
        max_running_requests=rows,
        chunked_prefill_size=tokens + rows,
        max_total_tokens=2 * tokens + rows * (options.context + options.steps + 32),
    )


def reference_logits(config: ServerConfig, source: ModelSource, token_ids: list[int]) -> torch.Tensor:
    """Logits `[tokens, vocab]` in float32 on the CPU; the executor that made them is gone after."""
    executor = load_torch_executor(config, source, use_gpu=False)
    logits = sequence_logits(executor, token_ids)
    executor.close()
    del executor
    gc.collect()
    return logits


def timings(executor: TorchExecutor, work: Work, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of each step, its floor, and the ceilings that the floors follow from."""
    tops = ceilings(torch.device("cuda"))
    report: dict[str, Any] = {"ceilings": tops, "steps": []}
    for rows in options.batch:
        measured = decode_ms(executor, rows=rows, context=options.context, steps=options.steps)
        floor = decode_floor_ms(work, tops, rows=rows, context=options.context)
        report["steps"].append({"name": f"decode, {rows} rows", "ms": measured, "floor_ms": floor, "tokens": rows})
    for tokens in options.prefill:
        measured = prefill_ms(executor, tokens=tokens)
        floor = prefill_floor_ms(work, tops, tokens=tokens)
        report["steps"].append({"name": f"prefill, {tokens} tokens", "ms": measured, "floor_ms": floor, "tokens": tokens})
    return report


if __name__ == "__main__":
    sys.exit(main())
