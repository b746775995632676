"""POST /generate and /abort_request: the runtime's own API, with SGLang's names. Streams carry deltas, not repeats."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from millstream.entry.failure import Failure, RequestFailed, failure_of_abort
from millstream.entry.fields import FieldRules
from millstream.entry.generation import Generation, Origin
from millstream.entry.http.errors import INTERNAL
from millstream.entry.http.exchange import ClientGone, Exchange
from millstream.entry.native.protocol import (
    ABORT,
    DEFAULT_MAX_NEW_TOKENS,
    GENERATE,
    SAMPLING,
    GenerateRequest,
    NativeSampling,
)
from millstream.entry.openai.call import resolve_rid
from millstream.entry.sampling import cache_namespace
from millstream.entry.service import Service
from millstream.entry.sse import EventStream, event
from millstream.errors import RequestError
from millstream.messages import Abort, FinishReason, GenerateReqInput, Length, Stop, TextRow, Timing

log = logging.getLogger(__name__)


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
    obj = _to_request(request, received, service.clock())
    origin = Origin(
        api="generate",
        model=service.text.names[0],
        prompt_param="text" if request.text is not None else "input_ids",
        request_id=exchange.request_id,
        default_max_new_tokens=DEFAULT_MAX_NEW_TOKENS,
    )
    generation = await manager.generate_request(obj.rid, [obj], origin)
    try:
        if request.stream:
            await _stream(exchange, service, generation)
        else:
            await _whole(exchange, service, generation)
    finally:
        manager.release(generation)


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
        timing=Timing(received=received, adapted=adapted),
    )


def parse_sampling(rules: FieldRules[NativeSampling], params: dict[str, Any]) -> NativeSampling:
    """Parse `sampling_params`; errors name the field inside it."""
    try:
        return rules.parse(params)
    except RequestError as error:
        raise RequestError(error.message, param=f"sampling_params.{error.param}", code=error.code) from None


async def _whole(exchange: Exchange, service: Service, generation: Generation) -> None:
    texts: list[str] = []
    output_ids: list[int] = []
    while True:
        for _, row in await generation.receive():
            texts.append(row.text)
            output_ids += row.token_ids
            if row.finish is None:
                continue
            if (failure := _failure(row.finish)) is not None:
                raise RequestFailed(failure)
            meta = _meta_info(generation, row, service.clock())
            await exchange.send_json({"text": "".join(texts), "output_ids": output_ids, "meta_info": meta})
            generation.stamp_written(service.clock(), last=True)
            return


async def _stream(exchange: Exchange, service: Service, generation: Generation) -> None:
    stream = EventStream(
        exchange,
        keep_alive_s=service.config.sse_keep_alive_s,
        write_timeout_s=service.config.write_timeout_s,
        on_idle=generation.ring,
    )
    try:
        await stream.open(b"")
        while True:
            rows = await generation.receive()
            if not rows:
                await stream.keep_alive()
            for _, row in rows:
                failure = None if row.finish is None else _failure(row.finish)
                if failure is None or row.text or row.token_ids:
                    await stream.write(event(_delta(generation, row, service.clock(), failed=failure is not None)))
                    generation.stamp_written(service.clock())
                if failure is not None:
                    await stream.fail(failure)
                    return
                if row.finish is not None:
                    await stream.close(b"")
                    generation.stamp_written(service.clock(), last=True)
                    return
    except RequestFailed as error:
        await stream.fail(error.failure)
    except ClientGone:
        raise
    except Exception:
        log.exception("streaming the answer to %s failed", generation.rid)
        await stream.fail(INTERNAL)
    finally:
        stream.stop()


def _delta(generation: Generation, row: TextRow, now: float, *, failed: bool) -> bytes:
    meta = _meta_info(generation, row, now, finished=not failed)
    return msgspec.json.encode({"text": row.text, "output_ids": row.token_ids, "meta_info": meta})


def _failure(finish: FinishReason) -> Failure | None:
    """The failure behind `finish`. A request aborted by its client is an answer here, with finish type `abort`."""
    return failure_of_abort(finish) if isinstance(finish, Abort) and finish.cause != "aborted" else None


def _meta_info(generation: Generation, row: TextRow, now: float, *, finished: bool = True) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": row.rid,
        "finish_reason": _finish_reason(row.finish) if row.finish is not None and finished else None,
        "prompt_tokens": row.usage.prompt_tokens,
        "completion_tokens": row.usage.completion_tokens,
        "cached_tokens": row.usage.cached_tokens,
    }
    if row.finish is not None and finished:
        meta["e2e_latency"] = now - generation.states[0].obj.timing.received
    return meta


def _finish_reason(finish: FinishReason) -> dict[str, Any]:
    if isinstance(finish, Stop):
        return {"type": "stop", "matched": finish.matched}
    if isinstance(finish, Length):
        return {"type": "length", "length": finish.limit}
    return {"type": "abort", "message": finish.message}


async def abort_request(exchange: Exchange, service: Service) -> None:
    """Abort the request or call with exactly this rid, or all with `abort_all`; says what was aborted."""
    request = ABORT.parse(await exchange.read_object())
    manager = service.started
    if request.abort_all:
        await exchange.send_json({"aborted": manager.abort_all() if manager is not None else []})
        return
    if not request.rid:
        raise RequestError("rid is empty; to abort everything, send `abort_all`: true.", param="rid")
    aborted = manager.abort(request.rid) if manager is not None else []
    if not aborted:
        message = f"No live request has the rid `{request.rid}`."
        raise RequestFailed(Failure(404, message, "invalid_request_error", "rid", "rid_not_found"))
    await exchange.send_json({"aborted": aborted})
