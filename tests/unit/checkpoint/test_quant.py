"""Dequantisation against the `gguf` package, for every type."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as reference

from millstream.checkpoint.gguf import BLOCK_TYPES, TensorInfo
from millstream.checkpoint.quant import dequantize

HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
ROWS = 3


def random_blocks(number: int) -> TensorInfo:
    block = BLOCK_TYPES[number]
    generator = np.random.default_rng(number)
    columns = 5 * max(block.size, 32)
    count = ROWS * columns // block.size
    if block.name == "F32":
        raw = generator.normal(size=(count, 1)).astype("<f4").view(np.uint8)
    elif block.name in ("F16", "BF16"):
        raw = generator.normal(size=(count, 1)).astype("<f2").view(np.uint8)  # any finite 16 bits do
    else:
        raw = generator.integers(0, 256, (count, block.bytes), dtype=np.uint8)
        for offset in HALVES[block.name]:  # scales must be finite
            raw[:, offset : offset + 2] = generator.normal(size=(count, 1)).astype("<f2").view(np.uint8)
    return TensorInfo("t", (ROWS, columns), block.name, raw.reshape(-1))


@pytest.mark.parametrize("number", BLOCK_TYPES, ids=[block.name for block in BLOCK_TYPES.values()])
def test_every_type_equals_the_reference_to_the_bit(number: int) -> None:
    tensor = random_blocks(number)
    expected = reference(tensor.data.reshape(ROWS, -1), GGMLQuantizationType(number))
    np.testing.assert_array_equal(dequantize(tensor), expected.reshape(tensor.shape))


def test_a_tensor_can_be_written_into_a_part_of_a_larger_array() -> None:
    tensor = random_blocks(3)
    larger = np.zeros((ROWS + 2, tensor.shape[1]), dtype=np.float32)
    dequantize(tensor, larger[1:-1])
    np.testing.assert_array_equal(larger[1:-1], dequantize(tensor))
    assert not larger[0].any()
    assert not larger[-1].any()


def test_a_target_that_is_not_contiguous_is_refused_rather_than_lost() -> None:
    tensor = random_blocks(3)
    with pytest.raises(ValueError, match="contiguous"):
        dequantize(tensor, np.zeros((tensor.shape[1], ROWS), dtype=np.float32).T)
