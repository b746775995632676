"""What a decode step costs while another program takes a core: alone and beside it, in turns, in one process.

    python -m benchmarks.engine.spinner --executor native --threads 2

Prints milliseconds a step, median, and the ratio. The other program is a loop that never sleeps.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from benchmarks.engine.steps import Bench
from millstream.checkpoint.locate import resolve_model
from millstream.config import EMBEDDED_MODEL, ServerConfig
from millstream.execution.registry import load_executor

STEPS = 40


def step_ms(bench: Bench, rows: int) -> float:
    """The median of some decode steps of `rows` sequences."""
    sequences = [bench.sequence(128, STEPS + 1) for _ in range(rows)]
    for sequence in sequences:
        bench.prefill(sequence)
    times = [bench.step(sequences, [len(sequence.token_ids) for sequence in sequences]) for _ in range(STEPS)]
    for sequence in sequences:
        bench.free(sequence)
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", default="native")
    parser.add_argument("--model", default=EMBEDDED_MODEL)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    config = ServerConfig(model=options.model, executor=options.executor, threads=options.threads, max_total_tokens=32_768)
    bench = Bench(load_executor(config, resolve_model(options.model)), 512)
    for rows in options.batch:
        alone, beside = [], []
        for _ in range(options.rounds):
            alone.append(step_ms(bench, rows))
            with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinner:
                beside.append(step_ms(bench, rows))
                spinner.kill()
        ratio = statistics.median(beside) / statistics.median(alone)
        print(f"{rows:3} rows: {statistics.median(alone):.2f} ms alone, {statistics.median(beside):.2f} beside: {ratio:.2f}x")


if __name__ == "__main__":
    main()
