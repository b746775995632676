"""Errors as Anthropic's API has them. The dialect of all paths under /v1/messages, before and behind the handler."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.entry.failure import Failure

PING = b'event: ping\ndata: {"type":"ping"}\n\n'  # an event of every stream, which clients pass over
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_NULLABLE = {"type": ["string", "null"]}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "details": {
                    "type": "object",
                    "properties": {"error_code": _NULLABLE, "param": _NULLABLE},
                    "required": ["error_code", "param"],
                    "additionalProperties": False,
                },
            },
            "required": ["type", "message"],
            "additionalProperties": False,
        },
        "request_id": {"type": "string"},
    },
    "required": ["type", "error", "request_id"],
    "additionalProperties": False,
}


def error_type(status: int) -> str:
    """Anthropic's word for an HTTP status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_object(failure: Failure, request_id: str) -> dict[str, Any]:
    """`{"type": "error", "error": {"type", "message", "details"}, "request_id"}`.

    `details` is there where we know more: `error_code`, our word for the cause, and `param`, the field.
    """
    error: dict[str, Any] = {"type": error_type(failure.status), "message": failure.message}
    if failure.code is not None or failure.param is not None:
        error["details"] = {"error_code": failure.code, "param": failure.param}
    return {"type": "error", "error": error, "request_id": request_id}


class MessagesDialect:
    """See `http.dialect`."""

    id_headers: tuple[bytes, ...] = (b"request-id", b"x-request-id")
    sign_of_life: bytes = PING
    error_name = "MessagesError"
    error_schema = _SCHEMA

    def error_body(self, failure: Failure, request_id: str) -> bytes:
        """See `error_object`."""
        return msgspec.json.encode(error_object(failure, request_id))
