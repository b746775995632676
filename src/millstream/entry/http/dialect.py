"""Dialects: how the routes of one API word what any route may have to say: its errors, the id of an answer, a sign of life.

A path decides, so that a request that never reaches its handler (no key, too many, a body that is no JSON) is refused in the
words of the API that its client speaks. Asked by the exchange, and by the HTTP protocol for requests that never become one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

from millstream.entry.anthropic.errors import MessagesDialect
from millstream.entry.failure import Failure
from millstream.entry.http.errors import ERROR_SCHEMA, Header, error_body

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Dialect(Protocol):
    """The words of one API."""

    @property
    def id_headers(self) -> tuple[bytes, ...]:
        """The headers of an answer that hold its request's id."""
        ...

    @property
    def sign_of_life(self) -> bytes:
        """What a stream sends where it has had nothing to send for long."""
        ...

    @property
    def error_name(self) -> str:
        """What the OpenAPI document calls the form of its errors."""
        ...

    @property
    def error_schema(self) -> dict[str, Any]:
        """That form as JSON Schema."""
        ...

    def error_body(self, failure: Failure, request_id: str) -> bytes:
        """The JSON of an error."""
        ...


class OpenAIDialect:
    """OpenAI's error envelope."""

    id_headers: tuple[bytes, ...] = (b"x-request-id",)
    sign_of_life: bytes = b": keep-alive\n\n"  # a comment: clients parse every data line as JSON
    error_name = "Error"
    error_schema = ERROR_SCHEMA

    def error_body(self, failure: Failure, request_id: str) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}`."""
        return error_body(failure)


OPENAI = OpenAIDialect()
_BY_PREFIX: tuple[tuple[str, Dialect], ...] = (("/v1/messages", MessagesDialect()),)
DIALECTS: tuple[Dialect, ...] = (OPENAI, *(dialect for _, dialect in _BY_PREFIX))


def dialect_of(path: str) -> Dialect:
    """The dialect of a path, whether or not there is anything at it."""
    return next((dialect for prefix, dialect in _BY_PREFIX if path == prefix or path.startswith(prefix + "/")), OPENAI)


def request_id(headers: Sequence[Header]) -> str:
    """The id of a request with these headers: its client's own, `X-Request-Id`, or a new one like OpenAI's and Anthropic's."""
    given = next((value for name, value in headers if name == b"x-request-id"), None)
    return given.decode("ascii") if given is not None and _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
