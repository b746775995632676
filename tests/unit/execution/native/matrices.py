"""Packed matrices and quantised activations for the tests of the matrix kernels.

Importing it skips the test module where the extension is not built.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from millstream.checkpoint.gguf import BLOCK_TYPES, TensorInfo
from millstream.checkpoint.quant import dequantize

native = pytest.importorskip("millstream.execution.native._native", reason="the native extension is not built")

BLOCKS = {block.name: block for block in BLOCK_TYPES.values()}
FORMATS = {"Q4_0": "q4", "Q4_1": "q4_min", "Q8_0": "q8", "Q4_K": "q4_k", "Q6_K": "q6_k"}
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}  # where a block has fp16 numbers
MINIMUM = {"Q4_1": 2, "Q4_K": 2}  # where it has the scale of what is added to its weights


class Rows(NamedTuple):
    """Quantised activations, as `QuantizedRows` of layout.h."""

    q: NDArray[np.int8]
    scale: NDArray[np.float32]
    scaled_sum: NDArray[np.float32]
    sum: NDArray[np.int32]

    @staticmethod
    def empty(tokens: int, inputs: int) -> Rows:
        shape = (tokens, inputs // 32)
        return Rows(
            np.zeros((tokens, inputs), np.int8),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.int32),
        )

    def values(self) -> NDArray[np.float64]:
        return self.q * np.repeat(self.scale.astype(np.float64), 32, axis=1)


class Packed(NamedTuple):
    """A tensor, and its packed form with padded rows."""

    tensor: TensorInfo
    format: str
    rows: int
    inputs: int
    data: NDArray[np.uint8]


def has(isa: str) -> bool:
    try:
        quantize(isa, np.zeros((1, 32), np.float32))
    except ValueError:
        return False
    return True


def quantize(isa: str, values: NDArray[np.float32]) -> Rows:
    rows = Rows.empty(*values.shape)
    for token, row in enumerate(values):
        native.quantize(isa, row, *rows, token, 0)
    return rows


ISAS = [isa for isa in ("avx512", "avx2") if has(isa)]


def random_tensor(
    generator: np.random.Generator, kind: str, rows: int, inputs: int, exponents: tuple[float, float] = (-14, 4)
) -> TensorInfo:
    """Random bytes, with scales of both signs whose powers of two lie between `exponents`; fp16 has -24 to 15."""
    block = BLOCKS[kind]
    raw = generator.integers(0, 256, (rows * inputs // block.size, block.bytes), dtype=np.uint8)
    for offset in HALVES[kind]:
        scale = generator.choice([-1, 1], (len(raw), 1)) * 2 ** generator.uniform(*exponents, (len(raw), 1))
        raw[:, offset : offset + 2] = scale.astype("<f2").view(np.uint8)
    return TensorInfo("t", (rows, inputs), kind, raw.reshape(-1))


def pack(tensor: TensorInfo, order: NDArray[np.int32] | None = None, blocks: tuple[int, int] | None = None) -> Packed:
    rows, inputs = tensor.shape
    padded = -(-rows // 16) * 16
    name = FORMATS[tensor.type]
    data = np.zeros(native.packed_bytes(name, rows, inputs), np.uint8)
    begin, end = blocks or (0, padded // 16)
    native.pack_gguf(tensor.type, tensor.data, rows, inputs, order, begin, end, data)
    return Packed(tensor, name, padded, inputs, data)


def unpack(isa: str, packed: Packed) -> NDArray[np.float32]:
    out = np.empty((packed.rows, packed.inputs), np.float32)
    for row in range(packed.rows):
        native.unpack_row(isa, packed.format, packed.data, packed.rows, packed.inputs, row, out[row])
    return out


def multiply(
    isa: str,
    packed: Packed,
    x: Rows,
    *,
    bias: NDArray[np.float32] | None = None,
    blocks: tuple[int, int] | None = None,
    tokens: tuple[int, int] | None = None,
) -> NDArray[np.float32]:
    blocks = blocks or (0, packed.rows // 16)
    tokens = tokens or (0, len(x.q))
    out = np.full((tokens[1] - tokens[0], 16 * (blocks[1] - blocks[0])), 7, np.float32)
    native.multiply(isa, packed.format, packed.data, packed.rows, packed.inputs, bias, *blocks, *x, *tokens, out)
    return out


def exact_product(tensor: TensorInfo, x: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The product in float64, and a bound for float32: each operation errs by 2^-24 of the sum of absolute terms."""
    weights = dequantize(tensor, np.empty(tensor.shape, np.float64))
    without_minimum = weights
    if tensor.type in MINIMUM:
        raw = tensor.data.reshape(-1, BLOCKS[tensor.type].bytes).copy()
        raw[:, MINIMUM[tensor.type] : MINIMUM[tensor.type] + 2] = 0
        without_minimum = dequantize(
            TensorInfo("t", tensor.shape, tensor.type, raw.reshape(-1)), np.empty(tensor.shape, np.float64)
        )
    values = x.values()
    terms = np.abs(values) @ (np.abs(without_minimum) + np.abs(weights - without_minimum)).T
    operations = 4 * (tensor.shape[1] // 32) + 3
    return values @ weights.T, terms * operations * 2.0**-24 + 1e-37
