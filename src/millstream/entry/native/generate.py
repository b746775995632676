"""POST /generate: the runtime's own API, with SGLang's names. Streams carry deltas, not repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millstream.entry.deadline import resolve_deadline
from millstream.entry.failure import Failure, failure_of_abort
from millstream.entry.fields import FieldRules
from millstream.entry.generation import Generation, Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.native.protocol import (
    DEFAULT_MAX_NEW_TOKENS,
    GENERATE,
    SAMPLING,
    GenerateRequest,
    NativeSampling,
)
from millstream.entry.openai.call import resolve_rid
from millstream.entry.priority import check_priority
from millstream.entry.release import release_after
from millstream.entry.sampling import cache_namespace
from millstream.entry.service import Service
from millstream.entry.sse import DONE, error_event, event
from millstream.entry.stream import stream_answer
from millstream.entry.whole import collect
from millstream.errors import RequestError
from millstream.messages import Abort, FinishReason, GenerateReqInput, Length, Stop, TextRow, Timing


async def generate(exchange: Exchange, service: Service) -> None:
    """Answer one native request."""
    received = service.clock()
    body = await exchange.read_object()
    for name in ("text", "input_ids"):
        _refuse_batch(name, body.get(name))
    request = GENERATE.parse(body)
    await exchange.while_connected(_run(exchange, service, request, received))


async def _run(exchange: Exchange, service: Service, request: GenerateRequest, received: float) -> None:
    manager = service.manager
    check_priority(request.priority, is_enabled=service.config.enable_priority_scheduling)
    obj = _to_request(request, received, service.clock())
    obj.deadline = resolve_deadline(exchange, request.timeout, service.config.request_timeout_s, received)
    origin = Origin(
        api="generate",
        model=service.text.names[0],
        prompt_param="text" if request.text is not None else "input_ids",
        request_id=exchange.request_id,
        default_max_new_tokens=DEFAULT_MAX_NEW_TOKENS,
    )
    generation = await manager.generate_request(obj.rid, [obj], origin)
    with release_after(manager, generation):
        if request.stream:
            await stream_answer(exchange, service, generation, _DeltaStream(generation, service.clock))
        else:
            await _whole(exchange, service, generation)


def _refuse_batch(name: str, value: Any) -> None:
    if isinstance(value, list) and any(isinstance(item, str | list) for item in value):
        raise RequestError(f"{name} is a batch; send one request for each prompt.", param=name, code="unsupported_parameter")


def _to_request(request: GenerateRequest, received: float, adapted: float) -> GenerateReqInput:
    if (request.text is None) == (request.input_ids is None):
        raise RequestError("Exactly one of text and input_ids must be given.", param="text")
    sampling = parse_sampling(SAMPLING, request.sampling_params)
    if sampling.n != 1:
        raise RequestError(
            f"sampling_params.n is {sampling.n}; /generate makes one answer.",
            param="sampling_params.n",
            code="unsupported_parameter",
        )
    if sampling.sampling_seed is not None:
        if sampling.seed not in (None, sampling.sampling_seed):
            raise RequestError("seed and sampling_seed differ; give one.", param="sampling_params.sampling_seed")
        sampling.seed = sampling.sampling_seed
    return GenerateReqInput(
        rid=resolve_rid(request.rid),
        text=request.text,
        input_ids=request.input_ids,
        sampling=sampling.to_sampling(max_new_tokens=sampling.max_new_tokens, min_new_tokens=sampling.min_new_tokens),
        cache_namespace=cache_namespace(request.cache_salt, request.extra_key),
        priority=request.priority,
        progress=request.stream and request.include_progress,
        timing=Timing(received=received, adapted=adapted),
    )


def parse_sampling(rules: FieldRules[NativeSampling], params: dict[str, Any]) -> NativeSampling:
    """Parse `sampling_params`; errors name the field inside it."""
    try:
        return rules.parse(params)
    except RequestError as error:
        raise RequestError(error.message, param=f"sampling_params.{error.param}", code=error.code) from None


async def _whole(exchange: Exchange, service: Service, generation: Generation) -> None:
    (made,) = await collect(generation, _failure)
    meta = _meta_info(generation, made.finish, service.clock())
    await exchange.send_json({"text": made.text, "output_ids": made.token_ids, "meta_info": meta})
    generation.stamp_written(service.clock(), last=True)


class _DeltaStream:
    """The `StreamForm` of /generate: an event for each row, text or not."""

    def __init__(self, generation: Generation, clock: Callable[[], float]) -> None:
        self._generation = generation
        self._clock = clock

    def opening(self) -> bytes:
        """Nothing."""
        return b""

    def row(self, index: int, row: TextRow) -> bytes:
        """The row's text and ids; one that only says that the request failed has none."""
        failed = row.finish is not None and _failure(row.finish) is not None
        if failed and not row.text and not row.token_ids:
            return b""
        meta = _meta_info(self._generation, None if failed else row.finish, self._clock())
        return event(msgspec.json.encode({"text": row.text, "output_ids": row.token_ids, "meta_info": meta}))

    def text_event(self, index: int) -> tuple[bytes, bytes] | None:
        """None: every event has its counts."""

    def failure(self, finish: FinishReason) -> Failure | None:
        """See `_failure`."""
        return _failure(finish)

    def closing(self) -> bytes:
        """`[DONE]`."""
        return DONE

    def broken(self, failure: Failure) -> bytes:
        """An error event."""
        return error_event(failure)


def _failure(finish: FinishReason) -> Failure | None:
    """The failure behind `finish`. A request aborted by its client is an answer here, with finish type `abort`."""
    return failure_of_abort(finish) if isinstance(finish, Abort) and finish.cause != "aborted" else None


def _meta_info(generation: Generation, finish: FinishReason | None, now: float) -> dict[str, Any]:
    (state,) = generation.states
    assert state.usage is not None  # it came with the row
    meta: dict[str, Any] = {
        "id": state.rid,
        "finish_reason": None if finish is None else _finish_reason(finish),
        "prompt_tokens": state.usage.prompt_tokens,
        "completion_tokens": state.usage.completion_tokens,
        "cached_tokens": state.usage.cached_tokens,
    }
    if state.usage.verify_steps:
        meta["spec_verify_ct"] = state.usage.verify_steps
    if finish is not None:
        meta["e2e_latency"] = now - state.obj.timing.received
    return meta


def _finish_reason(finish: FinishReason) -> dict[str, Any]:
    if isinstance(finish, Stop):
        return {"type": "stop", "matched": finish.matched}
    if isinstance(finish, Length):
        return {"type": "length", "length": finish.limit}
    return {"type": "abort", "message": finish.message}
