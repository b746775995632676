"""POST /v1/score: how likely each of some tokens is to follow a query with each of some items. SGLang's names.

One request an item. Each makes one token, which is not shown: what counts is the model's own distribution at its place. All are
sent at once, and the scheduler computes what they begin with, such as the query, once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from millstream.entry.failure import failure_of_end
from millstream.entry.generation import Generation, Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.native.protocol import SCORE, ScoreRequest
from millstream.entry.prompts import is_ids
from millstream.entry.release import admitted
from millstream.entry.service import Service
from millstream.entry.terms import read_terms
from millstream.entry.tokenize import check_has_logprobs
from millstream.entry.whole import Whole, collect
from millstream.errors import InvariantError, RequestError
from millstream.messages import EngineInfo, SamplingParams
from millstream.messages.details import MAX_LOGPROB_TOKEN_IDS, LogprobParams
from millstream.messages.sampling import verify_token_ids

MAX_ITEMS = 1024
MAX_PROMPT_CHARS = 16 * 1024 * 1024  # of all prompts of a call: each has the query
CHARS_PER_ID = 4  # what a token id counts there

_FORMS = "query and items must be texts (a string; a string or a list of strings), or token ids (a list; a list of lists)."


async def score(exchange: Exchange, service: Service) -> None:
    """Answer `{"object": "scoring", "scores", "model", "usage"}`: for each item, a number for each label."""
    received = service.clock()
    request = SCORE.parse(await exchange.read_object())
    await exchange.while_connected(_run(exchange, service, request, received))


async def _run(exchange: Exchange, service: Service, request: ScoreRequest, received: float) -> None:
    manager = service.manager
    model = service.resolve_model(request.model)
    check_labels(request.label_token_ids, manager.engine)
    if isinstance(request.query, list):
        verify_token_ids("query", request.query, manager.engine.vocab_size)
    prompts = make_prompts(request, service.capacity)
    terms = read_terms(exchange, service, request, received)
    if isinstance(prompts[0], str):
        prompts = await terms.in_time(manager.prompts.encode_all(prompts, add_special_tokens=True))
    _check_tokens(prompts, service.config.queued_tokens_limit(manager.engine.context_length))
    requests = [
        terms.request(
            input_ids,
            SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
            number=None if len(prompts) == 1 else index,
            logprobs=LogprobParams(token_ids=tuple(request.label_token_ids)),
        )
        for index, input_ids in enumerate(prompts)
    ]
    origin = Origin(api="score", model=model, prompt_param="items", caller=exchange.caller)
    async with admitted(manager, terms.rid, requests, origin) as generation:
        made = await collect(generation, failure_of_end)
        work = partial(_body, made, model, _usage(generation), apply_softmax=request.apply_softmax)
        body = await manager.prompts.off_loop(len(made) * len(request.label_token_ids), work)
        await exchange.send_json(body)
        generation.stamp_written(service.clock(), last=True)


def check_labels(label_token_ids: Sequence[int], engine: EngineInfo) -> None:
    """Check the tokens whose probabilities are asked for.

    Raises:
        RequestError: there are none or too many, one is outside the vocabulary, or the executor cannot tell.
    """
    check_has_logprobs(engine, "label_token_ids")
    if not 1 <= len(label_token_ids) <= MAX_LOGPROB_TOKEN_IDS:
        raise RequestError(
            f"label_token_ids has {len(label_token_ids)} ids; it must have from 1 to {MAX_LOGPROB_TOKEN_IDS}.",
            param="label_token_ids",
        )
    verify_token_ids("label_token_ids", label_token_ids, engine.vocab_size)


def make_prompts(request: ScoreRequest, capacity: int) -> Any:
    """The prompt of each item, the query before or behind it: a list of texts, or of lists of token ids.

    `capacity`: requests the scheduler takes on at a time; more could never be admitted together.

    Raises:
        RequestError: the fields are of different kinds, or make too many or too long prompts.
    """
    query: Any = request.query
    items = [request.items] if isinstance(request.items, str) else request.items
    most = min(MAX_ITEMS, capacity)
    if not 1 <= len(items) <= most:
        raise RequestError(f"items has {len(items)} items; it must have from 1 to {most}.", param="items")
    kind = str if isinstance(query, str) else list
    for index, item in enumerate(items):
        if not isinstance(item, kind) or not (isinstance(item, str) or not item or is_ids(item)):
            raise RequestError(_FORMS, param=f"items[{index}]")
    size = (len(query) * len(items) + sum(map(len, items))) * (1 if kind is str else CHARS_PER_ID)
    if size > MAX_PROMPT_CHARS:
        raise RequestError(
            f"query and items make prompts of {size} characters in all (a token id counts as {CHARS_PER_ID}); "
            f"at most {MAX_PROMPT_CHARS} are allowed.",
            param="items",
        )
    return [item + query if request.item_first else query + item for item in items]


def _check_tokens(prompts: list[list[int]], limit: int) -> None:
    """Refuse more than an idle server would let wait: that could never be admitted."""
    if (count := sum(map(len, prompts))) > limit:
        raise RequestError(f"The items' prompts have {count} tokens in all; at most {limit} are allowed.", param="items")


def _body(made: list[Whole], model: str, usage: dict[str, Any], *, apply_softmax: bool) -> bytes:
    scores = [_scores(each, apply_softmax=apply_softmax) for each in made]
    return msgspec.json.encode({"object": "scoring", "scores": scores, "model": model, "usage": usage})


def _scores(made: Whole, *, apply_softmax: bool) -> list[float]:
    """The labels' probabilities behind one prompt."""
    if made.details is None or made.details.logprobs is None:
        raise InvariantError("an answer came without the log probabilities that were asked for")
    logprobs = made.details.logprobs.asked[0]
    return softmax(logprobs) if apply_softmax else [math.exp(each) for each in logprobs]


def softmax(logprobs: Sequence[float]) -> list[float]:
    """Probabilities among these alone; the same for all where none is possible."""
    top = max(logprobs)
    weights = [math.exp(each - top) if top > -math.inf else 1.0 for each in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _usage(generation: Generation) -> dict[str, Any]:
    """Every prompt counts, as often as it was computed or found; the tokens that are not shown do not."""
    prompt = sum(len(state.input_ids) for state in generation.states)
    cached = sum(state.usage.cached_tokens for state in generation.states if state.usage is not None)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": 0,
        "total_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
