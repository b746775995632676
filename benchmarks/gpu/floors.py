"""The floor: what a step cannot be faster than, from what it must read and multiply and from what the GPU can.

    floor = max(weight bytes / bandwidth, operations / rate) + KV bytes / bandwidth

Norms, rotations and the draw are left out, and so is all that is not the GPU's: the floor is lower than any program can reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.engine.floor import kv_values, matrix_weights
from millstream.checkpoint.config import ModelConfig

BYTES = 2  # bfloat16
COPIED = 1 << 30  # bytes
SIDE = 8192  # of the matrices whose product is timed


@dataclass(frozen=True)
class Work:
    """What a model asks of a step."""

    body_weights: int  # multiplied for every position
    head_weights: int  # multiplied for every position that is drawn
    kv_bytes: int  # a token of context, all layers
    attention_operations: int  # a query and a key that it sees, all layers


def work_of(model: ModelConfig) -> Work:
    """The weights and KV of a model in bfloat16."""
    body, head = matrix_weights(model)
    return Work(
        body_weights=body,
        head_weights=head,
        kv_bytes=kv_values(model) * BYTES,
        attention_operations=model.num_layers * 4 * model.num_heads * model.head_dim,
    )


def decode_floor_ms(work: Work, tops: dict[str, float], *, rows: int, context: int) -> float:
    """Milliseconds of a decode step of `rows` rows that have `context` tokens each."""
    bandwidth = tops["gb_s"] * 1e9
    weights = work.body_weights + work.head_weights
    seconds = max(weights * BYTES / bandwidth, 2 * weights * rows / (tops["tflops"] * 1e12))
    return (seconds + rows * context * work.kv_bytes / bandwidth) * 1000


def prefill_floor_ms(work: Work, tops: dict[str, float], *, tokens: int) -> float:
    """Milliseconds of a prefill of `tokens` tokens, the last of which draws."""
    weights = work.body_weights + work.head_weights
    pairs = tokens * (tokens + 1) // 2
    operations = 2 * (work.body_weights * tokens + work.head_weights) + work.attention_operations * pairs
    return max(weights * BYTES / (tops["gb_s"] * 1e9), operations / (tops["tflops"] * 1e12)) * 1000


def ceilings(device: torch.device, *, copied: int = COPIED, side: int = SIDE) -> dict[str, float]:
    """Measure the device: gigabytes a second that a copy moves, read and written; 10^12 bfloat16 operations of a product."""
    source = torch.empty(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = torch.randn(2, side, side, device=device).bfloat16().unbind(0)
    return {
        "gb_s": 2 * copied / _best_seconds(lambda: target.copy_(source), device) / 1e9,
        "tflops": 2 * side**3 / _best_seconds(lambda: left @ right, device) / 1e12,
    }


def _best_seconds(work: Callable[[], object], device: torch.device, *, tries: int = 5, calls: int = 5) -> float:
    """The least that a call took, of several tries of several calls; one try before warms up."""
    best = float("inf")
    for _ in range(1 + tries):
        _settle(device)
        began = time.perf_counter()
        for _ in range(calls):
            work()
        _settle(device)
        best = min(best, (time.perf_counter() - began) / calls)
    return best


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
