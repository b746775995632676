"""Products of packed matrices: near a float64 product of the same numbers, and the same to the bit however they are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from millstream.checkpoint.gguf import TensorInfo

from .matrices import (
    BLOCKS,
    FORMATS,
    HALVES,
    ISAS,
    Packed,
    Rows,
    exact_product,
    multiply,
    native,
    pack,
    quantize,
    random_tensor,
)

isas = pytest.mark.parametrize("isa", ISAS)
kinds = pytest.mark.parametrize("kind", FORMATS)


def case(kind: str, rows: int, columns: int, tokens: int, seed: int = 0) -> tuple[Packed, Rows]:
    generator = np.random.default_rng(seed)
    inputs = columns * max(BLOCKS[kind].size, 32)
    packed = pack(random_tensor(generator, kind, rows, inputs))
    values = generator.normal(size=(tokens, inputs)) * 2.0 ** generator.uniform(-8, 8, (tokens, 1))
    values *= np.repeat(generator.choice([1, 1, 8], (tokens, inputs // 32)), 32, axis=1)  # some groups have a second term
    return packed, quantize(ISAS[0], values.astype(np.float32))


def filled(kind: str, bytes_: int, scale: float) -> Packed:
    """16 rows of 256 inputs whose every byte is `bytes_`, with all scales `scale`."""
    tensor = random_tensor(np.random.default_rng(0), kind, 16, 256)
    raw = np.full_like(tensor.data, bytes_).reshape(-1, BLOCKS[kind].bytes)
    for offset in HALVES[kind]:
        raw[:, offset : offset + 2] = np.array([scale], "<f2").view(np.uint8)
    return pack(TensorInfo("t", tensor.shape, kind, raw.reshape(-1)))


def rows_filled(q: NDArray[np.int8], scale: float) -> Rows:
    """Rows whose groups have two terms, but every third."""
    rows = Rows.empty(*q.shape)
    for term, factor in ((rows.first, 1), (rows.second, 2**-8)):
        term.q[:] = q
        term.scale[:] = scale * factor
        term.sum[:] = q.reshape(len(q), -1, 32).sum(axis=2, dtype=np.int32)
    rows.flags[0] = 0b11011011
    sums = [term.scale * term.sum.astype(np.float32) for term in rows[:2]]
    rows.scaled_sum[:] = sums[0] + np.where(rows.is_flagged(), sums[1], 0)
    return rows


@isas
@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(list(FORMATS)),
    rows=st.integers(1, 70),
    columns=st.integers(1, 4),
    tokens=st.integers(1, 33),
    seed=st.integers(0, 2**32),
)
def test_a_product_errs_by_the_rounding_of_floats_only(
    isa: str, kind: str, rows: int, columns: int, tokens: int, seed: int
) -> None:
    packed, x = case(kind, rows, columns, tokens, seed)
    expected, bound = exact_product(packed.tensor, x)
    out = multiply(isa, packed, x)
    assert (np.abs(out[:, :rows] - expected) <= bound).all()
    assert not out[:, rows:].any()


@kinds
@pytest.mark.skipif(len(ISAS) < 2, reason="this machine has one of the instruction sets only")
def test_instruction_sets_agree_to_the_bit(kind: str) -> None:
    packed, x = case(kind, 70, 5, 19)
    np.testing.assert_array_equal(multiply("avx512", packed, x).view(np.uint32), multiply("avx2", packed, x).view(np.uint32))


@isas
@kinds
def test_a_token_gets_the_same_whatever_is_multiplied_with_it(isa: str, kind: str) -> None:
    packed, x = case(kind, 70, 3, 41)
    alone = np.concatenate([multiply(isa, packed, x, tokens=(t, t + 1)) for t in range(41)]).view(np.uint32)
    for begin in (0, 3):
        for end in range(begin + 1, 42):
            together = multiply(isa, packed, x, tokens=(begin, end)).view(np.uint32)
            np.testing.assert_array_equal(together, alone[begin:end], err_msg=f"tokens {begin} to {end}")


@isas
@kinds
def test_second_terms_of_other_tokens_and_groups_change_nothing(isa: str, kind: str) -> None:
    """A flag changes the outputs of its token, by the product of its term, and those of no other."""
    packed, x = case(kind, 40, 3, 70)
    x.flags[:] = 0
    x.second.q[:], x.second.scale[:], x.second.sum[:] = x.first.q, x.first.scale, x.first.sum
    plain = multiply(isa, packed, x)
    x.flags[0, 5::7] = 0b101
    out = multiply(isa, packed, x)
    changed = (out != plain).any(axis=1)
    np.testing.assert_array_equal(changed, x.flags[0] != 0)


@isas
def test_rows_of_more_than_64_groups_find_their_flags(isa: str) -> None:
    packed, x = case("Q4_0", 40, 150, 9)
    assert all((word != 0).any() for word in x.flags)
    expected, bound = exact_product(packed.tensor, x)
    assert (np.abs(multiply(isa, packed, x)[:, :40] - expected) <= bound).all()


@isas
@kinds
@pytest.mark.parametrize("tokens", [1, 3, 17])
def test_ranges_of_blocks_together_are_the_whole(isa: str, kind: str, tokens: int) -> None:
    packed, x = case(kind, 112, 2, tokens)
    whole = multiply(isa, packed, x)
    parts = [multiply(isa, packed, x, blocks=blocks) for blocks in ((0, 1), (1, 1), (1, 4), (4, 7))]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1).view(np.uint32), whole.view(np.uint32))


@isas
@kinds
def test_the_bias_is_added_last(isa: str, kind: str) -> None:
    packed, x = case(kind, 48, 2, 11)
    bias = np.random.default_rng(1).normal(size=48).astype(np.float32)
    np.testing.assert_array_equal(multiply(isa, packed, x, bias=bias), multiply(isa, packed, x) + bias)
    np.testing.assert_array_equal(multiply(isa, packed, x, bias=bias, blocks=(1, 3)), (multiply(isa, packed, x) + bias)[:, 16:])


@isas
@kinds
@pytest.mark.parametrize("bytes_", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("q", [127, -127, "alternating"])
@pytest.mark.parametrize("scales", [(65504.0, 1e24), (6e-8, 1.2e-38), (-1.0, 1.0)])
def test_extreme_numbers_neither_saturate_nor_wrap(
    isa: str, kind: str, bytes_: int, q: int | str, scales: tuple[float, float]
) -> None:
    packed = filled(kind, bytes_, scales[0])
    run = np.where(np.arange(256) % 2, 127, -127) if q == "alternating" else np.full(256, q)
    x = rows_filled(np.tile(run.astype(np.int8), (7, 1)), scales[1])
    expected, bound = exact_product(packed.tensor, x)
    assert (np.abs(multiply(isa, packed, x) - expected) <= bound).all()


@isas
@kinds
def test_a_poisoned_token_stays_poisoned_and_alone(isa: str, kind: str) -> None:
    generator = np.random.default_rng(0)
    tensor = random_tensor(generator, kind, 40, 512)
    values = generator.normal(size=(13, 512)).astype(np.float32)
    values[3, 5], values[7, 300], values[8, 511] = np.nan, np.inf, -np.inf
    out = multiply(isa, pack(tensor), quantize(isa, values))
    assert np.isnan(out).all(axis=1).tolist() == np.isnan(out).any(axis=1).tolist() == [t in (3, 7, 8) for t in range(13)]


def test_arrays_of_other_sizes_are_refused() -> None:
    packed, x = case("Q4_0", 32, 2, 3)
    out = np.zeros((3, 32), np.float32)
    ok = {"isa": ISAS[0], "format": "q4", "data": packed.data, "rows": 32, "inputs": 64, "bias": None, "x": x}
    ok |= {"block_begin": 0, "block_end": 2, "token_begin": 0, "token_end": 3, "out": out}
    native.multiply(**ok)
    wrong = {
        "no instruction set": {"isa": "mmx"},
        "unknown name": {"format": "q5"},
        "not padded": {"rows": 31},
        "another size": {"data": packed.data[1:]},
        "whole groups": {"x": x._replace(first=x.first._replace(q=x.first.q[:, :48].copy()))},
        "one a group": {"x": x._replace(first=x.first._replace(sum=x.first.sum[:2]))},
        "other tokens or inputs": {"x": x._replace(second=case("Q4_0", 32, 3, 3)[1].second)},
        "each 64 groups": {"x": x._replace(flags=x.flags[:, :2].copy())},
        "have other inputs": {"x": case("Q4_0", 32, 3, 3)[1]},
        "not all of this matrix": {"block_end": 3},
        "not all of these": {"token_end": 4},
        "too small": {"out": out[:2]},
        "another length": {"bias": np.zeros(31, np.float32)},
    }
    for message, change in wrong.items():
        with pytest.raises(ValueError, match=message):
            native.multiply(**ok | change)
