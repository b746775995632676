"""OpenVINO GenAI's steps, measured as `benchmarks.engine.measure` measures ours. Needs only `openvino-genai` and numpy.

PYTHON benchmarks/engine/peers/openvino_steps.py MODEL.gguf [our options]

A step is one `ContinuousBatchingPipeline.step`, sampling included. Decode steps are timed once all sequences are past their
prompts; those that began first are some tokens further by then. KV is what OpenVINO chooses on a CPU: 8 bits.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from itertools import count
from typing import Any

from shapes import peer_options, resident_mib

VOCAB_SIZE = 49_000  # ids below this are ordinary tokens of the embedded model


class Engine:
    """A loaded pipeline."""

    def __init__(self, options: argparse.Namespace) -> None:
        import numpy as np
        import openvino
        import openvino_genai

        self.genai, self.openvino, self.np = openvino_genai, openvino, np
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.max_num_seqs = max(options.batch)
        scheduler.max_num_batched_tokens = options.chunk
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": options.threads}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(options.file, scheduler, "CPU", properties)
        self.ids = count()
        self.dice = random.Random(1)

    def add(self, prompt_tokens: int, new_tokens: int) -> Any:
        """Queue a request of random ids; return its handle."""
        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        config.eos_token_id = 2
        prompt = self.np.array([self.dice.choices(range(VOCAB_SIZE), k=prompt_tokens)], dtype=self.np.int64)
        return self.pipeline.add_request(next(self.ids), self.openvino.Tensor(prompt), config)

    def step(self) -> float:
        """One step's milliseconds."""
        start = time.perf_counter()
        self.pipeline.step()
        return round((time.perf_counter() - start) * 1000, 3)

    def finish(self, handles: list[Any]) -> None:
        """Run until nothing is left; read what was made."""
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        for handle in handles:
            while handle.can_read():
                handle.read()


def decode_ms(engine: Engine, options: argparse.Namespace, batch: int) -> list[float]:
    """Milliseconds of steps in which every sequence decodes."""
    prompt = options.context - options.steps // 2
    ahead = -(-batch * prompt // options.chunk)  # steps until the last prompt is done
    handles = [engine.add(prompt, options.steps + ahead + 8) for _ in range(batch)]
    started: set[int] = set()
    while len(started) < batch:
        engine.step()
        for index, handle in enumerate(handles):
            if index not in started and handle.can_read():
                handle.read()
                started.add(index)
    engine.step()
    times = [engine.step() for _ in range(options.steps)]
    engine.finish(handles)
    return times


def prefill_ms(engine: Engine, length: int) -> float:
    """Milliseconds until the first token of a prompt."""
    handle = engine.add(length, 1)
    start = time.perf_counter()
    while not handle.can_read():
        engine.pipeline.step()
    seconds = time.perf_counter() - start
    engine.finish([handle])
    return round(seconds * 1000, 2)


def main() -> None:
    """Parse, measure, print."""
    options = peer_options(__doc__)
    start = time.perf_counter()
    engine = Engine(options)
    report: dict[str, Any] = {"load_s": round(time.perf_counter() - start, 3), "loaded_mib": resident_mib()}
    prefill_ms(engine, 64)
    report["decode_ms"] = {batch: decode_ms(engine, options, batch) for batch in options.batch}
    report["prefill_ms"] = {length: [prefill_ms(engine, length) for _ in range(options.repeats)] for length in options.prefill}
    print(json.dumps({**report, "used_mib": resident_mib()}))


if __name__ == "__main__":
    main()
