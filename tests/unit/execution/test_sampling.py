"""Sampling against a naive float64 implementation, the shape of its draws, and what one row may do to another."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.execution.interface import ForwardRow
from millstream.execution.sampling import sample, uniforms
from millstream.messages.sampling import SamplingParams

VOCAB = 24
PINNED = [
    0.5777462351834401,
    0.41397010686341673,
    0.8371594661148265,
    0.005923319491557777,
    0.7792559930821881,
]  # a change would change what every seed draws


def make_row(prompt: list[int], output: list[int], *, seed: int = 1, banned: tuple[int, ...] = (), **params: Any) -> ForwardRow:
    ids = prompt + output
    return ForwardRow("r", ids, len(prompt), 0, len(ids), (), SamplingParams(**params), seed, True, banned)


def draw(logits: np.ndarray, row: ForwardRow) -> int:
    (token_id,), errors = sample(logits[None].astype(np.float32), [row])
    assert not errors
    return token_id


def naive_probabilities(logits: np.ndarray, row: ForwardRow) -> dict[int, float] | None:
    """The distribution the row draws from, step by step in Python floats; None where no token is left."""
    params = row.sampling
    values = naive_adjusted(logits, row)
    ranked = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if values[ranked[0]] == -math.inf:
        return None
    if params.temperature < 1e-5:
        return {ranked[0]: 1.0}
    weights = {token: math.exp((values[token] - values[ranked[0]]) / params.temperature) for token in ranked}
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    if params.top_p < 1.0:
        whole, held, kept = sum(weights[token] for token in ranked), 0.0, []
        for token in ranked:
            kept.append(token)
            held += weights[token]
            if held >= params.top_p * whole:
                break
        ranked = kept
    ranked = [token for token in ranked if weights[token] >= params.min_p * weights[ranked[0]]]
    whole = sum(weights[token] for token in ranked)
    return {token: weights[token] / whole for token in ranked}


def naive_adjusted(logits: np.ndarray, row: ForwardRow) -> list[float]:
    params = row.sampling
    values = [float(value) for value in logits.astype(np.float32)]
    output = list(row.token_ids[row.num_prompt_tokens :])
    for token in set(row.token_ids):
        value = values[token]
        values[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token in set(output):
        values[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    for token, bias in params.logit_bias.items():
        values[token] += bias
    for token in row.banned_token_ids:
        values[token] = -math.inf
    return values


token_ids = st.integers(0, VOCAB - 1)
parameters = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.3, 1.0, 2.5])},
    optional={
        "top_p": st.sampled_from([0.05, 0.513, 0.917]),
        "top_k": st.integers(1, VOCAB + 2),
        "min_p": st.sampled_from([0.013, 0.211]),
        "presence_penalty": st.sampled_from([-1.25, 0.5]),
        "frequency_penalty": st.sampled_from([-0.75, 0.5]),
        "repetition_penalty": st.sampled_from([0.5, 2.0]),
        "logit_bias": st.dictionaries(token_ids, st.sampled_from([-100.0, 1.5]), max_size=4),
    },
)


@settings(deadline=None, max_examples=300)
@given(
    values=st.lists(st.integers(-400, 400), min_size=VOCAB, max_size=VOCAB),
    prompt=st.lists(token_ids, min_size=1, max_size=6),
    output=st.lists(token_ids, max_size=6),
    banned=st.sets(token_ids, max_size=VOCAB),
    params=parameters,
    seed=st.integers(0, 2**64 - 1),
)
def test_every_draw_is_one_the_naive_implementation_allows(
    values: list[int],
    prompt: list[int],
    output: list[int],
    banned: set[int],
    params: dict[str, Any],
    seed: int,
) -> None:
    # halves and quarters: float32 and float64 agree to the bit, ties included
    logits = np.array(values) / 64.0
    row = make_row(prompt, output, seed=seed, banned=tuple(banned), **params)
    allowed = naive_probabilities(logits, row)
    ids, errors = sample(logits[None].astype(np.float32), [row])
    if allowed is None:
        assert list(errors) == [0]
    else:
        assert not errors
        assert ids[0] in allowed


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"temperature": 1.0}, id="temperature-1"),
        pytest.param({"temperature": 0.6, "top_k": 7}, id="top-k"),
        pytest.param({"temperature": 1.3, "top_p": 0.8}, id="top-p"),
        pytest.param({"temperature": 1.0, "min_p": 0.1}, id="min-p"),
        pytest.param({"top_k": 9, "top_p": 0.85, "min_p": 0.05, "presence_penalty": 1.0}, id="all"),
        pytest.param({"repetition_penalty": 1.5, "frequency_penalty": 0.3, "logit_bias": {5: 2.0, 6: -3.0}}, id="penalties"),
    ],
)
def test_draws_follow_the_naive_distribution(params: dict[str, Any]) -> None:
    logits = np.random.default_rng(5).normal(scale=1.5, size=VOCAB)
    expected = naive_probabilities(logits, make_row([1, 2, 3], [4, 4, 5], **params))
    assert expected is not None
    draws = 4000
    counts = dict.fromkeys(expected, 0)
    for seed in range(draws):
        counts[draw(logits, make_row([1, 2, 3], [4, 4, 5], seed=seed, **params))] += 1
    chi_square = sum((counts[token] - draws * share) ** 2 / (draws * share) for token, share in expected.items())
    freedom = len(expected) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)  # five standard deviations; seeds are fixed


def test_a_draw_depends_on_seed_and_output_index_and_not_on_the_batch() -> None:
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(6, 500)).astype(np.float32)
    rows = [make_row([1], list(range(index)), seed=index % 2, top_p=0.9) for index in range(6)]
    together, _ = sample(logits, rows)
    backwards, _ = sample(logits[::-1], rows[::-1])
    alone = [draw(values, row) for values, row in zip(logits, rows, strict=True)]
    assert together == alone == backwards[::-1]


def test_a_retracted_row_whose_output_joined_its_tokens_draws_the_same() -> None:
    logits = np.random.default_rng(2).normal(size=500)
    first = make_row([1, 2], [7, 8], seed=9)
    again = ForwardRow("r", [1, 2, 7, 8], 2, 0, 4, (), first.sampling, 9, True)
    assert draw(logits, first) == draw(logits, again)


def uniform(seed: int, index: int, token_id: int) -> float:
    return float(uniforms(seed, index, np.array([token_id]))[0])


def test_uniform_numbers_are_spread_evenly_over_indices_seeds_and_tokens() -> None:
    for numbers in (
        [uniform(3, index, 7) for index in range(5000)],
        [uniform(seed, 3, 7) for seed in range(5000)],
        list(uniforms(3, 7, np.arange(5000))),
    ):
        counts, _ = np.histogram(numbers, bins=50, range=(0, 1))
        assert float(((counts - 100) ** 2 / 100).sum()) < 49 + 5 * math.sqrt(98)
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.06


def test_uniform_numbers_stay_what_they_are() -> None:
    assert [uniform(0, 0, 0), uniform(1, 0, 0), uniform(0, 1, 0), uniform(0, 0, 1), uniform(2**64 - 1, 10**6, 49151)] == PINNED


@pytest.mark.parametrize("params", [{"temperature": 1.5}, {"temperature": 5.0}, {"temperature": 1.0, "top_p": 0.95}], ids=str)
def test_a_hair_of_difference_in_the_logits_hardly_ever_changes_a_draw(params: dict[str, Any]) -> None:
    generator = np.random.default_rng(6)
    logits = generator.normal(scale=3, size=49152).astype(np.float32)
    noisy = (logits + generator.normal(scale=2e-5, size=49152)).astype(np.float32)
    rows = [make_row([1], [], seed=seed, **params) for seed in range(300)]
    assert sum(draw(logits, row) != draw(noisy, row) for row in rows) <= 1


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    logits = np.zeros(100)
    logits[[40, 70]] = 3.0
    assert draw(logits, make_row([1], [], temperature=0.0)) == 40
    assert draw(logits, make_row([1], [], temperature=1.0, top_k=1)) == 40
    assert draw(logits, make_row([1], [], temperature=0.0, banned=(40,))) == 70


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_a_row_with_logits_that_are_not_finite_fails_alone(bad: float) -> None:
    logits = np.random.default_rng(3).normal(size=(3, 50)).astype(np.float32)
    logits[1, 17] = bad
    rows = [make_row([1], [], temperature=temperature) for temperature in (0.0, 1.0, 1.0)]
    ids, errors = sample(logits, rows)
    assert list(errors) == [1]
    assert ids[0] == int(logits[0].argmax())
    assert ids[2] == draw(logits[2], rows[2])


def test_a_row_whose_every_token_is_banned_fails_alone() -> None:
    logits = np.zeros((2, 4), dtype=np.float32)
    ids, errors = sample(logits, [make_row([1], [], banned=(0, 1, 2, 3)), make_row([1], [], temperature=0.0)])
    assert list(errors) == [0]
    assert ids[1] == 0


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 2.0}, {"top_k": 2}, {"top_p": 0.1}, {"min_p": 0.5}])
@pytest.mark.parametrize("penalty", [0.0, 1.5])
def test_only_what_a_mask_allows_is_drawn(params: dict[str, Any], penalty: float) -> None:
    generator = np.random.default_rng(3)
    for seed in range(50):
        logits = generator.normal(size=(1, 100)).astype(np.float32)
        allowed = {int(each) for each in generator.choice(96, size=1 + seed % 7, replace=False)}
        row = make_row([1, 2], [3], seed=seed, frequency_penalty=penalty, **params)
        row.allowed = np.packbits([each in allowed for each in range(96)], bitorder="little").view(np.uint32)
        assert draw(logits[0], row) in allowed  # and never one of the ids from 96 on, which have no bit
        assert np.isfinite(logits).all()


def test_a_mask_that_allows_nothing_fails_its_row_alone() -> None:
    rows = [make_row([1], [], temperature=1.0) for _ in range(2)]
    rows[0].allowed = np.zeros(1, np.uint32)
    ids, errors = sample(np.zeros((2, 40), np.float32), rows)
    assert list(errors) == [0] and 0 <= ids[1] < 40


def test_logits_are_left_as_they_were() -> None:
    logits = np.random.default_rng(4).normal(size=(1, 50)).astype(np.float32)
    before = logits.copy()
    sample(logits, [make_row([1, 2], [3], repetition_penalty=2.0, presence_penalty=1.0, logit_bias={4: 5.0}, banned=(6,))])
    np.testing.assert_array_equal(logits, before)


def test_penalties_on_output_leave_the_prompt_alone() -> None:
    logits = np.zeros(4)
    logits[1] = 1.0
    assert draw(logits, make_row([1, 1, 1], [2], temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0)) == 1
    assert draw(logits, make_row([2], [1], temperature=0.0, presence_penalty=2.0)) == 0


def test_a_nucleus_wider_than_the_first_candidates_is_found() -> None:
    logits = np.zeros(20000)  # all alike: half the probability is exactly the first half of the ids
    drawn = {draw(logits, make_row([1], [], seed=seed, top_p=0.5)) for seed in range(200)}
    assert max(drawn) < 10000
    assert max(drawn) > 9000
