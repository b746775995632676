"""What is asked of a server. Each workload is a coroutine that takes one and returns its figures.

No two workloads share a prompt, so nothing of one is in the server's cache for the next. Times in milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from benchmarks.load import Reply, percentiles, prompt, words
from benchmarks.serve.client import Message, ask, hit_share, summary
from benchmarks.serve.servers import Server

CLIENTS = (1, 8, 16, 32)
LONG_WORDS = 1600  # about 2,000 tokens


def user(text: str) -> Message:
    """A message."""
    return {"role": "user", "content": text}


async def load(server: Server, clients: int) -> dict[str, Any]:
    """A closed loop: so many clients, twice as many requests (four at least) of about 106 tokens, 64 new tokens."""
    numbers = iter(range(max(4, 2 * clients)))
    replies: dict[int, Reply] = {}

    async def one_after_the_other() -> None:
        for number in numbers:
            replies[number] = await ask(server, [user(prompt(number, 64, seed=clients))], 64)

    start = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(clients)))
    return summary([replies[number] for number in sorted(replies)], time.perf_counter() - start)


async def mixed(server: Server) -> dict[str, Any]:
    """Eight streams under way; then two prompts of 2,000 tokens, one after the other. What do the streams feel of them?"""
    left = 8 * 8  # pieces until the streams are well under way
    under_way = asyncio.Event()

    def on_text() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            under_way.set()

    start = time.perf_counter()
    streams = [asyncio.ensure_future(ask(server, [user(words(40, f"stream {i}"))], 160, on_text)) for i in range(8)]
    await under_way.wait()
    first, longs = time.perf_counter(), []
    for number in range(2):
        longs.append(await ask(server, [user(words(LONG_WORDS, f"long {number}"))], 4))
    last = time.perf_counter()
    replies = await asyncio.gather(*streams)
    during = [b - a for reply in replies for a, b in zip(reply.times, reply.times[1:], strict=False) if a < last and b > first]
    return {
        **summary(replies, time.perf_counter() - start),
        "itl_ms_beside_long": {**percentiles(during), "max": round(max(during, default=0.0) * 1000, 1)},
        "ttft_ms_long": percentiles([reply.ttft for reply in longs]),
    }


async def prefix(server: Server) -> dict[str, Any]:
    """Eight questions about one text of 2,000 tokens: one alone, then seven at once."""
    text = words(LONG_WORDS, "shared")
    questions = [[{"role": "system", "content": text}, user(words(20, f"question {number}"))] for number in range(8)]
    cold = await ask(server, questions[0], 32)
    start = time.perf_counter()
    warm = await asyncio.gather(*(ask(server, question, 32) for question in questions[1:]))
    return {**summary(warm, time.perf_counter() - start), "ttft_ms_cold": round(cold.ttft * 1000, 1)}


async def turns(server: Server) -> dict[str, Any]:
    """Four conversations of four turns at once; each turn repeats all before it."""

    async def conversation(number: int) -> list[Reply]:
        messages: list[Message] = []
        replies = []
        for turn in range(4):
            messages.append(user(words(40, f"conversation {number}, turn {turn}")))
            replies.append(await ask(server, messages, 48))
            messages.append({"role": "assistant", "content": replies[-1].text})
        return replies

    start = time.perf_counter()
    every = await asyncio.gather(*(conversation(number) for number in range(4)))
    later = [reply for replies in every for reply in replies[1:]]
    return {
        **summary([reply for replies in every for reply in replies], time.perf_counter() - start),
        "ttft_ms_later": percentiles([reply.ttft for reply in later]),
        "hit_share_later": hit_share(later),
    }


WORKLOADS: dict[str, Callable[[Server], Awaitable[dict[str, Any]]]] = {
    **{f"load-{clients}": partial(load, clients=clients) for clients in CLIENTS},
    "mixed": mixed,
    "prefix": prefix,
    "turns": turns,
}


async def warm_up(server: Server) -> None:
    """A few requests at once that nobody counts."""
    await asyncio.gather(*(ask(server, [user(words(60, f"warm-up {number}"))], 8) for number in range(4)))
