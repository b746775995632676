"""Draws of the sampling kernel: the same ids as `millstream.execution.sampling` draws in numpy."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from millstream.execution.interface import ForwardRow
from millstream.execution.sampling import sample
from millstream.messages.sampling import SamplingParams

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
VOCAB = 49_152
some = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def draw(
    native: ModuleType,
    isa: str,
    logits: Floats,
    params: SamplingParams,
    seeds: list[int],
    index: int = 0,
    allowed: Words | None = None,
) -> list[int]:
    """Draw from the same logits with every seed."""
    rows = len(seeds)
    ids: list[int] = native.draw_rows(
        np.broadcast_to(logits, (rows, len(logits))).copy(),
        np.full(rows, params.temperature),
        np.full(rows, max(params.top_k, 0), np.int32),
        np.full(rows, params.top_p),
        np.full(rows, params.min_p),
        np.array(seeds, np.uint64),
        np.full(rows, index, np.uint64),
        isa=isa,
        allowed=None if allowed is None else np.broadcast_to(allowed, (rows, len(allowed))).copy(),
    ).tolist()
    return ids


def draw_in_numpy(
    logits: Floats, params: SamplingParams, seeds: list[int], index: int = 0, allowed: Words | None = None
) -> list[int]:
    rows = [ForwardRow("r", [1] * (3 + index), 3, 0, 3 + index, (), params, seed, True, allowed=allowed) for seed in seeds]
    ids, errors = sample(np.broadcast_to(logits, (len(seeds), len(logits))), rows)
    assert not errors
    return ids


def random_logits(kind: str, n: int, seed: int) -> Floats:
    numbers = np.random.default_rng(seed)
    if kind == "peaked":  # as of a model: a few likely ones far above a bell
        logits = numbers.standard_normal(n) * 2.5
        logits[numbers.integers(0, n, 20)] += numbers.uniform(3, 18, 20)
    elif kind == "ties":
        logits = numbers.integers(-3, 4, n).astype(np.float64)
    elif kind == "equal":
        logits = np.full(n, 1.25)
    elif kind == "far":  # an outlier on either side
        logits = numbers.standard_normal(n)
        logits[numbers.integers(0, n, 2)] = [-3e38, 1e4]
    else:
        logits = numbers.standard_normal(n) * {"flat": 0.01, "normal": 1.0, "wide": 8.0}[kind]
    return logits.astype(np.float32)


KINDS = ["peaked", "ties", "equal", "far", "flat", "normal", "wide"]
params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.3, 0.7, 1.0, 1.3, 5.0]),
    top_k=st.sampled_from([-1, -1, 1, 2, 7, 40, 300, 5000]),
    top_p=st.sampled_from([1.0, 1.0, 0.999, 0.95, 0.9, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.1, 0.9, 1.0]),
)


@some
@given(
    kind=st.sampled_from(KINDS),
    n=st.sampled_from([1, 2, 15, 16, 17, 100, 129, 1000, 5003]),
    params=params_strategy,
    seed=st.integers(0, 2**64 - 1),
    index=st.integers(0, 10_000),
)
def test_draws_are_those_of_numpy(
    native: ModuleType, isa: str, kind: str, n: int, params: SamplingParams, seed: int, index: int
) -> None:
    logits = random_logits(kind, n, seed % 2**32)
    seeds = [seed, *range(7)]
    assert draw(native, isa, logits, params, seeds, index) == draw_in_numpy(logits, params, seeds, index)


def mask_of(n: int, kind: str, seed: int) -> Words:
    """A mask with at least one id below `n`; whether it has bits behind `n`, or ends before it, must not matter."""
    numbers = np.random.default_rng(seed)
    words = -(-n // 32) + int(numbers.integers(-1, 2)) if n > 32 else 1
    bits = numbers.random(32 * words) < {"few": 3 / n, "half": 0.5, "most": 0.999}[kind]
    bits[numbers.integers(0, min(n, 32 * words))] = True
    return np.packbits(bits, bitorder="little").view(np.uint32)


@some
@given(
    kind=st.sampled_from(KINDS),
    mask=st.sampled_from(["few", "half", "most"]),
    n=st.sampled_from([1, 2, 15, 16, 17, 100, 129, 1000, 5003]),
    params=params_strategy | st.just(SamplingParams(temperature=0)),
    seed=st.integers(0, 2**64 - 1),
    index=st.integers(0, 10_000),
)
def test_draws_under_a_mask_are_those_of_numpy(
    native: ModuleType, isa: str, kind: str, mask: str, n: int, params: SamplingParams, seed: int, index: int
) -> None:
    logits = random_logits(kind, n, seed % 2**32)
    allowed = mask_of(n, mask, seed)
    seeds = [seed, *range(7)]
    assert draw(native, isa, logits, params, seeds, index, allowed) == draw_in_numpy(logits, params, seeds, index, allowed)


def test_a_mask_that_allows_all_changes_no_draw(native: ModuleType, isa: str) -> None:
    logits, everything = random_logits("peaked", 5003, 4), np.full(157, 0xFFFFFFFF, np.uint32)
    for filters in FILTERS:
        params = SamplingParams(temperature=0.9, **filters)
        seeds = list(range(50))
        assert draw(native, isa, logits, params, seeds, 0, everything) == draw(native, isa, logits, params, seeds)


def test_nothing_is_drawn_where_a_mask_allows_nothing(native: ModuleType, isa: str) -> None:
    logits, nothing = random_logits("normal", 1000, 1), np.zeros(32, np.uint32)
    for temperature in (0.0, 1.0):
        assert draw(native, isa, logits, SamplingParams(temperature=temperature), [1, 2], allowed=nothing) == [-1, -1]
    behind = nothing.copy()
    behind[31] = 1 << 31  # an id that only the mask has
    assert draw(native, isa, logits, SamplingParams(), [1], allowed=behind) == [-1]


FILTERS: list[dict[str, Any]] = [
    {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    for top_k, top_p, min_p in itertools.product((-1, 50, 1500), (1.0, 0.9), (0.0, 0.05))
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("kind", ["peaked", "normal"])
def test_a_whole_vocabulary_draws_as_in_numpy(native: ModuleType, isa: str, kind: str, filters: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.8, **filters)
    logits = random_logits(kind, VOCAB, 11)
    seeds = list(range(100, 125))
    assert draw(native, isa, logits, params, seeds) == draw_in_numpy(logits, params, seeds)
    for mask in ("few", "half"):
        allowed = mask_of(VOCAB, mask, 3)
        assert draw(native, isa, logits, params, seeds, 0, allowed) == draw_in_numpy(logits, params, seeds, 0, allowed)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_draws_are_those_of_numpy(native: ModuleType, isa: str, kind: str) -> None:
    numbers = np.random.default_rng(5)
    for step in range(100):
        logits = random_logits(kind, 2000, step)
        params = SamplingParams(
            temperature=float(numbers.uniform(0.1, 2)),
            top_k=int(numbers.choice([-1, 2, 30, 900])),
            top_p=float(numbers.choice([1.0, numbers.uniform(0.05, 1)])),
            min_p=float(numbers.choice([0.0, numbers.uniform(0, 0.5)])),
        )
        seeds = numbers.integers(0, 2**63, 50).tolist()
        assert draw(native, isa, logits, params, seeds, step) == draw_in_numpy(logits, params, seeds, step)


def test_a_temperature_of_zero_takes_the_first_of_the_largest(native: ModuleType, isa: str) -> None:
    logits = np.array([1, 3, 3, 2], np.float32)
    assert draw(native, isa, logits, SamplingParams(temperature=0), [1, 2]) == [1, 1]


def test_minus_infinity_is_never_drawn(native: ModuleType, isa: str) -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[5, 700]] = [0.0, -0.5]
    for filters in FILTERS:
        ids = draw(native, isa, logits, SamplingParams(temperature=1.0, **filters), list(range(200)))
        assert set(ids) == {5, 700}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_is_drawn_where_logits_allow_none(native: ModuleType, isa: str, bad: float) -> None:
    logits = random_logits("normal", 300, 1)
    logits[123] = bad
    assert draw(native, isa, logits, SamplingParams(temperature=1.0), [1]) == [-1]
    assert draw(native, isa, np.full(40, -np.inf, np.float32), SamplingParams(temperature=1.0), [1]) == [-1]


@some
@given(n=st.integers(1, 300), seed=st.integers(0, 10**6), kind=st.sampled_from(KINDS))
def test_argmax_is_that_of_numpy(native: ModuleType, isa: str, n: int, seed: int, kind: str) -> None:
    logits = random_logits(kind if n > 1 else "normal", n, seed)
    (token_id,), (largest,), (is_finite,) = native.argmax_rows(logits[None], isa=isa)
    assert (token_id, largest, is_finite) == (logits.argmax(), logits.max(), True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 40])
def test_argmax_says_where_a_row_is_not_finite(native: ModuleType, isa: str, bad: float, place: int) -> None:
    logits = random_logits("normal", 41 * 2, 3).reshape(2, 41)
    logits[1, place] = bad
    assert native.argmax_rows(logits, isa=isa)[2].tolist() == [True, False]
