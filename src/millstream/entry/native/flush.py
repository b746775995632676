"""GET or POST /flush_cache: forget the prefixes that are kept for requests to come. SGLang's route, for measurements mostly."""

from __future__ import annotations

import asyncio

from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.http.exchange import Exchange
from millstream.entry.query import read_seconds
from millstream.entry.service import Service
from millstream.messages import FlushReply

MAX_WAIT_S = 600.0
LOOK_EVERY_S = 0.05  # while requests run


async def flush_cache(exchange: Exchange, service: Service) -> None:
    """Empty the prefix cache; `?timeout=` is for how many seconds to wait until nothing runs."""
    wait_s = read_seconds(exchange, "timeout", default=0.0, most=MAX_WAIT_S)
    await exchange.while_connected(_flush(exchange, service, wait_s))


async def _flush(exchange: Exchange, service: Service, wait_s: float) -> None:
    end = service.clock() + wait_s
    while (reply := await service.manager.questions.flush()).num_live:
        if service.clock() >= end:
            raise RequestFailed(_in_use(reply))
        await asyncio.sleep(LOOK_EVERY_S)
    await exchange.send_json({"success": True, "message": "The prefix cache is empty.", "pages_freed": reply.num_pages})


def _in_use(reply: FlushReply) -> Failure:
    return Failure(
        400,
        f"The prefix cache cannot be emptied now: {reply.num_live} requests are live. Try again when they have ended, or let "
        "`?timeout=SECONDS` wait for that.",
        "invalid_request_error",
        code="requests_live",
    )
