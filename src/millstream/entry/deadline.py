"""Deadlines: how long a client will wait, as a moment on the clock that all processes of a machine share.

Resolved once by the adapters. Up to dispatch the entry keeps it, here; from then on the scheduler does, which owns the request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from millstream.entry.http.exchange import Exchange
from millstream.errors import DeadlineExceeded, RequestError

HEADER = "X-Request-Timeout"
_HEADER_KEY = HEADER.lower().encode()
MAX_TIMEOUT_S = 86_400.0

T = TypeVar("T")


def resolve_deadline(exchange: Exchange, timeout: float | None, server_timeout: float | None, received: float) -> float | None:
    """When a request that came at `received` must have ended: after its field, its header or the server's option, the shortest.

    Raises:
        RequestError: field or header is out of range.
    """
    by_field = deadline_of(timeout, server_timeout, received)
    if (header := exchange.header(_HEADER_KEY)) is None:
        return by_field
    text = header.decode("latin-1").strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    by_header = received + _checked(seconds, text[:100], HEADER)
    return by_header if by_field is None else min(by_field, by_header)


def deadline_of(timeout: float | None, server_timeout: float | None, received: float) -> float | None:
    """The same where there are no headers.

    Raises:
        RequestError: the field is out of range.
    """
    given = [] if server_timeout is None else [server_timeout]
    if timeout is not None:
        given.append(_checked(timeout, timeout, "timeout"))
    return received + min(given) if given else None


def _checked(seconds: float, shown: object, param: str) -> float:
    if 0.0 < seconds <= MAX_TIMEOUT_S:  # NaN fails it
        return seconds
    raise RequestError(f"{param} is {shown}; it must be greater than 0 and at most {MAX_TIMEOUT_S:g} seconds.", param=param)


async def before(deadline: float | None, received: float, clock: Callable[[], float], work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, and cancel it at `deadline`.

    Raises:
        DeadlineExceeded: it had not ended by then.
    """
    if deadline is None:
        return await work
    left = deadline - clock()
    if left <= 0:
        work.close()
        raise DeadlineExceeded(deadline - received)
    try:
        async with asyncio.timeout(left) as limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise DeadlineExceeded(deadline - received) from None
        raise
