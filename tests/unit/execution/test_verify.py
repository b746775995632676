"""Drafts change how many tokens a step brings, never which."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.execution.interface import ForwardRow
from millstream.execution.sampling import NOT_FINITE, sample
from millstream.execution.verify import num_agreeing, sample_with_drafts
from millstream.messages.sampling import SamplingParams

VOCAB = 12
PARAMETERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.0, 0.7, 1.0, 3.0]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "top_k": st.sampled_from([-1, 4]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.9, -0.4]),
        "logit_bias": st.sampled_from([{}, {}, {3: 2.0, 5: -1.0}]),
        "min_new_tokens": st.integers(0, 6),
    }
)


def logits_after(token_ids: list[int]) -> np.ndarray:
    """A model: any fixed function of the last three tokens and of how many there are."""
    return np.random.default_rng([*token_ids[-3:], len(token_ids)]).normal(size=VOCAB).astype(np.float32) * 2


def make_row(prompt: list[int], output: list[int], draft: list[int], seed: int, params: dict[str, Any]) -> ForwardRow:
    ids = prompt + output
    banned = (1, 2) if len(output) < params["min_new_tokens"] else ()
    return ForwardRow("r", ids, len(prompt), 0, len(ids), (), SamplingParams(**params), seed, True, banned, draft=draft)


def logits_of(row: ForwardRow) -> np.ndarray:
    """`[1 + len(draft), vocab]`"""
    draft = list(row.draft)
    return np.stack([logits_after([*row.token_ids, *draft[:count]]) for count in range(len(draft) + 1)])


def plain(prompt: list[int], output: list[int], seed: int, params: dict[str, Any], count: int) -> list[int]:
    """So many tokens, drawn one a step."""
    made = list(output)
    for _ in range(count):
        row = make_row(prompt, made, [], seed, params)
        (token_id,), errors = sample(logits_of(row), [row])
        assert not errors
        made.append(token_id)
    return made[len(output) :]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_row_gets_what_as_many_steps_without_drafts_would_give_it(data: st.DataObject) -> None:
    rows, expected = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        prompt = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
        output = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=5))
        seed, params = data.draw(st.integers(0, 2**64 - 1)), data.draw(PARAMETERS)
        size = data.draw(st.integers(0, 5))
        truth = plain(prompt, output, seed, params, size + 1)
        draft = truth[:size]
        if size and data.draw(st.booleans()):
            wrong = data.draw(st.integers(0, size - 1))
            draft[wrong] = (draft[wrong] + 1) % VOCAB
        rows.append(make_row(prompt, output, draft, seed, params))
        expected.append(truth[: num_agreeing(truth, draft) + 1])
    token_ids, errors = sample_with_drafts(np.concatenate([logits_of(row) for row in rows]), rows)
    assert not errors
    assert token_ids == expected


def test_the_distribution_of_several_tokens_a_step_is_that_of_the_model() -> None:
    """Chi-square over 4,000 seeds of what two tokens become, with a draft that is right every now and then."""
    prompt, params = [3, 4], {"temperature": 1.0, "top_k": 3, "min_new_tokens": 0}

    def candidates(ids: list[int]) -> dict[int, float]:
        logits = logits_after(ids).astype(np.float64)
        best = np.argsort(-logits)[:3]
        weights = np.exp(logits[best])
        return dict(zip(best.tolist(), (weights / weights.sum()).tolist(), strict=True))

    likely = max(candidates(prompt).items(), key=lambda item: item[1])[0]
    seen: Counter[tuple[int, int]] = Counter()
    steps = 0
    for seed in range(4000):
        made: list[int] = []
        while len(made) < 2:
            row = make_row(prompt, made, [] if made else [likely], seed, params)
            (new,), errors = sample_with_drafts(logits_of(row), [row])
            assert not errors
            made += new
            steps += 1
        seen[made[0], made[1]] += 1
    expected = {
        (first, second): p * q * 4000
        for first, p in candidates(prompt).items()
        for second, q in candidates([*prompt, first]).items()
    }
    assert set(seen) <= set(expected)
    statistic = sum((seen[pair] - count) ** 2 / count for pair, count in expected.items())
    assert statistic < 26.1  # the 0.999 quantile for 8 degrees of freedom
    assert 4000 < steps < 8000


def test_rows_with_and_without_drafts_share_a_step() -> None:
    params = {"temperature": 0.0, "min_new_tokens": 0}
    truth = plain([5], [], 1, params, 3)
    rows = [make_row([5], [], draft, 1, params) for draft in ([], truth[:2], [(truth[0] + 1) % VOCAB])]
    token_ids, errors = sample_with_drafts(np.concatenate([logits_of(row) for row in rows]), rows)
    assert not errors
    assert token_ids == [truth[:1], truth, truth[:1]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_fail_a_row_only_where_its_first_token_is_drawn(bad: float) -> None:
    params = {"temperature": 0.0, "min_new_tokens": 0}
    truth = plain([5], [], 1, params, 3)
    row = make_row([5], [], truth[:2], 1, params)
    wrong = make_row([5], [], [(truth[0] + 1) % VOCAB, 0], 1, params)
    logits = logits_of(row)
    for place, expected in ((0, []), (1, truth[:1]), (2, truth[:2])):
        broken = logits.copy()
        broken[place, 7] = bad
        token_ids, errors = sample_with_drafts(broken, [row])
        assert token_ids == [expected]
        assert errors == ({0: NOT_FINITE} if place == 0 else {})
    broken = logits_of(wrong)
    broken[1:] = bad
    assert sample_with_drafts(broken, [wrong]) == ([truth[:1]], {})


def test_a_row_whose_every_token_is_banned_ends_before_that_token() -> None:
    params = {"temperature": 0.0, "min_new_tokens": 2}
    truth = plain([5], [], 1, {"temperature": 0.0, "min_new_tokens": 0}, 2)
    row = make_row([5], [], truth[:1], 1, params)
    row.banned_token_ids = ()
    logits = logits_of(row)
    logits[1] = -np.inf
    assert sample_with_drafts(logits, [row]) == ([truth[:1]], {})


@given(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(0, 2), max_size=5))
def test_agreement_counts_the_common_beginning(left: list[int], right: list[int]) -> None:
    count = num_agreeing(left, right)
    assert left[:count] == right[:count]
    assert any(a[count : count + 1] == [] for a in (left, right)) or left[count] != right[count]


def test_agreement_of_every_pair_of_short_lists() -> None:
    assert [num_agreeing(pair, (1, 2)) for pair in product((1, 2), repeat=2)] == [1, 2, 0, 0]
