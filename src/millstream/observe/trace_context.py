"""The place of a request in a trace that spans servers, as W3C Trace Context has it in the header `traceparent`.

Read and made once a request, by the exchange. A header that is not exactly as the standard says is ignored, and a new trace
begins: what a client sends must never break its request.
"""

from __future__ import annotations

import random
import re

from millstream.messages import TraceContext

_SAMPLED = 1  # the only flag that is known

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_random = random.Random()  # seeded by the system; ids need to be unlike each other, not unforeseeable


def trace_context(traceparent: bytes | None) -> TraceContext:
    """The place of a request with this header: a child of the caller's span, or the root of a new trace."""
    if traceparent is not None and (match := _TRACEPARENT.fullmatch(traceparent.strip())) is not None:
        version, trace_id, parent_id, flags, rest = match.groups()
        is_known = version == b"00" and rest is None
        is_later = version not in (b"00", b"ff")  # a later version may say more, after what this one says
        ids = trace_id.decode(), parent_id.decode()
        if (is_known or is_later) and ids[0] != _NO_TRACE and ids[1] != _NO_SPAN:
            return TraceContext(ids[0], _new_id(64), ids[1], bool(int(flags, 16) & _SAMPLED))
    return TraceContext(_new_id(128), _new_id(64))


def _new_id(bits: int) -> str:
    return f"{_random.getrandbits(bits) or 1:0{bits // 4}x}"
