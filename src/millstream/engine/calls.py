"""What an engine's calls do on its event loop: bodies of the native routes in, and what the routes would answer out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from millstream.entry.deadline import deadline_of
from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.fields import Json
from millstream.entry.native import abort as native_abort
from millstream.entry.native.generate import NativeCall, read_call
from millstream.entry.native.info import describe_live
from millstream.entry.native.protocol import ABORT, GENERATE
from millstream.entry.release import admitted
from millstream.entry.service import Service
from millstream.errors import EngineDeadError, EngineError, MillstreamError, OverloadError, RequestError


async def generate_whole(service: Service, body: Json) -> Any:
    """The answer to a body of /generate, decoded.

    Raises:
        MillstreamError: it failed.
    """
    try:
        call = await _read_call(service, body)
        async with admitted(service.manager, call.rid, call.requests, call.origin) as generation:
            answer = await call.answer(service, generation)
            generation.stamp_written(service.clock(), last=True)
    except RequestFailed as error:
        raise error_of(error.failure) from None
    return msgspec.json.decode(answer)


async def generate_stream(service: Service, body: Json) -> AsyncIterator[Json]:
    """The events of a body of /generate, decoded. What nobody has asked for yet waits as one row.

    Raises:
        MillstreamError: it failed.
    """
    try:
        call = await _read_call(service, body)
        async with admitted(service.manager, call.rid, call.requests, call.origin) as generation:
            form = call.stream(service, generation)
            num_open = len(generation.states)
            while num_open:
                events: list[bytes] = []
                failure: Failure | None = None
                for index, row in await generation.receive():
                    events.append(form.json(index, row))
                    if row.finish is not None:
                        num_open -= 1
                        failure = failure or form.failure(row.finish)
                for event in filter(None, events):
                    generation.stamp_written(service.clock())
                    yield msgspec.json.decode(event)
                if failure is not None:
                    raise RequestFailed(failure)
            generation.stamp_written(service.clock(), last=True)
    except RequestFailed as error:
        raise error_of(error.failure) from None


async def abort(service: Service, body: Json) -> list[str]:
    """Abort what a body of /abort_request names; returns the rids that were live.

    Raises:
        RequestError: it names none.
    """
    request = ABORT.parse(body)
    try:
        return (await native_abort.abort(service, request))["aborted"]
    except RequestFailed:  # nothing of it is live
        return []


async def live_facts(service: Service) -> Json:
    """What /server_info says, decoded."""
    facts: Json = msgspec.json.decode(msgspec.json.encode(await describe_live(service)))
    return facts


def error_of(failure: Failure) -> MillstreamError:
    """The exception of ours that a failure stands for."""
    error: MillstreamError
    if failure.status == OverloadError.status:
        return OverloadError(failure.message, retry_after_s=failure.retry_after_s or 1)
    if failure.status == EngineDeadError.status:
        error = EngineDeadError(failure.message)
    elif failure.status < 500:
        error = RequestError(failure.message)
    else:
        error = EngineError(failure.message)
    error.param, error.code = failure.param, failure.code
    return error


async def _read_call(service: Service, body: Json) -> NativeCall:
    received = service.clock()
    request = GENERATE.parse(body)
    try:
        msgspec.json.encode(request)
    except UnicodeEncodeError:  # it could not be told to the scheduler
        raise RequestError("A text or a name has a lone surrogate; it is not valid Unicode.") from None
    return await read_call(service, request, deadline_of(request.timeout, service.config.request_timeout_s, received), received)
