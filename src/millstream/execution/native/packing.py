"""What the native executor multiplies with: which matrices there are, in which packed format each is, and how it comes there.

Called by the loader. Matrices that a GGUF file holds in a format with a packed form keep every bit of it; all others are
quantised to 8 bits with a scale for each 32 weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from millstream.checkpoint.config import ModelConfig
from millstream.checkpoint.weights import Checkpoint
from millstream.execution.native.availability import native_module

Bytes = NDArray[np.uint8]

ALIGNMENT = 64  # bytes: a register
BLOCK_ROWS = 16
BLOCKS_PER_TASK = 64


class Format(IntEnum):
    """Packed formats, numbered as in kernels/layout.h."""

    Q4 = 0
    Q4_MIN = 1
    Q8 = 2
    Q4_K = 3
    Q6_K = 4


_KEPT = {"Q4_0": Format.Q4, "Q4_1": Format.Q4_MIN, "Q8_0": Format.Q8, "Q4_K": Format.Q4_K, "Q6_K": Format.Q6_K}


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """One packed matrix: `size` bytes at `offset` of all of them."""

    name: str
    rows: int
    inputs: int
    format: Format
    offset: int
    size: int


def plan_matrices(checkpoint: Checkpoint) -> list[MatrixPlan]:
    """Lay out every matrix of the model, one after another, each aligned.

    Raises:
        StartupError: the checkpoint lacks one, or has it in another shape.
    """
    native = native_module()
    plans: list[MatrixPlan] = []
    offset = 0
    for name, rows, inputs in _shapes(checkpoint.config):
        stored = checkpoint.stored_matrix(name, rows, inputs)
        form = Format.Q8 if stored is None else _KEPT.get(stored.type, Format.Q8)
        size = native.packed_bytes(int(form), rows, inputs)
        plans.append(MatrixPlan(name, rows, inputs, form, offset, size))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return plans


def total_bytes(plans: Sequence[MatrixPlan]) -> int:
    """Return the bytes that the planned matrices take together."""
    last = plans[-1]
    return last.offset + -(-last.size // ALIGNMENT) * ALIGNMENT


def pack_matrices(checkpoint: Checkpoint, plans: Sequence[MatrixPlan], out: Bytes, threads: int) -> None:
    """Write every matrix into `out`, on `threads` threads."""
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(_pack, checkpoint, plan, out[plan.offset : plan.offset + plan.size]) for plan in plans]:
            done.result()


def _pack(checkpoint: Checkpoint, plan: MatrixPlan, out: Bytes) -> None:
    native = native_module()
    stored = checkpoint.stored_matrix(plan.name, plan.rows, plan.inputs)
    if stored is not None and stored.type in _KEPT:
        native.pack_gguf(stored.type, stored.data, plan.rows, plan.inputs, stored.row_order, out)
        return
    weights = np.empty((plan.rows, plan.inputs), dtype=np.float32)
    checkpoint.read(plan.name, weights)
    native.pack_floats(weights, out)


def _shapes(config: ModelConfig) -> Iterator[tuple[str, int, int]]:
    """Every matrix: name, rows (outputs), inputs."""
    hidden, ffn = config.hidden_size, config.ffn_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    for layer in range(config.num_layers):
        yield f"{layer}.q", q_size, hidden
        yield f"{layer}.k", kv_size, hidden
        yield f"{layer}.v", kv_size, hidden
        yield f"{layer}.o", hidden, q_size
        yield f"{layer}.gate", ffn, hidden
        yield f"{layer}.up", ffn, hidden
        yield f"{layer}.down", hidden, ffn
    yield "embedding", config.vocab_size, hidden
    if not config.tie_embeddings:
        yield "head", config.vocab_size, hidden
