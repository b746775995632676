"""SamplingParams: every range, named by its field."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import RequestError
from millstream.messages import SamplingParams

VOCAB = 100
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"temperature": 0.0}, id="greedy"),
        pytest.param({"temperature": 2.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}, id="open-limits"),
        pytest.param({"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 0.1}, id="penalties"),
        pytest.param({"seed": 2**64 - 1, "max_new_tokens": 1, "min_new_tokens": 1}, id="integers"),
        pytest.param({"logit_bias": {0: -100.0, 99: 100.0}, "stop_token_ids": (0, 99)}, id="token-ids"),
        pytest.param({"stop": ("x" * 1024,) * 32}, id="many-long-stops"),
    ],
)
def test_values_inside_the_ranges_pass(values: dict[str, Any]) -> None:
    SamplingParams(**values).verify(VOCAB)


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 999999.0}, "temperature"),
        ({"temperature": NAN}, "temperature"),
        ({"temperature": INF}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": NAN}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": -7}, "top_k"),
        ({"top_k": 2**64}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 9.0}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": NAN}, "repetition_penalty"),
        ({"max_new_tokens": -1}, "max_tokens"),
        ({"max_new_tokens": -5}, "max_tokens"),
        ({"max_new_tokens": 2**63}, "max_tokens"),
        ({"min_new_tokens": 2**63}, "min_tokens"),
        ({"min_new_tokens": -1}, "min_tokens"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -1}, "seed"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("a", "")}, "stop"),
        ({"stop": ("a",) * 33}, "stop"),
        ({"stop": ("a" * 1025,)}, "stop"),
        ({"stop_token_ids": (100,)}, "stop_token_ids"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"stop_token_ids": (1,) * 257}, "stop_token_ids"),
        ({"logit_bias": {100: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: 1000.0}}, "logit_bias"),
        ({"logit_bias": {1: NAN}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(1025), 0.0)}, "logit_bias"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(values: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values).verify(VOCAB)
    assert caught.value.param == param
    assert caught.value.status == 400
