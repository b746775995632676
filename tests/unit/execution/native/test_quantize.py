"""The quantisation of activations: 32 to a scale, large groups in two terms, the same on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .matrices import ISAS, Rows, native, quantize

TINY = np.float32(1.4e-36)  # groups below this count as zero

isas = pytest.mark.parametrize("isa", ISAS)


LARGE_GROUP = 2.0  # kernels.h


def values_of(seed: int, shape: tuple[int, int], spread: float = 100) -> np.ndarray:
    """Normal values; a group's size is a power of two between those of -spread and spread."""
    generator = np.random.default_rng(seed)
    scales = 2.0 ** generator.uniform(-spread, spread, (shape[0], shape[1] // 32)).repeat(32, axis=1)
    return (generator.normal(size=shape) * scales).astype(np.float32)


def is_large(scale: np.ndarray) -> np.ndarray:
    """Which of a row's groups get a second term, by the rule in kernels.h; squares are summed in the order of the groups."""
    squares = np.where(np.isnan(scale), 0, scale).astype(np.float64) ** 2
    limit = LARGE_GROUP**2 * np.cumsum(squares)[-1] / len(scale)
    return np.array(squares > limit)


shapes = settings(max_examples=50, deadline=None)
rows_of_all_sizes = given(seed=st.integers(0, 2**32), groups=st.integers(1, 70), spread=st.sampled_from([0.0, 1.0, 4.0, 100.0]))


@isas
@shapes
@rows_of_all_sizes
def test_values_are_rounded_to_multiples_of_a_127th_of_the_largest(isa: str, seed: int, groups: int, spread: float) -> None:
    values = values_of(seed, (2, 32 * groups), spread)
    rows = quantize(isa, values)
    grouped = values.reshape(2, groups, 32)
    most = np.abs(grouped).max(axis=2)
    q = np.rint(grouped * (np.float32(127) / most)[:, :, None]).astype(np.int8)
    np.testing.assert_array_equal(rows.first.q.reshape(q.shape), q)
    np.testing.assert_array_equal(rows.first.scale, most / np.float32(127))
    np.testing.assert_array_equal(rows.first.sum, q.sum(axis=2, dtype=np.int32))


@isas
@shapes
@rows_of_all_sizes
def test_groups_that_are_large_for_their_row_have_a_second_term_and_no_others(
    isa: str, seed: int, groups: int, spread: float
) -> None:
    values = values_of(seed, (3, 32 * groups), spread)
    values[1, :32] = np.nan
    rows = quantize(isa, values)
    expected = np.array([is_large(scale) for scale in rows.first.scale])
    np.testing.assert_array_equal(rows.is_flagged(), expected)
    last_word = rows.flags[-1]
    assert not (last_word >> np.uint64((groups - 1) % 64) >> np.uint64(1)).any()  # no bit past the last group


@isas
@shapes
@rows_of_all_sizes
def test_a_term_errs_by_half_a_step_and_two_terms_by_half_of_the_finer_one(
    isa: str, seed: int, groups: int, spread: float
) -> None:
    values = values_of(seed, (2, 32 * groups), spread)
    rows = quantize(isa, values)
    error = np.abs(rows.values() - values).reshape(2, groups, 32).max(axis=2)
    scale, flagged = rows.first.scale.astype(np.float64), rows.is_flagged()
    step = np.where(flagged, scale / 2 / 127, scale)
    assert (error <= step / 2 * (1 + 1e-4)).all()


@isas
@shapes
@rows_of_all_sizes
def test_the_second_term_is_the_first_of_what_was_left_over(isa: str, seed: int, groups: int, spread: float) -> None:
    values = values_of(seed, (1, 32 * groups), spread)
    rows = quantize(isa, values)
    flagged = rows.is_flagged()[0]
    left = (values - rows.first.values()).astype(np.float32)
    again = quantize(isa, left).first
    np.testing.assert_array_equal(rows.second.q.reshape(-1, 32)[flagged], again.q.reshape(-1, 32)[flagged])
    np.testing.assert_array_equal(rows.second.scale[0, flagged], again.scale[0, flagged])
    np.testing.assert_array_equal(rows.second.sum[0, flagged], again.sum[0, flagged])
    sums = rows.first.scale * rows.first.sum.astype(np.float32)
    sums[0, flagged] += (again.scale * again.sum.astype(np.float32))[0, flagged]
    np.testing.assert_array_equal(rows.scaled_sum, sums)


@pytest.mark.skipif(len(ISAS) < 2, reason="this machine has one of the instruction sets only")
def test_instruction_sets_agree_to_the_bit() -> None:
    for seed in range(50):
        values = values_of(seed, (3, 32 * (1 + 3 * seed)), [0.5, 2, 20][seed % 3])
        ours, theirs = (quantize(isa, values) for isa in ISAS)
        for a, b in zip([*ours.first, *ours.second, *ours[2:]], [*theirs.first, *theirs.second, *theirs[2:]], strict=True):
            np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


@isas
def test_halves_are_rounded_to_even(isa: str) -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    assert quantize(isa, values).first.q[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


@isas
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, TINY])
def test_a_group_of_nothing_has_the_scale_zero(isa: str, value: float) -> None:
    rows = quantize(isa, np.full((1, 32), value, np.float32))
    assert not rows.first.q.any()
    assert not rows.flags.any()
    assert rows.first.scale[0, 0] == rows.scaled_sum[0, 0] == rows.first.sum[0, 0] == 0


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
    assert np.isnan(rows.first.scale[0]).tolist() == np.isnan(rows.scaled_sum[0]).tolist() == [False, True, False]


@isas
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_changes_nothing_of_other_groups(isa: str, bad: float) -> None:
    values = values_of(3, (1, 640), 3)
    values[0, 320:352] = 0
    healthy = quantize(isa, values)
    values[0, 333] = bad
    rows = quantize(isa, values)
    assert rows.is_flagged().any()
    np.testing.assert_array_equal(rows.is_flagged(), healthy.is_flagged())
    np.testing.assert_array_equal(np.delete(rows.scaled_sum, 10), np.delete(healthy.scaled_sum, 10))


@isas
def test_rows_are_written_where_they_belong(isa: str) -> None:
    values = values_of(1, (1, 256), 4)
    values[0, 70] = 9 * np.abs(values).max()  # of so few groups only one that stands out far gets a second term
    rows, untouched = Rows.empty(3, 256), Rows.empty(3, 256)
    native.quantize(isa, values[0], rows, 1)
    expected = quantize(isa, values)
    assert expected.is_flagged().any()
    for term, other, empty in zip(rows[:2], expected[:2], untouched[:2], strict=True):
        for array, wanted, before in zip(term, other, empty, strict=True):
            np.testing.assert_array_equal(array[1], wanted[0])
            np.testing.assert_array_equal(array[::2], before[::2])
    np.testing.assert_array_equal(rows.scaled_sum[1], expected.scaled_sum[0])
    np.testing.assert_array_equal(rows.flags, [[0, expected.flags[0, 0], 0]])
    with pytest.raises(ValueError, match="not a row"):
        native.quantize(isa, values[0, :64], rows, 1)
    with pytest.raises(ValueError, match="not one of these"):
        native.quantize(isa, values[0], rows, 3)
