"""The exception tree. Each class knows its HTTP status, its OpenAI `type` and `code`, and whether a retry helps.

MillstreamError
|- RequestError            the client can fix it (4xx)
|  |- ContextLengthExceeded  400, code `context_length_exceeded`
|  |- ModelNotFound          404, code `model_not_found`
|  `- DuplicateRid           409, code `duplicate_rid`
|- OverloadError           429, too many ask at once: retry later
|- DeadlineExceeded        504, code `deadline`
|- EngineError             500, this request failed inside the engine
|- EngineDeadError         503, a process the request needs is not running
|- StartupError            the server cannot start; printed once, with a hint
`- InvariantError          our bug
"""

from __future__ import annotations

from typing import ClassVar


class MillstreamError(Exception):
    """Root of every error the project raises on purpose. `message` is written for the client."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class RequestError(MillstreamError):
    """The request is wrong and the client can fix it. `param` names the field, the message gives value and limit."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(RequestError):
    """Prompt plus requested tokens do not fit the context."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class ModelNotFound(RequestError):
    """The `model` of the request is not served here."""

    status = 404

    def __init__(self, name: str, served: str) -> None:
        super().__init__(
            f"The model `{name}` does not exist; this server serves `{served}`.",
            param="model",
            code="model_not_found",
        )


class DuplicateRid(RequestError):
    """The rid names a live request. The first one is unharmed."""

    status = 409

    def __init__(self, rid: str) -> None:
        super().__init__(f"A request with rid `{rid}` is already running.", param="rid", code="duplicate_rid")


class OverloadError(MillstreamError):
    """More is asked than the server takes on at a time; the same request may succeed later.

    429, not 503: the server works, and whoever balances load must not take it for broken.
    """

    status = 429
    type = "overloaded_error"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(MillstreamError):
    """The request did not end within the time its client gave it."""

    status = 504
    type = "timeout_error"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The request did not end within {round(timeout_s, 3):g} s.", code="deadline")


class EngineError(MillstreamError):
    """The engine failed on this request; others go on."""


class EngineDeadError(MillstreamError):
    """A process that the request needs is not running (still loading, or it died). 503: nobody can be served now."""

    status = 503
    type = "service_unavailable_error"
    retry_after_s = 5


class StartupError(MillstreamError):
    """The server cannot start. `hint` is the next thing to try."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class InvariantError(MillstreamError):
    """A rule of our own was broken: our bug, never the client's."""
