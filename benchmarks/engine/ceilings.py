"""What this machine can do at most, now: how fast it reads memory and multiplies matrices. Prints a JSON object.

    python -m benchmarks.engine.ceilings --threads 2

A ceiling is measured by the best code that is at hand, the best of several tries: the native module's own loops where it
can be used, numpy's and torch's otherwise. torch's int8 product does not reach what the processor can do: `int8_from` says
whose figure it is. Run in a process of its own, so that torch's threads and memory are nobody else's.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from benchmarks.harness import fastest
from millstream.execution.native.availability import find_native

READ_BYTES = 256 << 20  # a thread: far more than any cache
SIZE = 2048  # of the square matrices
TRIES = 6


def read_gb_s(threads: int) -> float:
    """GB/s that `threads` threads read together, each its own array."""
    arrays = [np.ones(READ_BYTES // 4, dtype=np.float32) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        # numpy gives the interpreter lock away in both; which of them waits for memory alone depends on the machine
        readers = (np.max, lambda array: np.dot(array, array))
        seconds = min(fastest(lambda f=f: list(pool.map(f, arrays)), TRIES) for f in readers)
    return threads * READ_BYTES / seconds / 1e9


def fp32_gflops() -> float:
    """GFLOP/s of a float32 product."""
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    return 2 * SIZE**3 / fastest(lambda: a @ b, TRIES) / 1e9


def int8_gops() -> float:
    """GOP/s of the faster of torch's two int8 products."""
    a = torch.randint(-128, 127, (SIZE, SIZE), dtype=torch.int8)
    b = torch.randint(-128, 127, (SIZE, SIZE), dtype=torch.int8).t()
    layer = torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE, bias=False)), {torch.nn.Linear}, dtype=torch.qint8
    )
    x = torch.randn(SIZE, SIZE)
    return 2 * SIZE**3 / min(fastest(lambda: torch._int_mm(a, b), TRIES), fastest(lambda: layer(x), TRIES)) / 1e9


def native_ceilings(threads: int) -> dict[str, float]:
    """What the native module measures with its own loops; empty where it cannot be used."""
    native = find_native()
    return {} if isinstance(native, str) else native.measure_ceilings(threads)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    general = {"read_gb_s": read_gb_s(options.threads), "fp32_gflops": fp32_gflops(), "int8_gops": int8_gops()}
    native = native_ceilings(options.threads)
    ceilings = {name: round(max(value, native.get(name, 0.0)), 1) for name, value in general.items()}
    is_native = native.get("int8_gops", 0.0) > general["int8_gops"]
    print(json.dumps({**ceilings, "int8_from": "native" if is_native else "torch"}))


if __name__ == "__main__":
    main()
