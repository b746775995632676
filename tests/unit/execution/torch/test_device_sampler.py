"""Draws on the device against those in numpy: the same numbers, the same tokens, the same errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.execution.interface import ForwardRow
from millstream.execution.sampling import draw_key
from millstream.execution.sampling import uniforms as numpy_uniforms
from millstream.execution.torch import race
from millstream.execution.torch.device_sampler import DeviceSampler, judge
from millstream.execution.verify import draw_with_drafts, sample_with_drafts
from millstream.messages.sampling import SamplingParams

VOCAB = 1500


def make_row(seed: int, draft: list[int] | None = None, num_output: int = 0, **params: Any) -> ForwardRow:
    ids = [7] * (5 + num_output)
    return ForwardRow("r", ids, 5, len(ids) - 1, len(ids), (0,), SamplingParams(**params), seed, True, (), draft or [])


def both(logits: np.ndarray, rows: list[ForwardRow]) -> tuple[Any, Any]:
    device = draw_with_drafts(rows, DeviceSampler(judge(torch.from_numpy(logits)), rows))
    return device, sample_with_drafts(logits, rows)


@settings(max_examples=60)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31))
def test_the_numbers_of_a_race_are_the_same_bit_for_bit(seed: int, index: int) -> None:
    ids = np.array([0, 1, 2, 3, 777, 49_151, 262_143])
    key = draw_key(seed, index)
    low, high = torch.tensor([[key & race.LOW_32]]), torch.tensor([[key >> 32]])
    assert (
        race.uniforms(low, high, torch.from_numpy(ids)[None]).numpy()[0].tolist() == numpy_uniforms(seed, index, ids).tolist()
    )


PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 5.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 2.0, "top_k": 40},
    {"temperature": 1.0, "top_k": 10**6},
    {"temperature": 1.5, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 3.0, "top_k": 700, "top_p": 0.5},
    {"temperature": 2.0, "min_p": 0.05},
    {"temperature": 3.0, "top_k": 30, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 1.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "logit_bias": {3: 50.0}},
]


@pytest.mark.parametrize("scale", [0.5, 4.0, 30.0])
def test_rows_of_every_kind_draw_in_one_batch_what_they_draw_in_numpy(scale: float) -> None:
    generator = np.random.default_rng(int(scale * 10))
    rows = [make_row(int(generator.integers(2**63)), num_output=step, **params) for step in range(20) for params in PARAMS]
    logits = generator.normal(scale=scale, size=(len(rows), VOCAB)).astype(np.float32)
    on_device, in_numpy = both(logits, rows)
    assert on_device == in_numpy
    assert len({ids[0] for ids in on_device[0]}) > 20


def test_rows_with_a_mask_draw_what_they_draw_in_numpy() -> None:
    generator = np.random.default_rng(4)
    rows = [make_row(seed, **params) for seed in range(10) for params in PARAMS]
    for row in rows[::2]:
        row.allowed = np.packbits(generator.random(VOCAB // 32 * 32) < 0.01, bitorder="little").view(np.uint32)
    on_device, in_numpy = both(generator.normal(size=(len(rows), VOCAB)).astype(np.float32), rows)
    assert on_device == in_numpy
    for ids, row in list(zip(on_device[0], rows, strict=True))[::2]:
        assert row.allowed is not None and int(row.allowed[ids[0] // 32]) >> ids[0] % 32 & 1


def test_equal_logits_rank_by_id() -> None:
    logits = np.zeros((60, VOCAB), dtype=np.float32)
    logits[:, ::3] = 1.0
    rows = [make_row(seed, temperature=1.0, **params) for seed in range(20) for params in ({"top_k": 5}, {"top_p": 0.01}, {})]
    on_device, in_numpy = both(logits, rows)
    assert on_device == in_numpy
    assert {ids[0] for ids in on_device[0][::3]} <= {0, 3, 6, 9, 12}
    assert both(logits[:1], [make_row(0, temperature=0.0)])[0] == ([[0]], {})


def test_what_is_not_finite_fails_alone() -> None:
    generator = np.random.default_rng(1)
    rows = [make_row(seed, temperature=float(seed % 2), top_k=9 if seed % 3 else -1) for seed in range(9)]
    rows[6] = make_row(6, temperature=1.0, presence_penalty=1.0)
    logits = generator.normal(size=(9, VOCAB)).astype(np.float32)
    logits[1, 4], logits[3, 9], logits[4, 0], logits[6, 2] = np.nan, np.inf, -np.inf, np.nan
    on_device, in_numpy = both(logits, rows)
    assert on_device == in_numpy
    assert sorted(on_device[1]) == [1, 3, 4, 6]


def test_a_row_whose_tokens_are_all_banned_fails_alone() -> None:
    rows = [make_row(1), make_row(2), make_row(3)]
    rows[1].banned_token_ids = tuple(range(VOCAB))
    on_device, in_numpy = both(np.random.default_rng(2).normal(size=(3, VOCAB)).astype(np.float32), rows)
    assert on_device == in_numpy
    assert list(on_device[1]) == [1]


@pytest.mark.parametrize("params", [PARAMS[0], PARAMS[1], PARAMS[6], PARAMS[11]])
def test_drafts_are_taken_as_far_as_they_agree(params: dict[str, Any]) -> None:
    generator = np.random.default_rng(3)
    logits = generator.normal(scale=3.0, size=(5, VOCAB)).astype(np.float32)
    drawn: list[int] = []
    for _ in range(4):  # the truth, position by position
        rows = [make_row(5, drawn, **params)]
        drawn = sample_with_drafts(logits[: 1 + len(drawn)], rows)[0][0]
    for wrong in range(5):
        draft = [token if place != wrong else (token + 1) % VOCAB for place, token in enumerate(drawn)]
        rows = [make_row(5, draft, **params), make_row(6)]
        on_device, in_numpy = both(np.concatenate([logits, logits[:1]]), rows)
        assert on_device == in_numpy
        assert len(on_device[0][0]) == min(wrong, 4) + 1


def test_many_rows_are_drawn_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.random.default_rng(4).normal(size=(7, VOCAB)).astype(np.float32)
    rows = [make_row(seed, temperature=2.0, top_k=50 if seed % 2 else -1) for seed in range(7)]
    whole = both(logits, rows)[0]
    monkeypatch.setattr(race, "MAX_ELEMENTS", 2 * VOCAB)
    assert both(logits, rows) == (whole, whole)
