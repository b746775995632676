"""POST /v1/embeddings: for each input the state of the served model at its last token, cut to `dimensions`, of length 1.

A call may have more inputs than the server runs at a time. All of them are checked first; then they run in parts, each of as
many as may run at once, so that a long list fills no queue. Once a part was taken on, the call waits where the queue is
full, as one that was admitted does.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from millstream.entry.failure import RequestFailed, failure_of_end
from millstream.entry.fields import check_count, check_range
from millstream.entry.generation import Generation, Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.openai.embeddings_protocol import EMBEDDINGS, EmbeddingRequest
from millstream.entry.prompt_encoder import LARGE_CHARS
from millstream.entry.prompts import is_ids, parse_prompts
from millstream.entry.release import release_after
from millstream.entry.service import Service
from millstream.entry.terms import Terms, read_terms
from millstream.entry.tokenize import check_prompt
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.entry.whole import collect
from millstream.errors import InvariantError, OverloadError, RequestError
from millstream.messages import GenerateReqInput, SamplingParams

MAX_INPUTS = 2048  # OpenAI's
NUMBER_CHARS = 20  # of JSON, about, for one number of an embedding


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One call, understood: an input is its ids."""

    terms: Terms
    inputs: list[list[int]]
    request: EmbeddingRequest
    origin: Origin

    def requests(self, start: int, end: int) -> list[GenerateReqInput]:
        """The requests of inputs `start` to `end` - 1."""
        is_single = len(self.inputs) == 1
        return [
            self.terms.request(
                ids,
                SamplingParams(max_new_tokens=0),
                number=None if is_single else start + index,
                wants_embedding=True,
            )
            for index, ids in enumerate(self.inputs[start:end])
        ]


async def embeddings(exchange: Exchange, service: Service) -> None:
    """Answer one embeddings request."""
    received = service.clock()
    request = EMBEDDINGS.parse(await exchange.read_object())
    await exchange.while_connected(_run(exchange, service, request, received))


async def _run(exchange: Exchange, service: Service, request: EmbeddingRequest, received: float) -> None:
    manager = service.manager
    origin = Origin(
        api="embeddings",
        model=service.resolve_model(request.model),
        prompt_param="input",
        caller=exchange.caller,
    )
    check_dimensions(request.dimensions, manager.engine.hidden_size)
    inputs = parse_inputs(request.input)
    terms = read_terms(exchange, service, request, received)
    call = _Call(
        terms=terms,
        inputs=await terms.in_time(_encode(manager, inputs)),
        request=request,
        origin=origin,
    )
    states: list[bytes] = []
    while len(states) < len(inputs):
        states += await _compute_part(service, call, len(states))
    size = len(states) * (request.dimensions or manager.engine.hidden_size) * NUMBER_CHARS
    await exchange.send_json(await manager.prompts.off_loop(size, partial(_body, call, states), rid=terms.rid))


def check_dimensions(dimensions: int | None, hidden_size: int) -> None:
    """Check that the served model has embeddings, of that many numbers.

    Raises:
        RequestError: it has none, or fewer numbers.
    """
    if not hidden_size:
        raise RequestError("The served model gives no embeddings.", code="unsupported_model")
    if dimensions is not None:
        check_range("dimensions", dimensions, 1, hidden_size)


def parse_inputs(given: str | list[Any]) -> list[str | list[int]]:
    """The inputs, of any of the four forms.

    Raises:
        RequestError: there are none or too many, or they are empty or mixed.
    """
    inputs: list[Any] = [given] if isinstance(given, str) or is_ids(given) else list(given)
    if not inputs:
        raise RequestError("input is an empty list.", param="input")
    check_count("input", len(inputs), MAX_INPUTS)
    for index, item in enumerate(inputs):
        if item in ("", []):
            raise RequestError(f"{_name(index, inputs)} is empty.", param=_name(index, inputs))
    return parse_prompts(given, "input")[0]


def _name(index: int, inputs: Sequence[Any]) -> str:
    return "input" if len(inputs) == 1 else f"input[{index}]"


async def _encode(manager: TokenizerManager, inputs: Sequence[str | list[int]]) -> list[list[int]]:
    """The ids of every input, with the special tokens that the tokenizer adds to a text.

    Raises:
        RequestError: one does not fit the context, or has ids that the model does not know.
    """
    prompts, engine = manager.prompts, manager.engine
    for index, item in enumerate(inputs):
        if isinstance(item, str):
            prompts.check_size(len(item), _name(index, inputs))
    short = [item for item in inputs if isinstance(item, str) and len(item) <= LARGE_CHARS]
    encoded = iter(await prompts.encode_all(short, add_special_tokens=True) if short else [])
    all_ids: list[list[int]] = []
    for index, item in enumerate(inputs):
        name = _name(index, inputs)
        if not isinstance(item, str):
            ids = item
        elif len(item) > LARGE_CHARS:
            ids = await prompts.encode(item, add_special_tokens=True, param=name)
        else:
            ids = next(encoded)
        check_prompt(ids, engine, name, is_prompt_only=True)
        all_ids.append(ids)
    return all_ids


async def _compute_part(service: Service, call: _Call, start: int) -> list[bytes]:
    """Run the inputs from `start` on, as many as may run at a time; return their states.

    Raises:
        MillstreamError, RequestFailed: an input failed.
    """
    manager = service.manager
    generation = await _admit(service, call, start, start + min(manager.engine.max_running_requests, service.capacity))
    with release_after(manager, generation):
        made = await collect(generation, failure_of_end)
        generation.stamp_written(service.clock(), last=True)
    states = [None if each.details is None else each.details.embedding for each in made]
    if None in states:
        raise InvariantError(f"a request of {call.terms.rid} ended without its embedding")
    return [state for state in states if state is not None]


async def _admit(service: Service, call: _Call, start: int, end: int) -> Generation:
    """Have a part of the call taken on. The first may be refused; the others wait until there is room."""
    while True:
        try:
            return await service.manager.generate_request(call.terms.rid, call.requests(start, end), call.origin)
        except (OverloadError, RequestFailed) as error:
            is_full = isinstance(error, OverloadError) or error.failure.status == OverloadError.status
            if start == 0 or not is_full:
                raise
        await call.terms.in_time(asyncio.sleep(service.retry_after_s))


def _body(call: _Call, states: Sequence[bytes]) -> bytes:
    as_base64 = call.request.encoding_format == "base64"
    num_tokens = sum(map(len, call.inputs))
    vectors = [pooled(state, call.request.dimensions) for state in states]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": b64encode(vector.astype("<f4").tobytes()).decode("ascii") if as_base64 else vector.tolist(),
                }
                for index, vector in enumerate(vectors)
            ],
            "model": call.origin.model,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
    )


def pooled(state: bytes, dimensions: int | None) -> NDArray[np.float32]:
    """A state (float32) as an embedding: its first `dimensions` numbers, brought to length 1; zeros stay zeros."""
    vector = np.frombuffer(state, np.float32)[:dimensions].astype(np.float64)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)
