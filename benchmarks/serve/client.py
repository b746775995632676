"""One chat request to a server under measurement, over a connection of its own, and the figures of a set of answers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from benchmarks.load import Reply, percentiles, receive, texts_hash
from benchmarks.serve.servers import Server

Message = dict[str, str]


async def ask(server: Server, messages: Sequence[Message], max_tokens: int, on_text: Callable[[], None] | None = None) -> Reply:
    """Stream one greedy answer of exactly `max_tokens` tokens over a connection of its own. `on_text` is called at each piece.

    Raises:
        RuntimeError: the server answered with an error.
    """
    body = {
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "model": server.model,
    }
    body = {key: value for key, value in body.items() if key not in server.refuses}
    address = urlsplit(server.url)
    reply = Reply(time.perf_counter())
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        await receive(reply, reader, writer, address.netloc, body, on_text)
    except RuntimeError as error:
        raise RuntimeError(f"{server.name}: {error}") from error
    writer.close()
    return reply


def summary(replies: Sequence[Reply], seconds: float) -> dict[str, Any]:
    """What every workload reports of a set of answers."""
    made = sum(reply.usage.get("completion_tokens", len(reply.times)) for reply in replies)
    pieces = sum(len(reply.times) for reply in replies)
    prompts = [reply.usage["prompt_tokens"] for reply in replies if "prompt_tokens" in reply.usage]
    return {
        "tokens_per_s": round(made / seconds, 1),
        "ttft_ms": percentiles([reply.ttft for reply in replies]),
        "itl_ms": percentiles([gap for reply in replies for gap in reply.gaps]),
        "events_per_token": round(pieces / max(1, made), 3),
        "prompt_tokens": round(statistics.fmean(prompts), 1) if prompts else None,
        "hit_share": hit_share(replies),
        "text_sha256": texts_hash(replies),
    }


def hit_share(replies: Sequence[Reply]) -> float | None:
    """Share of the prompts' tokens that the server had in its cache; None where it does not say."""
    cached = [(reply.usage.get("prompt_tokens_details") or {}).get("cached_tokens") for reply in replies]
    if None in cached:
        return None
    return round(sum(cached) / sum(reply.usage["prompt_tokens"] for reply in replies), 3)
