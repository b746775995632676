"""Packing: what the kernels read is what the checkpoint's own dequantisation says, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.checkpoint.gguf import TensorInfo
from millstream.checkpoint.quant import dequantize

from .matrices import BLOCKS, FORMATS, HALVES, ISAS, Packed, native, pack, random_tensor, unpack

shapes = st.tuples(st.sampled_from(list(FORMATS)), st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**32))


def tensor_of(shape: tuple[str, int, int, int], exponents: tuple[float, float] = (-24, 15.9)) -> TensorInfo:
    kind, rows, columns, seed = shape
    return random_tensor(np.random.default_rng(seed), kind, rows, columns * max(BLOCKS[kind].size, 32), exponents)


def pack_floats(values: np.ndarray) -> Packed:
    rows, inputs = values.shape
    padded, wide = -(-rows // 16) * 16, -(-inputs // 32) * 32
    data = np.full(native.packed_bytes("q8", rows, inputs), 255, np.uint8)
    native.pack_floats(values, 0, padded // 16, data)
    return Packed(TensorInfo("t", values.shape, "F32", values.view(np.uint8).reshape(-1)), "q8", padded, wide, data)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None)
@given(shape=shapes)
def test_a_packed_tensor_holds_the_weights_of_the_checkpoint(isa: str, shape: tuple[str, int, int, int]) -> None:
    tensor = tensor_of(shape)
    weights = unpack(isa, pack(tensor))
    np.testing.assert_array_equal(weights[: shape[1]], dequantize(tensor))
    assert not weights[shape[1] :].any()


@settings(max_examples=30, deadline=None)
@given(shape=shapes, data=st.data())
def test_rows_can_be_taken_in_any_order(shape: tuple[str, int, int, int], data: st.DataObject) -> None:
    tensor = tensor_of(shape)
    order = np.array(data.draw(st.permutations(range(shape[1]))), np.int32)
    weights = unpack(ISAS[0], pack(tensor, order))
    np.testing.assert_array_equal(weights[: shape[1]], dequantize(tensor)[order])


@pytest.mark.parametrize("kind", FORMATS)
def test_ranges_of_blocks_together_are_the_whole(kind: str) -> None:
    tensor = tensor_of((kind, 70, 1, 0))
    ranges = [(0, 2), (2, 2), (2, 3), (3, 5)]
    together = np.bitwise_or.reduce([pack(tensor, blocks=blocks).data for blocks in ranges])
    np.testing.assert_array_equal(together, pack(tensor).data)


def test_the_lowest_byte_of_q8_survives() -> None:
    raw = np.full((16, 34), 128, np.uint8)
    raw[:, :2] = np.array([1], "<f2").view(np.uint8)
    assert (unpack(ISAS[0], pack(TensorInfo("t", (16, 32), "Q8_0", raw.reshape(-1)))) == -128).all()


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 20), inputs=st.integers(1, 100), exponent=st.integers(-30, 20), seed=st.integers(0, 2**32))
def test_floats_become_the_nearest_multiples_of_their_groups_scale(rows: int, inputs: int, exponent: int, seed: int) -> None:
    values = (np.random.default_rng(seed).normal(size=(rows, inputs)) * 2.0**exponent).astype(np.float32)
    padded = np.zeros((rows, -(-inputs // 32) * 32), np.float32)
    padded[:, :inputs] = values
    weights = unpack(ISAS[0], pack_floats(values))
    assert not weights[rows:].any()
    # an fp16 scale is at most 2^-10 above what the largest weight needs, or, where it is subnormal, 2^-24
    most = np.abs(padded).reshape(rows, -1, 32).max(axis=2)
    scale = np.repeat(np.maximum(most / 127 * (1 + 2.0**-10), most / 127 + 2.0**-24), 32, axis=1)
    assert (np.abs(weights[:rows] - padded) <= scale / 2 * (1 + 1e-6)).all()


def test_floats_that_are_multiples_of_an_fp16_scale_survive() -> None:
    values = np.arange(-127, 129, dtype=np.float32).reshape(2, 128)[:, :96] * np.float32(2.0**-9)
    values[:, ::32] = np.float32(-127 * 2.0**-9)
    np.testing.assert_array_equal(unpack(ISAS[0], pack_floats(values))[:2], values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e7])
def test_a_float_that_eight_bits_cannot_hold_is_refused(bad: float) -> None:
    values = np.ones((3, 40), np.float32)
    values[2, 39] = bad
    with pytest.raises(ValueError, match="not finite, or too large"):
        pack_floats(values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("kind", "place"), [(kind, place) for kind in FORMATS for place in HALVES[kind]])
def test_a_stored_scale_that_is_not_finite_is_refused(kind: str, place: int, bad: float) -> None:
    tensor = tensor_of((kind, 20, 2, 0))
    data = tensor.data.copy()
    last = len(data) - BLOCKS[kind].bytes
    data[last + place : last + place + 2] = np.array([bad], "<f2").view(np.uint8)
    with pytest.raises(ValueError, match="a scale is not finite"):
        pack(replace(tensor, data=data))


def test_arrays_of_other_sizes_are_refused() -> None:
    tensor = tensor_of(("Q4_0", 20, 2, 0))
    out = np.zeros(native.packed_bytes("q4", 20, 64), np.uint8)
    ok = {"type": "Q4_0", "stored": tensor.data, "rows": 20, "inputs": 64, "order": None}
    ok |= {"block_begin": 0, "block_end": 2, "out": out}
    native.pack_gguf(**ok)
    wrong = {
        "unknown name": {"type": "Q5_0"},
        "whole stored blocks": {"inputs": 63},
        "not rows times inputs": {"stored": tensor.data[1:]},
        "another size": {"out": out[:-1]},
        "not all of this matrix": {"block_end": 3},
        "another length": {"order": np.arange(19, dtype=np.int32)},
        "does not exist": {"order": np.arange(1, 21, dtype=np.int32)},
    }
    for message, change in wrong.items():
        with pytest.raises(ValueError, match=message):
            native.pack_gguf(**ok | change)
