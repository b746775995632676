"""Failure: why a client gets no answer, as plain facts. Made by whoever finds out; written to the wire by `http.errors`.

One shape for an exception of ours, a verdict of the scheduler and an aborted request, so that all of them look the same to
the client, before the first byte (status) and after it (SSE error event).
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import EngineDeadError, EngineError, InvariantError, MillstreamError
from millstream.messages import Abort, FinishReason, Rejection
from millstream.messages.finish import AbortCause, EndCause

MAX_MESSAGE_CHARS = 1000  # messages and names quote what the client sent, which may be megabytes
MAX_PARAM_CHARS = 200
CLIENT_ABORTED_STATUS = 499  # asked for by a client: nothing failed, and a client library must not try again by itself


class Failure(NamedTuple):
    """HTTP status and the members of the OpenAI error object.

    `cause` is the word for how the request ended by it. Where it is not `rejected`, `code` is that word.
    """

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None
    cause: EndCause = "rejected"


INTERNAL = Failure(500, "The server failed on this request.", EngineError.type, code="engine_error", cause="engine_error")


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
    if isinstance(error, EngineError | InvariantError):
        return Failure(error.status, message, error.type, param, "engine_error", error.retry_after_s, "engine_error")
    return Failure(error.status, message, error.type, param, error.code, error.retry_after_s)


def shutting_down() -> Failure:
    """The refusal of a request that comes, or is not complete, when the server stops."""
    return failure_of_error(EngineDeadError("The server is shutting down.", code="shutting_down"))


def failure_of_rejection(rejection: Rejection) -> Failure:
    """The failure behind the scheduler's refusal to admit a request."""
    return Failure(
        rejection.status, rejection.message, rejection.type, rejection.param, rejection.code, rejection.retry_after_s
    )


def failure_of_end(finish: FinishReason) -> Failure | None:
    """The failure behind the end of a request, where it is one."""
    return failure_of_abort(finish) if isinstance(finish, Abort) else None


def failure_of_unasked_end(finish: FinishReason) -> Failure | None:
    """The same for an API that has an answer for a request that a client aborted."""
    return failure_of_abort(finish) if isinstance(finish, Abort) and finish.cause != "aborted" else None


def failure_of_abort(abort: Abort) -> Failure:
    """The failure behind a final row that ends a request from outside or by a fault."""
    failure = failure_of_cause(abort.cause, abort.message)
    if failure.cause == "engine_error":
        retry_after_s = 1 if abort.status == EngineDeadError.status else None
        return failure._replace(status=max(abort.status, 500), retry_after_s=retry_after_s)
    return failure


def failure_of_death(message: str) -> Failure:
    """The failure of requests whose final row will not come: a process they need has died."""
    dead = EngineDeadError
    return Failure(dead.status, message, dead.type, None, "engine_error", dead.retry_after_s, "engine_error")


def failure_of_cause(cause: AbortCause, message: str | None = None) -> Failure:
    """The failure for a request that ends for `cause` without a row of its own."""
    if cause == "engine_error":
        failure = INTERNAL
    elif cause == "drain":
        failure = failure_of_death("The server is shutting down.")
    elif cause == "deadline":
        failure = Failure(504, "The request ran out of time.", "timeout_error")
    else:
        failure = Failure(CLIENT_ABORTED_STATUS, "The request was aborted.", "request_aborted")
    return failure._replace(message=message or failure.message, code=cause, cause=cause)
