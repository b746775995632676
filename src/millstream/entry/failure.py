"""Failure: why a client gets no answer, as plain facts. Made by whoever finds out; written to the wire by `http.errors`.

One shape for an exception of ours, a verdict of the scheduler and an aborted request, so that all of them look the same to
the client, before the first byte (status) and after it (SSE error event).
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import EngineDeadError, EngineError, MillstreamError
from millstream.messages import Abort, Rejection
from millstream.messages.finish import AbortCause

MAX_MESSAGE_CHARS = 1000  # messages and names quote what the client sent, which may be megabytes
MAX_PARAM_CHARS = 200
CLIENT_ABORTED_STATUS = 499  # asked for by a client: nothing failed, and a client library must not try again by itself


class Failure(NamedTuple):
    """HTTP status and the members of the OpenAI error object."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None


INTERNAL = Failure(500, "The server failed on this request.", "server_error", code="internal_error")


class RequestFailed(Exception):
    """Carries a `Failure` to the place that answers the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def failure_of_error(error: MillstreamError) -> Failure:
    """The failure that an exception of the project stands for."""
    message, param = error.message, error.param
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "..."
    if param is not None and len(param) > MAX_PARAM_CHARS:
        param = param[:MAX_PARAM_CHARS] + "..."
    return Failure(error.status, message, error.type, param, error.code, error.retry_after_s)


def failure_of_rejection(rejection: Rejection) -> Failure:
    """The failure behind the scheduler's refusal to admit a request."""
    return Failure(
        rejection.status, rejection.message, rejection.type, rejection.param, rejection.code, rejection.retry_after_s
    )


def failure_of_abort(abort: Abort) -> Failure:
    """The failure behind a final row that ends a request from outside or by a fault."""
    if abort.cause == "engine_error":
        retry_after_s = 1 if abort.status == EngineDeadError.status else None
        return Failure(
            max(abort.status, 500), abort.message, EngineError.type, code="engine_error", retry_after_s=retry_after_s
        )
    return failure_of_cause(abort.cause, abort.message)


def failure_of_cause(cause: AbortCause, message: str | None = None) -> Failure:
    """The failure for a request that ends for `cause` without a row of its own."""
    if cause == "drain":
        return Failure(
            EngineDeadError.status,
            message or "The server is shutting down.",
            EngineDeadError.type,
            code="shutting_down",
            retry_after_s=EngineDeadError.retry_after_s,
        )
    if cause == "deadline":
        return Failure(504, message or "The request ran out of time.", "timeout_error", code="deadline")
    return Failure(CLIENT_ABORTED_STATUS, message or "The request was aborted.", "request_aborted", code=cause)
