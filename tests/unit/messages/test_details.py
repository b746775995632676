"""Log probabilities as they are asked for: what is in range, and what a refusal says."""

from __future__ import annotations

import pytest

from millstream.errors import RequestError
from millstream.messages.details import (
    MAX_LOGPROB_TOKEN_IDS,
    MAX_OUTPUT_VALUES,
    MAX_PROMPT_VALUES,
    MAX_TOP_LOGPROBS,
    LogprobParams,
    verify_prompt_values,
)


@pytest.mark.parametrize(
    ("params", "param", "said"),
    [
        pytest.param(LogprobParams(top=-1), "top_logprobs", "-1", id="fewer than none"),
        pytest.param(
            LogprobParams(top=MAX_TOP_LOGPROBS + 1), "top_logprobs", str(MAX_TOP_LOGPROBS), id="too many alternatives"
        ),
        pytest.param(LogprobParams(token_ids=(-1,)), "token_ids_logprob", "0 to 49", id="a negative id"),
        pytest.param(LogprobParams(token_ids=(3, 10**9)), "token_ids_logprob", "1000000000", id="an id beyond the vocabulary"),
        pytest.param(
            LogprobParams(token_ids=(1,) * (MAX_LOGPROB_TOKEN_IDS + 1)), "token_ids_logprob", "1025", id="too many ids"
        ),
    ],
)
def test_what_is_out_of_range_is_refused_by_name_with_the_limit(params: LogprobParams, param: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        params.verify(50)
    assert caught.value.param == param
    assert said in caught.value.message


@pytest.mark.parametrize("params", [LogprobParams(), LogprobParams(MAX_TOP_LOGPROBS, (0, 49) * (MAX_LOGPROB_TOKEN_IDS // 2))])
def test_what_is_in_range_is_taken(params: LogprobParams) -> None:
    params.verify(50)
    params.verify_lengths(10, 10)


@pytest.mark.parametrize(("start", "is_refused"), [(-1, True), (0, False), (10, False), (11, True), (10**30, True)])
def test_prompt_positions_are_those_of_the_prompt(start: int, is_refused: bool) -> None:
    params = LogprobParams(prompt_start=start)
    if not is_refused:
        params.verify_lengths(10, 1)
        return
    with pytest.raises(RequestError, match="from 0 to 10") as caught:
        params.verify_lengths(10, 1)
    assert caught.value.param == "logprob_start_len"


def test_how_much_is_told_is_bounded() -> None:
    many = LogprobParams(top=20, prompt_start=0)
    many.verify_lengths(MAX_PROMPT_VALUES // 41, MAX_OUTPUT_VALUES // 41)
    for lengths in ((MAX_PROMPT_VALUES // 41 + 2, 1), (1, MAX_OUTPUT_VALUES // 41 + 1)):
        with pytest.raises(RequestError, match="at most") as caught:
            many.verify_lengths(*lengths)
        assert caught.value.param == "logprobs"
    LogprobParams(top=128).verify_lengths(10**9, 1)  # nothing is told about this prompt
    with pytest.raises(RequestError):
        verify_prompt_values(MAX_PROMPT_VALUES + 1)


@pytest.mark.parametrize(("start", "count"), [(None, 0), (0, 9 * 6), (1, 9 * 6), (4, 6 * 6), (10, 0)])
def test_the_numbers_told_about_a_prompt_are_counted(start: int | None, count: int) -> None:
    assert LogprobParams(top=2, token_ids=(7,), prompt_start=start).num_prompt_values(10) == count
