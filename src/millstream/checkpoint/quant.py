"""dequantize: from GGUF blocks to float32, in numpy.

Called by the weight reader. It only computes: bounds were checked by `GGUFFile`.

Source: the block layouts of the ggml project (F32, F16, BF16, Q4_0 to Q8_0, and the K-quants with super-blocks of 256).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.checkpoint.gguf import BLOCK_TYPES, TensorInfo

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

CHUNK_WEIGHTS = 1 << 17  # weights done at once, so that temporaries stay in the cache

_BLOCKS = {block.name: block for block in BLOCK_TYPES.values()}


def dequantize(tensor: TensorInfo, out: Floats | None = None) -> Floats:
    """Return the tensor as float32 in its shape, written into `out` (C-contiguous, same number of weights) where given."""
    block = _BLOCKS[tensor.type]
    if out is None:
        out = np.empty(tensor.shape, dtype=np.float32)
    rows = tensor.data.reshape(-1, block.bytes)
    target = out.reshape(-1, block.size)
    if not np.shares_memory(target[:1], out):
        raise ValueError("out must be C-contiguous")
    convert = _KERNELS[tensor.type]
    step = CHUNK_WEIGHTS // block.size
    for begin in range(0, len(rows), step):
        convert(rows[begin : begin + step], target[begin : begin + step])
    return out


def _f32(blocks: Bytes, out: Floats) -> None:
    out[:] = _as(blocks, "<f4")


def _f16(blocks: Bytes, out: Floats) -> None:
    out[:] = _as(blocks, "<f2")


def _bf16(blocks: Bytes, out: Floats) -> None:
    # bfloat16 is the upper half of a float32
    np.left_shift(_as(blocks, "<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 2:18], out)
    out -= 8
    out *= _half(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 4:20], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q5_0(blocks: Bytes, out: Floats) -> None:
    out[:] = _five_bits(blocks[:, 2:6], blocks[:, 6:22])
    out -= 16
    out *= _half(blocks, 0)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    out[:] = _five_bits(blocks[:, 4:8], blocks[:, 8:24])
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks[:, 2:34].view(np.int8)
    out *= _half(blocks, 0)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    count = len(blocks)
    low_high = _pairs_of_nibbles(blocks[:, 16:144])
    _scale_k(blocks, low_high, out.reshape(count, 8, 32))


def _q5_k(blocks: Bytes, out: Floats) -> None:
    count = len(blocks)
    low_high = _pairs_of_nibbles(blocks[:, 48:176])
    # bit j of the 32 high bytes belongs to sub-block j
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    high = (blocks[:, None, 16:48] >> shifts) & 1
    _scale_k(blocks, low_high | (high << 4), out.reshape(count, 8, 32))


def _q6_k(blocks: Bytes, out: Floats) -> None:
    count = len(blocks)
    low = blocks[:, 0:128].reshape(count, 2, 1, 2, 32)
    high = blocks[:, 128:192].reshape(count, 2, 1, 32)
    # in each half of 128: four runs of 32 weights, whose low nibbles come as (low, low, high, high) of two byte runs
    nibbles = np.concatenate((low & 0xF, low >> 4), axis=2).reshape(count, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8).reshape(1, 1, 4, 1)
    quants = (nibbles | (((high >> shifts) & 3) << 4)).reshape(count, 16, 16)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    target = out.reshape(count, 16, 16)
    target[:] = quants
    target -= 32
    target *= scales[:, :, None]


def _scale_k(blocks: Bytes, quants: NDArray[Any], out: Floats) -> None:
    """Finish a K-quant: `d * scale * quant - dmin * minimum`, with a scale and a minimum of 6 bits for each 32 weights."""
    packed = blocks[:, 4:16]
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((first & 63, (third & 0xF) | ((first >> 6) << 4)), axis=1)
    minima = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=1)
    out[:] = quants
    out *= (_half(blocks, 0) * scales)[:, :, None]
    out -= (_half(blocks, 2) * minima)[:, :, None]


def _nibbles(packed: Bytes, out: Floats) -> None:
    """The low nibbles of 16 bytes are weights 0 to 15, the high ones 16 to 31."""
    out[:, :16] = packed & 0xF
    out[:, 16:] = packed >> 4


def _five_bits(high: Bytes, packed: Bytes) -> Bytes:
    bits = np.unpackbits(np.ascontiguousarray(high), axis=1, bitorder="little")
    quants: Bytes = np.concatenate((packed & 0xF, packed >> 4), axis=1) | (bits << 4)
    return quants


def _pairs_of_nibbles(packed: Bytes) -> Bytes:
    """128 bytes as 8 runs of 32 weights: each 32 bytes hold one run in their low nibbles and the next in their high ones."""
    runs = packed.reshape(len(packed), 4, 1, 32)
    quants: Bytes = np.concatenate((runs & 0xF, runs >> 4), axis=2).reshape(len(packed), 8, 32)
    return quants


def _half(blocks: Bytes, offset: int) -> Floats:
    """The float16 at `offset` of every block, as a float32 column."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def _as(blocks: Bytes, dtype: str) -> NDArray[Any]:
    return blocks.view(np.dtype(dtype))


_KERNELS: dict[str, Callable[[Bytes, Floats], None]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
