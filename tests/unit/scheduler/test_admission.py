"""Admission: who may join, and how a refusal looks to a client."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import ContextLengthExceeded, DuplicateRid, MillstreamError, OverloadError, RequestError
from millstream.messages import Rejection, SamplingParams, Timing, TokenizedGenerateReqInput
from millstream.messages.details import LogprobParams
from millstream.scheduler.admission import Limits, check, rejection

LIMITS = Limits(
    max_running_requests=2,
    max_queued_requests=3,
    max_queued_tokens=20,
    chunked_prefill_size=16,
    context_length=10,
    vocab_size=50,
)


def request(
    num_tokens: int = 4, max_new: int = 4, *, token_id: int = 1, logprobs: LogprobParams | None = None, **sampling: Any
) -> TokenizedGenerateReqInput:
    return TokenizedGenerateReqInput(
        rid="r",
        input_ids=[token_id] * num_tokens,
        sampling=SamplingParams(**sampling),
        max_new_tokens=max_new,
        logprobs=logprobs,
        timing=Timing(),
    )


@pytest.mark.parametrize(
    ("message", "live", "waiting", "running", "error"),
    [
        pytest.param(request(), {}, 0, 0, None, id="an idle server takes it"),
        pytest.param(request(6, 4), {}, 0, 0, None, id="exactly the context"),
        pytest.param(request(7, 4), {}, 0, 0, ContextLengthExceeded, id="one token too many"),
        pytest.param(request(0, 4), {}, 0, 0, RequestError, id="an empty prompt"),
        pytest.param(request(token_id=50), {}, 0, 0, RequestError, id="a token id beyond the vocabulary"),
        pytest.param(request(token_id=-7), {}, 0, 0, RequestError, id="a negative token id"),
        pytest.param(request(min_p=5.0), {}, 0, 0, RequestError, id="a sampling value out of range"),
        pytest.param(request(logit_bias={10**9: 1.0}), {}, 0, 0, RequestError, id="a bias beyond the vocabulary"),
        pytest.param(request(logprobs=LogprobParams(5, (49,), 4)), {}, 0, 0, None, id="all log probabilities there are"),
        pytest.param(request(logprobs=LogprobParams(token_ids=(50,))), {}, 0, 0, RequestError, id="one beyond the vocabulary"),
        pytest.param(request(logprobs=LogprobParams(prompt_start=5)), {}, 0, 0, RequestError, id="one beyond the prompt"),
        pytest.param(request(10, 0), {}, 0, 0, None, id="a prompt that fills the context and is only computed"),
        pytest.param(request(4, -1), {}, 0, 0, RequestError, id="fewer new tokens than none asked for"),
        pytest.param(request(), {"r": 1}, 0, 0, DuplicateRid, id="its rid is live"),
        pytest.param(request(), {"r1": 1, "": 1}, 0, 0, None, id="a rid that begins like a live one"),
        pytest.param(request(), {}, 2, 2, None, id="the last place in the queue"),
        pytest.param(request(), {}, 3, 2, OverloadError, id="the queue is full"),
        pytest.param(request(), {}, 4, 0, None, id="two of the waiting have a free slot"),
        pytest.param(request(), {}, 5, 0, OverloadError, id="slots and queue are full"),
        pytest.param(request(99), {"r": 1}, 9, 2, DuplicateRid, id="a duplicate is named before anything else"),
    ],
)
def test_admission(
    message: TokenizedGenerateReqInput,
    live: dict[str, int],
    waiting: int,
    running: int,
    error: type[MillstreamError] | None,
) -> None:
    if error is None:
        check(message, live=live, num_waiting=waiting, num_running=running, num_queued_tokens=0, limits=LIMITS)
    else:
        with pytest.raises(error) as caught:
            check(message, live=live, num_waiting=waiting, num_running=running, num_queued_tokens=0, limits=LIMITS)
        assert type(caught.value) is error


def test_a_full_queue_says_when_to_come_back() -> None:
    assert rejection("r", 7, OverloadError("full")) == Rejection(
        rid="r", slot=7, message="full", status=429, type="overloaded_error", retry_after_s=1
    )


def test_a_long_prompt_and_a_duplicate_carry_their_codes() -> None:
    long = rejection("r", 7, ContextLengthExceeded("too long"))
    assert (long.status, long.type, long.code) == (400, "invalid_request_error", "context_length_exceeded")
    duplicate = rejection("r", 7, DuplicateRid("r"))
    assert (duplicate.status, duplicate.code, duplicate.param) == (409, "duplicate_rid", "rid")


@pytest.mark.parametrize(
    ("num_tokens", "waiting", "running", "queued", "fits"),
    [
        pytest.param(4, 1, 2, 16, True, id="exactly the limit"),
        pytest.param(4, 1, 2, 17, False, id="one token more"),
        pytest.param(4, 0, 2, 0, True, id="the first to wait"),
        pytest.param(4, 2, 0, 30, True, id="those before it have slots, so it is the first to wait"),
        pytest.param(4, 1, 0, 30, True, id="it has a slot itself"),
    ],
)
def test_the_queue_is_bounded_in_tokens_too(num_tokens: int, waiting: int, running: int, queued: int, fits: bool) -> None:
    def ask() -> None:
        check(
            request(num_tokens),
            live={},
            num_waiting=waiting,
            num_running=running,
            num_queued_tokens=queued,
            limits=LIMITS,
        )

    if fits:
        ask()
    else:
        with pytest.raises(OverloadError, match="17 prompt tokens are waiting, and this prompt has 4; at most 20"):
            ask()
