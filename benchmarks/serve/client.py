"""One chat request to an OpenAI-compatible server on this machine, and when each piece of the answer came."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from benchmarks.load import WORDS, percentiles, stream_events
from benchmarks.serve.servers import Server

Message = dict[str, str]


@dataclass
class Reply:
    """An answer: `usage` as the server sent it, `times` of the pieces that had text."""

    sent: float
    times: list[float] = field(default_factory=list)
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft(self) -> float:
        """Seconds from the request to the first text."""
        return self.times[0] - self.sent if self.times else float("nan")

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the server says it knew; None where it does not say."""
        details = self.usage.get("prompt_tokens_details") or {}
        cached: int | None = details.get("cached_tokens")
        return cached


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
    async for event in stream_events(reader, writer, address.netloc, body):
        if event == "[DONE]":
            continue
        chunk = json.loads(event)
        if "error" in chunk:
            raise RuntimeError(f"{server.name}: {chunk['error']}")
        reply.usage = chunk.get("usage") or reply.usage
        for choice in chunk.get("choices", ()):
            if content := choice["delta"].get("content"):
                reply.times.append(time.perf_counter())
                reply.text += content
                if on_text:
                    on_text()
    writer.close()
    return reply


def words(count: int, seed: str) -> str:
    """So many words, the same for the same seed. A word is a little more than a token."""
    dice = random.Random(seed)
    return " ".join(dice.choice(WORDS) for _ in range(count))


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
        "text_sha256": hashlib.sha256("\0".join(reply.text for reply in replies).encode()).hexdigest()[:16],
    }


def hit_share(replies: Sequence[Reply]) -> float | None:
    """Share of the prompts' tokens that the server had in its cache; None where it does not say."""
    cached = [reply.cached_tokens for reply in replies]
    if any(count is None for count in cached):
        return None
    return round(sum(count or 0 for count in cached) / sum(reply.usage["prompt_tokens"] for reply in replies), 3)
