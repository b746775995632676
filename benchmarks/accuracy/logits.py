"""One executor's logits for given texts, teacher-forced. Run by `python -m benchmarks.accuracy` in a process of its own.

    python -m benchmarks.accuracy.logits IDS.json DIRECTORY --executor torch

IDS.json is a list of lists of token ids. Writes DIRECTORY/0.npy and so on, float32 `[tokens, vocab]`: at each position the
logits of the next token. Peers' scripts have the same two arguments.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from millstream.checkpoint.locate import resolve_model
from millstream.config import EMBEDDED_MODEL, ServerConfig
from millstream.execution.interface import ForwardBatch, ForwardRow
from millstream.execution.registry import load_executor
from millstream.messages.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def main() -> None:
    """Load, compute, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--executor", required=True)
    parser.add_argument("--model", default=EMBEDDED_MODEL)
    parser.add_argument("--chunk", type=int, default=256, help="positions a step; 1 is decode")
    parser.add_argument("--kv-cache-dtype", default="auto", help="where the executor has a choice")
    options = parser.parse_args()
    texts: list[list[int]] = json.loads(options.ids.read_text())
    config = ServerConfig(
        executor=options.executor,
        model=options.model,
        max_total_tokens=2 * max(map(len, texts)),
        kv_cache_dtype=options.kv_cache_dtype,
    )
    executor = load_executor(config, resolve_model(options.model))
    pages = list(range(executor.capabilities.num_pages))
    for number, ids in enumerate(texts):
        parts = []
        for start in range(0, len(ids), options.chunk):
            end = min(start + options.chunk, len(ids))
            row = ForwardRow("", ids, len(ids), start, end, pages, GREEDY, 0, end == len(ids))
            parts += executor.forward_logits(ForwardBatch([row]))  # type: ignore[attr-defined]  # those of real models have it
        np.save(options.directory / f"{number}.npy", np.concatenate([np.asarray(part) for part in parts]))
    executor.close()


if __name__ == "__main__":
    main()
