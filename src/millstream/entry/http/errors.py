"""The one place that turns a `Failure` into bytes: the OpenAI error envelope, its status and its headers."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.entry.failure import Failure
from millstream.errors import OverloadError

Header = tuple[bytes, bytes]
_NULLABLE = {"type": ["string", "null"]}
ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}, "param": _NULLABLE, "code": _NULLABLE},
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
}


def error_body(failure: Failure) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return msgspec.json.encode(
        {"error": {"message": failure.message, "type": failure.type, "param": failure.param, "code": failure.code}}
    )


def error_headers(failure: Failure) -> list[Header]:
    """`Retry-After` where trying again later may help, what a 401 must say, and that a deadline is no reason to try again."""
    headers: list[Header] = []
    if failure.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % failure.retry_after_s))
    if failure.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if failure.code == "deadline":
        headers.append((b"x-should-retry", b"false"))  # OpenAI's clients try a 504 again by themselves, and listen to this
    return headers


def not_found(path: str) -> Failure:
    """No route has this path."""
    return Failure(404, f"There is nothing at `{path}`.", "invalid_request_error", code="not_found")


def method_not_allowed(method: str, path: str, allowed: str) -> Failure:
    """The path exists, for other methods."""
    return Failure(405, f"`{path}` takes {allowed}, not {method}.", "invalid_request_error", code="method_not_allowed")


def body_too_large(limit: int) -> Failure:
    """The request body is over the limit."""
    return Failure(413, f"The request body has more than {limit} bytes.", "invalid_request_error", code="body_too_large")


def unsupported_media_type(content_type: str) -> Failure:
    """The body is declared as something other than JSON."""
    return Failure(
        415,
        f"Content-Type is `{content_type[:100]}`; it must be `application/json`.",
        "invalid_request_error",
        code="unsupported_media_type",
    )


def unsupported_content_encoding(encoding: str) -> Failure:
    """The body is compressed."""
    return Failure(
        415,
        f"Content-Encoding is `{encoding[:100]}`; bodies must come as they are, without one.",
        "invalid_request_error",
        code="unsupported_content_encoding",
    )


def headers_too_large(limit: int) -> Failure:
    """The request line and headers are over the limit."""
    return Failure(431, f"The request headers have more than {limit} bytes.", "invalid_request_error", code="headers_too_large")


def too_many_headers(limit: int) -> Failure:
    """The request has more headers than the limit."""
    return Failure(431, f"The request has more than {limit} headers.", "invalid_request_error", code="headers_too_large")


def too_many_connections(limit: int) -> Failure:
    """More connections are open than the limit."""
    message = f"The server has {limit} connections, the most it takes. Try again later."
    return Failure(OverloadError.status, message, OverloadError.type, code="too_many_connections", retry_after_s=1)


def request_timeout(limit_s: float) -> Failure:
    """The rest of the request did not come."""
    return Failure(408, f"Nothing more of the request came for {limit_s:g} s.", "invalid_request_error", code="request_timeout")


def request_too_slow(size: int, seconds: float) -> Failure:
    """The request comes byte by byte."""
    message = f"Only {size} bytes of the request came in {seconds:.0f} s."
    return Failure(408, message, "invalid_request_error", code="request_timeout")


def no_upgrade() -> Failure:
    """A request with a body asks for another protocol."""
    message = "This server speaks HTTP/1.1 only: send the request without an `Upgrade` header."
    return Failure(400, message, "invalid_request_error", code="no_upgrade")


def bad_http(message: str) -> Failure:
    """The bytes are not an HTTP request."""
    return Failure(400, message, "invalid_request_error", code="bad_http")
