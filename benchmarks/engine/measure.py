"""One executor, measured in a process of its own. Prints a JSON object; run by `python -m benchmarks.engine`.

    python -m benchmarks.engine.measure --executor torch --threads 2

`decode_ms` and `prefill_ms` hold every step's milliseconds by batch size and by prompt length; `load_s` is how long the
executor took to load, imports included; memory is that of the whole process.
"""

from __future__ import annotations

import argparse
import json
import time

from benchmarks.engine.peers.shapes import WARM_UP_STEPS, add_shapes, resident_mib
from benchmarks.engine.steps import Bench, closed_loop, decode_ms
from millstream.checkpoint.locate import resolve_model
from millstream.config import EMBEDDED_MODEL, ServerConfig
from millstream.execution.registry import load_executor


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is measured, and of which model."""
    parser.add_argument("--model", default=EMBEDDED_MODEL)
    parser.add_argument("--threads", type=int, default=0)
    add_shapes(parser)


def main() -> None:
    """Load, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--executor", required=True)
    parser.add_argument("--kv-cache-dtype", default="auto", help="where the executor has a choice")
    loop = parser.add_argument_group("a closed loop of whole requests, in place of all else")
    loop.add_argument("--loop-clients", type=int, nargs="*", default=[])
    loop.add_argument("--loop-prompt", type=int, default=106)
    loop.add_argument("--loop-shared", type=int, default=0, help="tokens that begin every prompt; whole pages of them")
    loop.add_argument("--loop-tokens", type=int, default=64)
    options = parser.parse_args()
    rows = max(options.batch + options.loop_clients)
    total = 3 * rows * (options.context + options.steps + options.loop_prompt + options.loop_tokens)  # and room to spare
    config = ServerConfig(
        model=options.model,
        executor=options.executor,
        threads=options.threads,
        max_total_tokens=total + max(options.prefill, default=0),
        kv_cache_dtype=options.kv_cache_dtype,
    )
    start = time.perf_counter()
    executor = load_executor(config, resolve_model(options.model))
    report: dict[str, object] = {"load_s": round(time.perf_counter() - start, 3), "loaded_mib": resident_mib()}
    bench = Bench(executor, options.chunk)
    if options.loop_clients:
        report["loop_tokens_per_s"] = {clients: round(run_loop(bench, clients, options), 1) for clients in options.loop_clients}
    else:
        report |= run_steps(bench, options)
    report["used_mib"] = resident_mib()
    executor.close()
    print(json.dumps(report))


def run_steps(bench: Bench, options: argparse.Namespace) -> dict[str, object]:
    """Decode steps for every batch size, then prefills."""
    prompt = options.context - options.steps // 2  # so that the context is what was asked for in the middle
    sequences = [bench.sequence(prompt, options.steps + 1) for _ in range(max(options.batch))]
    for sequence in sequences:
        bench.prefill(sequence)
    decode: dict[int, list[float]] = {}
    for batch in options.batch:
        decode_ms(bench, sequences[:batch], WARM_UP_STEPS)
        decode[batch] = [round(ms, 3) for ms in decode_ms(bench, sequences[:batch], options.steps)]
    for sequence in sequences:
        bench.free(sequence)
    prefill: dict[int, list[float]] = {}
    for length in options.prefill:
        prefill[length] = []
        for _ in range(options.repeats):
            sequence = bench.sequence(length, 1)
            prefill[length].append(round(bench.prefill(sequence), 2))
            bench.free(sequence)
    return {"decode_ms": decode, "prefill_ms": prefill}


def run_loop(bench: Bench, clients: int, options: argparse.Namespace) -> float:
    """Tokens a second; twice as many requests as clients, four at least."""
    page = bench.executor.capabilities.page_size
    shape = {"clients": clients, "prompt_tokens": options.loop_prompt, "new_tokens": options.loop_tokens}
    shape["shared_tokens"] = options.loop_shared // page * page
    closed_loop(bench, requests=1, **{**shape, "new_tokens": 4})
    return closed_loop(bench, requests=max(4, 2 * clients), **shape)


if __name__ == "__main__":
    main()
