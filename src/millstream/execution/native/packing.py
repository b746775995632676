"""What the native executor multiplies with: which matrices there are, in which packed format each is, and how it comes there.

Called by the loader. Matrices that a GGUF file holds in a format with a packed form keep every bit of it; all others are
quantised to 8 bits with a scale for each 32 weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from millstream.checkpoint.config import ModelConfig
from millstream.checkpoint.weights import Checkpoint
from millstream.errors import StartupError
from millstream.execution.native.availability import native_module

Bytes = NDArray[np.uint8]

ALIGNMENT = 64  # bytes: a register
BLOCK_ROWS = 16
BLOCKS_PER_TASK = 256


KEPT = {"Q4_0": "q4", "Q4_1": "q4_min", "Q8_0": "q8", "Q4_K": "q4_k", "Q6_K": "q6_k"}  # names in kernels/layout.h


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """One packed matrix: `size` bytes at `offset` of all of them."""

    name: str
    rows: int
    inputs: int
    format: str  # a name of kernels/layout.h
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
        packed = "q8" if stored is None else KEPT.get(stored.type, "q8")
        size = native.packed_bytes(packed, rows, inputs)
        plans.append(MatrixPlan(name, rows, inputs, packed, offset, size))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return plans


def total_bytes(plans: Sequence[MatrixPlan]) -> int:
    """Return the bytes that the planned matrices take together."""
    last = plans[-1]
    return last.offset + -(-last.size // ALIGNMENT) * ALIGNMENT


def pack_matrices(checkpoint: Checkpoint, plans: Sequence[MatrixPlan], out: Bytes, threads: int) -> None:
    """Write every matrix into `out`, on `threads` threads.

    Raises:
        StartupError: a weight is not finite.
    """
    with ThreadPoolExecutor(threads) as pool:
        tasks = [
            pool.submit(task) for plan in plans for task in _tasks(checkpoint, plan, out[plan.offset : plan.offset + plan.size])
        ]
        for task in tasks:
            task.result()


def _tasks(checkpoint: Checkpoint, plan: MatrixPlan, out: Bytes) -> Iterator[Callable[[], None]]:
    """Cut the packing of a matrix into parts that may run side by side."""
    native = native_module()
    stored = checkpoint.stored_matrix(plan.name, plan.rows, plan.inputs)
    num_blocks = -(-plan.rows // BLOCK_ROWS)
    if stored is None or stored.type not in KEPT:
        yield partial(_pack_floats, checkpoint, plan, num_blocks, out)  # all at once: the floats are made for it
        return
    for begin in range(0, num_blocks, BLOCKS_PER_TASK):
        end = min(num_blocks, begin + BLOCKS_PER_TASK)
        pack = partial(native.pack_gguf, stored.type, stored.data, plan.rows, plan.inputs, stored.row_order, begin, end, out)
        yield partial(_or_refuse, plan, pack)


def _pack_floats(checkpoint: Checkpoint, plan: MatrixPlan, num_blocks: int, out: Bytes) -> None:
    weights = np.empty((plan.rows, plan.inputs), dtype=np.float32)
    checkpoint.read(plan.name, weights)
    _or_refuse(plan, partial(native_module().pack_floats, weights, 0, num_blocks, out))


def _or_refuse(plan: MatrixPlan, pack: Callable[[], None]) -> None:
    try:
        pack()
    except ValueError as error:
        raise StartupError(f"`{plan.name}` of the model cannot be packed: {error}.") from error


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
