"""Log probabilities in numpy: against a softmax in float64, whatever else is looked at, and which positions a step tells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from millstream.execution.interface import ForwardOutput, ForwardRow
from millstream.execution.logprobs import (
    add_prompt_logprobs,
    compute_logprobs,
    is_finite,
    prompt_positions,
    prompt_tokens,
    summarize,
)
from millstream.execution.sampling import NOT_FINITE
from millstream.messages.details import LogprobParams
from millstream.messages.sampling import SamplingParams

VOCAB = 50
logits_values = st.floats(-80, 80, width=32) | st.sampled_from([0.0, -0.0, 1.0, 1e4, -1e4])


def reference(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """The definition, in float64, one position."""
    values = [float(x) for x in logits]
    peak = max(values)
    total = math.fsum(math.exp(x - peak) for x in values)
    return np.array([x - peak - math.log(total) for x in values])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(logits_values, min_size=VOCAB, max_size=VOCAB), min_size=1, max_size=4),
    top=st.integers(0, VOCAB + 5),
    asked=st.lists(st.integers(0, VOCAB - 1), max_size=4),
    data=st.data(),
)
def test_values_are_those_of_a_softmax_in_float64(
    rows: list[list[float]], top: int, asked: list[int], data: st.DataObject
) -> None:
    logits = np.array(rows, dtype=np.float32)
    ids = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=len(rows), max_size=len(rows)))
    told = compute_logprobs(logits, ids, LogprobParams(top=top, token_ids=tuple(asked)))
    for index, row in enumerate(logits):
        expected = reference(row)
        ranked = sorted(range(VOCAB), key=lambda i, row=row: (-float(row[i]), i))[:top]  # type: ignore[misc]
        assert told.top_ids[index] == ranked
        np.testing.assert_allclose(told.chosen[index], expected[ids[index]], rtol=1e-12, atol=1e-11)
        np.testing.assert_allclose(told.top[index], expected[ranked], rtol=1e-12, atol=1e-11)
        np.testing.assert_allclose(told.asked[index], expected[asked], rtol=1e-12, atol=1e-11)
        assert sum(map(math.exp, told.top[index])) <= 1 + 1e-11
    assert is_finite(told)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), top=st.integers(0, 8))
def test_what_a_position_is_told_does_not_depend_on_its_neighbours(seed: int, top: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 9, (5, 1237)).astype(np.float32)
    params = LogprobParams(top=top, token_ids=(1, 5))
    together = compute_logprobs(logits, [7] * 5, params)
    padded = np.concatenate([logits, logits], axis=1)[:, :1237]  # another stride in memory
    assert compute_logprobs(padded, [7] * 5, params) == together
    for index in range(5):
        assert compute_logprobs(logits[index : index + 1].copy(), [7], params) == together.part(index, index + 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_fail_their_row_and_warn_nobody(bad: float) -> None:
    logits = np.zeros((2, VOCAB), dtype=np.float32)
    logits[1, 3] = bad
    told = compute_logprobs(logits, [3, 3], LogprobParams(top=2))
    assert is_finite(told.part(0, 1))
    output = ForwardOutput([[], []])
    assert not add_prompt_logprobs(output, 1, told)
    assert (output.errors, output.prompt_logprobs) == ({1: NOT_FINITE}, {})
    assert not is_finite(compute_logprobs(np.full((1, VOCAB), bad, np.float32), [0], LogprobParams(top=1)))


def test_a_logit_of_minus_infinity_that_nobody_asks_for_has_no_probability_and_does_no_harm() -> None:
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    logits[0, 3] = -np.inf
    told = compute_logprobs(logits, [4], LogprobParams(top=VOCAB - 1))
    assert is_finite(told)
    assert told.chosen[0] == pytest.approx(-math.log(VOCAB - 1))
    assert 3 not in told.top_ids[0]


@pytest.mark.parametrize("top", [0, 3, 10**6])
def test_the_summary_has_no_more_ids_than_there_are(top: int) -> None:
    assert summarize(np.zeros((2, VOCAB), np.float32), top).top_ids.shape == (2, min(top, VOCAB))


def make_row(start: int, end: int, prompt_start: int | None, num_prompt: int = 10, length: int = 10) -> ForwardRow:
    params: Any = LogprobParams(prompt_start=prompt_start)
    return ForwardRow(
        "r", range(100, 100 + length), num_prompt, start, end, (), SamplingParams(), 0, end == length, logprobs=params
    )


@pytest.mark.parametrize(
    ("row", "positions"),
    [
        pytest.param(make_row(0, 10, 0), range(1, 10), id="the first token has none"),
        pytest.param(make_row(0, 10, 7), range(7, 10), id="from where it is asked"),
        pytest.param(make_row(0, 10, 10), range(0), id="behind the prompt"),
        pytest.param(make_row(0, 4, 0), range(1, 5), id="a first chunk knows of the token behind it"),
        pytest.param(make_row(4, 8, 0), range(5, 9), id="a chunk in the middle"),
        pytest.param(make_row(8, 10, 0), range(9, 10), id="the last chunk: what follows is no prompt"),
        pytest.param(make_row(4, 12, 3, length=12), range(5, 10), id="prompt and output computed again"),
        pytest.param(make_row(11, 12, 0, length=12), range(0), id="a decode"),
        pytest.param(make_row(0, 10, None), range(0), id="no prompt position"),
    ],
)
def test_the_positions_a_step_tells(row: ForwardRow, positions: range) -> None:
    assert list(prompt_positions(row)) == list(positions)
    assert list(prompt_tokens(row, prompt_positions(row))) == [100 + position for position in positions]


def test_who_asks_for_nothing_is_told_nothing() -> None:
    assert not prompt_positions(ForwardRow("r", [1, 2], 2, 0, 2, (), SamplingParams(), 0, True))
