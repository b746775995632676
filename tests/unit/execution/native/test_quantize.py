"""The quantisation of activations: 32 to a scale, equal on every instruction set, and nothing that is not finite gets lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .matrices import ISAS, Rows, native, quantize

TINY = np.float32(1.4e-36)  # groups below this count as zero

isas = pytest.mark.parametrize("isa", ISAS)


def values_of(seed: int, shape: tuple[int, int]) -> np.ndarray:
    generator = np.random.default_rng(seed)
    scales = 2.0 ** generator.uniform(-100, 100, (shape[0], shape[1] // 32)).repeat(32, axis=1)
    return (generator.normal(size=shape) * scales).astype(np.float32)


@isas
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), groups=st.integers(1, 9))
def test_values_are_rounded_to_multiples_of_a_127th_of_the_largest(isa: str, seed: int, groups: int) -> None:
    values = values_of(seed, (2, 32 * groups))
    rows = quantize(isa, values)
    grouped = values.reshape(2, groups, 32)
    most = np.abs(grouped).max(axis=2)
    q = np.rint(grouped * (np.float32(127) / most)[:, :, None]).astype(np.int8)
    np.testing.assert_array_equal(rows.q.reshape(q.shape), q)
    np.testing.assert_array_equal(rows.scale, most / np.float32(127))
    np.testing.assert_array_equal(rows.sum, q.sum(axis=2, dtype=np.int32))
    np.testing.assert_array_equal(rows.scaled_sum, rows.scale * rows.sum.astype(np.float32))


@isas
def test_halves_are_rounded_to_even(isa: str) -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    assert quantize(isa, values).q[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


@isas
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, TINY])
def test_a_group_of_nothing_has_the_scale_zero(isa: str, value: float) -> None:
    rows = quantize(isa, np.full((1, 32), value, np.float32))
    assert not rows.q.any()
    assert rows.scale[0, 0] == rows.scaled_sum[0, 0] == rows.sum[0, 0] == 0


@isas
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("around", [0.0, 1.0, 3e38])
@pytest.mark.parametrize("place", [0, 7, 16, 31])
def test_a_value_that_is_not_finite_makes_its_groups_scale_nan_and_no_others(
    isa: str, bad: float, around: float, place: int
) -> None:
    values = np.full((1, 96), around, np.float32)
    values[0, 32 + place] = bad
    rows = quantize(isa, values)
    assert np.isnan(rows.scale[0]).tolist() == np.isnan(rows.scaled_sum[0]).tolist() == [False, True, False]


@isas
def test_groups_are_written_where_they_belong(isa: str) -> None:
    values = values_of(1, (1, 64))
    rows = Rows.empty(3, 128)
    native.quantize(isa, values[0], *rows, 1, 2)
    expected = quantize(isa, values)
    np.testing.assert_array_equal(rows.q[1, 64:], expected.q[0])
    np.testing.assert_array_equal(rows.scale[1, 2:], expected.scale[0])
    assert not rows.q[1, :64].any()
    assert not rows.q[::2].any()
    with pytest.raises(ValueError, match="not all of this row"):
        native.quantize(isa, values[0], *rows, 1, 3)
