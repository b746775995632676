"""Admission: whether a new request may join the queue. Called once for each request, when it arrives.

A request that passed is never judged again: neither running nor thrown back to the queue can it meet these limits.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from millstream.errors import ContextLengthExceeded, DuplicateRid, MillstreamError, OverloadError, RequestError
from millstream.messages import Rejection, TokenizedGenerateReqInput
from millstream.messages.sampling import verify_token_ids


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the scheduler may take on."""

    max_running_requests: int
    max_queued_requests: int
    max_queued_tokens: int  # of prompts
    chunked_prefill_size: int  # tokens in one step, decode included
    context_length: int  # tokens, prompt and output together; no more than the KV pool holds
    vocab_size: int  # ids the model takes
    has_grammars: bool = False
    hidden_size: int = 0  # numbers in an embedding; 0: the model gives none and takes none
    target_itl_s: float | None = None  # seconds that a step should stay within while requests decode


def check(
    request: TokenizedGenerateReqInput,
    *,
    live: Container[str],
    num_waiting: int,
    num_running: int,
    num_queued_tokens: int,
    limits: Limits,
) -> None:
    """Admit a new request to the queue, or raise.

    Requests that a free slot will take in the next step do not count as waiting: a burst on an idle server fills the slots and
    the queue. `num_queued_tokens` are those of the requests that do; one alone may have any number. Paused requests count as
    waiting, so that those are bounded, too. Those of lower priority do not count: work that can wait must not keep out what
    cannot. What the entry workers hold in all is bounded by themselves.

    Raises:
        DuplicateRid: its rid is live.
        ContextLengthExceeded: prompt and output do not fit the context or the pool.
        RequestError: the prompt is empty, or a value is out of range. The entry has checked all values; but what is out of
            range here would fail a whole step, so one bad message would cost its neighbours.
        OverloadError: the queue is full, of requests or of tokens.
    """
    if request.rid in live:
        raise DuplicateRid(request.rid)
    num_prompt_tokens = len(request.input_ids)
    if num_prompt_tokens == 0:
        raise RequestError("The prompt is empty; it must have at least one token.", param="prompt")
    verify_token_ids("prompt", request.input_ids, limits.vocab_size)
    request.sampling.verify(limits.vocab_size)
    _check_embeddings(request, limits)
    _check_grammar(request, limits)
    if request.logprobs is not None:
        request.logprobs.verify(limits.vocab_size)
        request.logprobs.verify_lengths(num_prompt_tokens, request.max_new_tokens)
    if request.max_new_tokens < 0:
        raise RequestError(f"max_tokens is {request.max_new_tokens}; it must be at least 0.", param="max_tokens")
    if num_prompt_tokens + request.max_new_tokens > limits.context_length:
        raise ContextLengthExceeded(
            f"The prompt has {num_prompt_tokens} tokens and max_tokens is {request.max_new_tokens}; "
            f"together they must be at most {limits.context_length}."
        )
    num_slots = num_free_slots(num_running, limits)
    if num_waiting >= limits.max_queued_requests + num_slots:
        raise OverloadError(f"The queue is full: {num_waiting} requests are waiting. Try again later.")
    if num_waiting > num_slots and num_queued_tokens + num_prompt_tokens > limits.max_queued_tokens:
        raise OverloadError(
            f"The queue is full: {num_queued_tokens} prompt tokens are waiting, and this prompt has {num_prompt_tokens}; "
            f"at most {limits.max_queued_tokens} may wait. Try again later."
        )


def _check_grammar(request: TokenizedGenerateReqInput, limits: Limits) -> None:
    grammar = request.sampling.grammar
    if grammar is None:
        return
    if not limits.has_grammars:
        raise RequestError("This model takes no grammars.", param=grammar.param or None)
    if not grammar.checked:  # it could end this process
        raise RequestError("The grammar was not checked.", param=grammar.param or None)


def _check_embeddings(request: TokenizedGenerateReqInput, limits: Limits) -> None:
    if request.wants_embedding and not limits.hidden_size:
        raise RequestError("This model gives no embeddings.")
    if request.input_embeds is None:
        return
    if not limits.hidden_size:
        raise RequestError("This model takes no embeddings.", param="input_embeds")
    if len(request.input_embeds) != 4 * limits.hidden_size * len(request.input_ids):
        raise RequestError(
            f"input_embeds has {len(request.input_embeds)} bytes; {len(request.input_ids)} positions have "
            f"{4 * limits.hidden_size} each.",
            param="input_embeds",
        )


def num_free_slots(num_running: int, limits: Limits) -> int:
    """How many of the waiting requests are about to run."""
    return max(0, limits.max_running_requests - num_running)


def rejection(rid: str, slot: int, error: MillstreamError) -> Rejection:
    """The refusal of `rid` in the terms of an HTTP error."""
    return Rejection(
        rid=rid,
        slot=slot,
        message=error.message,
        status=error.status,
        type=error.type,
        code=error.code,
        param=error.param,
        retry_after_s=error.retry_after_s,
    )
