"""Request bodies: bytes to one JSON object, bounded in what it may cost before anything is made of it.

Called by the exchange. A decoder holds the interpreter lock and makes an object of every `[]`, so a large body is weighed by
its punctuation first, and all of it in a thread: between two steps the event loop gets its turns.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec

from millstream.errors import RequestError

INLINE_BYTES = 256 * 1024  # below this a body cannot hold enough values to matter
# as many as 10,000 messages of several parts need, and the token ids of many prompts
MAX_STRINGS = 200_000  # names of fields too
MAX_CONTAINERS = 100_000  # arrays and objects
MAX_VALUES = 1_000_000  # of all kinds
MAX_DEPTH = 100  # arrays and objects in one another; what works on values may recurse

_EMPTY = re.compile(rb"\[\]|\{\}")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


async def decode_body(body: bytes) -> dict[str, Any]:
    """Decode one JSON object, off the event loop where it is large.

    Raises:
        RequestError: it is none, or has too many values, or nests them too deeply.
    """
    if len(body) <= INLINE_BYTES:
        if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
            check_depth(_outside_strings(body))
        return decode_object(body)
    return await asyncio.to_thread(_decode_large, body)


def _decode_large(body: bytes) -> dict[str, Any]:
    check_weight(body)
    return decode_object(body)


def check_weight(body: bytes) -> None:
    """Count values without decoding: punctuation outside strings, and quotes that no backslash precedes.

    Raises:
        RequestError: there are too many.
    """
    plain = _without_escapes(body)
    if (strings := plain.count(b'"') // 2) > MAX_STRINGS:
        _refuse(strings, "strings and names", MAX_STRINGS)
    outside = b"".join(plain.split(b'"')[::2])
    if (containers := outside.count(b"[") + outside.count(b"{")) > MAX_CONTAINERS:
        _refuse(containers, "arrays and objects", MAX_CONTAINERS)
    if (values := outside.count(b",") + 1) > MAX_VALUES:
        _refuse(values, "values", MAX_VALUES)
    check_depth(outside)


def check_depth(outside: bytes) -> None:
    """Measure nesting without recursion: take away the innermost level until nothing is left. `outside` has no strings.

    A decoder that recurses too deep raises, and so does whatever Python collects as garbage just then.

    Raises:
        RequestError: it is too deep.
    """
    brackets = outside.translate(None, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        inner = brackets
        brackets = _EMPTY.sub(b"", inner)
        if brackets == inner:
            break  # nothing is left or, in what is no JSON, what is never closed: a decoder goes into that first
    if brackets.count(b"[") + brackets.count(b"{") > MAX_DEPTH or _EMPTY.search(brackets):
        raise RequestError(f"The body is nested more than {MAX_DEPTH} levels deep.", code="body_too_complex")


def _outside_strings(body: bytes) -> bytes:
    return b"".join(_without_escapes(body).split(b'"')[::2])


def _without_escapes(body: bytes) -> bytes:
    """`body` without what a backslash precedes, so that every quote left is an end of a string."""
    for escaped in (b"\\\\", b'\\"'):
        if escaped in body:
            body = body.replace(escaped, b"")
    return body


def _refuse(count: int, things: str, limit: int) -> None:
    raise RequestError(f"The body has {count} {things}; at most {limit} are allowed.", code="body_too_complex")


def decode_object(body: bytes) -> dict[str, Any]:
    """Decode one JSON object. NaN, Infinity, lone surrogates and endless nesting are not JSON to us.

    Raises:
        RequestError: it is none.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # the decoder calls a lone surrogate truncated data too
        reason = "it ends too early, or has a lone surrogate" if "truncated" in str(error) else str(error)
        raise RequestError(f"The body is not valid JSON or not valid Unicode: {reason}.", code="invalid_json") from None
    except RecursionError:
        raise RequestError("The body is nested too deeply.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_json")
    return value
