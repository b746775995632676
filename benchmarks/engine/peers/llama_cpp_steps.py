"""llama.cpp's steps, measured as `benchmarks.engine.measure` measures ours. Needs only `llama-cpp-python` and numpy.

PYTHON benchmarks/engine/peers/llama_cpp_steps.py MODEL.gguf [our options]

PYTHON is one that has `llama_cpp`; build it from its sdist with GGML_NATIVE=ON, for its wheels leave half of a
processor unused.
A step is one `llama_decode` and the argmax of each row. Each sequence has a KV area of its own (`kv_unified` off).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import time
from typing import Any

from shapes import WARM_UP_STEPS, peer_options, resident_mib


class Engine:
    """A loaded model, its context, and one batch that is filled again for each step."""

    def __init__(self, options: argparse.Namespace) -> None:
        import llama_cpp
        import numpy as np

        self.api, self.np = llama_cpp, np
        llama_cpp.llama_backend_init()
        self.quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.quiet, None)
        self.model = llama_cpp.llama_model_load_from_file(options.file.encode(), llama_cpp.llama_model_default_params())
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        rows = max(options.batch)
        params = llama_cpp.llama_context_default_params()
        each = max(options.context + options.steps + 1, -(-max(options.prefill, default=1) // rows) + 1)
        params.n_ctx, params.n_seq_max = -(-each // 256) * 256 * rows, rows
        params.n_batch = params.n_ubatch = max(options.chunk, rows)
        params.n_threads = params.n_threads_batch = options.threads
        params.kv_unified = False
        self.params = params
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)

    def single(self, tokens: int) -> None:
        """Start over with a context for one sequence of `tokens`: with many, each has only its part of the room."""
        self.api.llama_free(self.context)
        self.params.n_ctx, self.params.n_seq_max = -(-tokens // 256) * 256, 1
        self.context = self.api.llama_init_from_model(self.model, self.params)

    def step(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Compute `(id, position, sequence, sampled)` rows; return the most likely next id of each sampled one."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for index, (token_id, position, sequence, sampled) in enumerate(rows):
            batch.token[index], batch.pos[index], batch.logits[index] = token_id, position, sampled
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        if code := self.api.llama_decode(self.context, batch):
            raise SystemExit(f"llama_decode failed: {code}")
        size = ctypes.sizeof(ctypes.c_float) * self.vocab_size
        drawn = []
        for index, row in enumerate(rows):
            if row[3]:
                logits = self.api.llama_get_logits_ith(self.context, index)
                memory = (ctypes.c_char * size).from_address(ctypes.addressof(logits.contents))
                drawn.append(int(self.np.frombuffer(memory, dtype=self.np.float32).argmax()))
        return drawn

    def forget(self, sequence: int, position: int) -> None:
        """Drop the KV of a sequence from a position on."""
        self.api.llama_memory_seq_rm(self.api.llama_get_memory(self.context), sequence, position, -1)

    def prefill(self, ids: list[int], sequence: int, chunk: int) -> int:
        """Compute a prompt; return the most likely next id."""
        drawn: list[int] = []
        for start in range(0, len(ids), chunk):
            part = range(start, min(start + chunk, len(ids)))
            drawn = self.step([(ids[at], at, sequence, at == len(ids) - 1) for at in part])
        return drawn[0]


def decode_ms(engine: Engine, nexts: list[int], prompt: int, steps: int) -> list[float]:
    """Milliseconds of each decode step of the first sequences, from the ends of their prompts on."""
    current, times = list(nexts), []
    for sequence in range(len(nexts)):
        engine.forget(sequence, prompt)
    for position in range(prompt, prompt + steps):
        start = time.perf_counter()
        current = engine.step([(token_id, position, sequence, True) for sequence, token_id in enumerate(current)])
        times.append(round((time.perf_counter() - start) * 1000, 3))
    return times


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Load and measure everything."""
    start = time.perf_counter()
    engine = Engine(options)
    report: dict[str, Any] = {"load_s": round(time.perf_counter() - start, 3), "loaded_mib": resident_mib()}
    dice = random.Random(1)
    prompt = options.context - options.steps // 2
    prompts = [dice.choices(range(engine.vocab_size), k=prompt) for _ in range(max(options.batch))]
    nexts = [engine.prefill(ids, sequence, options.chunk) for sequence, ids in enumerate(prompts)]
    report["decode_ms"] = {}
    for batch in options.batch:
        decode_ms(engine, nexts[:batch], prompt, WARM_UP_STEPS)
        report["decode_ms"][batch] = decode_ms(engine, nexts[:batch], prompt, options.steps)
    report["used_mib"] = resident_mib()
    engine.single(max(options.prefill, default=1))
    report["prefill_ms"] = {length: [] for length in options.prefill}
    for length in options.prefill:
        for _ in range(options.repeats):
            ids = dice.choices(range(engine.vocab_size), k=length)
            engine.forget(0, 0)
            start = time.perf_counter()
            engine.prefill(ids, 0, options.chunk)
            report["prefill_ms"][length].append(round((time.perf_counter() - start) * 1000, 2))
    return report


def main() -> None:
    """Parse, measure, print."""
    print(json.dumps(measure(peer_options(__doc__))))


if __name__ == "__main__":
    main()
