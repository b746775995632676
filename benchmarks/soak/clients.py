"""The clients of the soak: each does one thing to the server, well or badly, and ends. Standard library only.

A client is a coroutine that takes a `Place`. It raises `Wrong` where the server gave a wrong answer. One that is refused or cut
off is no fault of the server's here: others are busy making it so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
READ_BYTES = 65536
GARBAGE_BYTES = 4096
REFUSALS = frozenset({408, 429, 499, 503, 504})  # what a server that is full, or told to abort, may say to a good request


class Wrong(Exception):
    """The server did what it must not."""


@dataclass(frozen=True)
class Place:
    """Where the server is, and the dice of one client."""

    host: str
    port: int
    dice: random.Random

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """One connection, closed afterwards whatever happened."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 24)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def request(self, path: str, body: bytes, *, method: str = "POST") -> bytes:
        """One HTTP request."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def body(self, path: str, **more: Any) -> dict[str, Any]:
        """A good request for one of the three routes, of a random length."""
        limit = self.dice.choice((1, 8, 64, 200))
        text = "Say it again. " * self.dice.randint(1, 40)
        if path == GENERATE:
            sampling = {"max_new_tokens": limit}
            return {"text": text, "sampling_params": sampling, "incremental_streaming_output": True, **more}
        prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
        return {**prompt, "max_tokens": limit, **more}


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer."""
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").rstrip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of a whole or chunked answer."""
    status, headers = await read_head(reader)
    if "content-length" in headers:
        return status, await reader.readexactly(int(headers["content-length"]))
    body = b""
    while (size := int(await reader.readline(), 16)) > 0:
        body += (await reader.readexactly(size + 2))[:-2]
    return status, body


def text_of(path: str, body: bytes) -> str | None:
    """The text of an answer, whole or streamed; None where it says that it failed."""
    documents = [body]
    if body.startswith((b"data: ", b": ")):
        events = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line.startswith(b"data: ")]
        if not events or events[-1] != b"[DONE]":
            return None
        documents = events[:-1]
    text = ""
    for document in map(json.loads, documents):
        if "error" in document:
            return None
        if path == GENERATE:
            text += document["text"]
            continue
        for choice in document["choices"]:
            part = choice.get("delta") or choice.get("message") or choice
            text += part.get("content") or part.get("text") or ""
    return text


async def ask(place: Place, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """One request and its whole answer over a connection of its own."""
    async with place.connect() as (reader, writer):
        writer.write(place.request(path, json.dumps(body).encode()))
        return await read_answer(reader)


async def reads_both_ways(place: Place) -> None:
    """Ask for the same thing streamed and whole: the texts must be equal."""
    path = place.dice.choice((CHAT, COMPLETIONS, GENERATE))
    stop = {} if path == GENERATE or place.dice.random() < 0.5 else {"stop": ["e", "again and again"]}
    body = place.body(path, **stop)
    answers = [await ask(place, path, {**body, "stream": stream}) for stream in (True, False)]
    for status, answer in answers:
        if status not in REFUSALS and status != 200:
            raise Wrong(f"{status} for a good request: {answer[:300]!r}")
    texts = [text_of(path, answer) for status, answer in answers if status == 200]
    if len(texts) == len(answers) and None not in texts and texts[0] != texts[1]:
        raise Wrong(f"streamed {texts[0]!r}, whole {texts[1]!r}")


async def leaves(place: Place) -> None:
    """Close the connection at some moment between the request and the end of the answer."""
    path = place.dice.choice((CHAT, COMPLETIONS, GENERATE))
    n = {} if path == GENERATE else {"n": place.dice.choice((1, 1, 3))}
    async with place.connect() as (reader, writer):
        writer.write(place.request(path, json.dumps(place.body(path, stream=place.dice.random() < 0.7, **n)).encode()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(place.dice.choice((0, 0.001, 0.02, 0.3))):
                while await reader.read(READ_BYTES):
                    pass


async def stalls(place: Place) -> None:
    """Ask for a long stream, read nothing for a while, then read on or leave."""
    async with place.connect() as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket transport has it
        writer.write(place.request(CHAT, json.dumps(place.body(CHAT, stream=True) | {"max_tokens": 4000}).encode()))
        await asyncio.sleep(place.dice.choice((0.1, 1, 4)))
        if place.dice.random() < 0.5:
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    while await reader.read(READ_BYTES):
                        pass


async def sends_garbage(place: Place) -> None:
    """Send what is no request, or half of one."""
    body = json.dumps(place.body(CHAT)).encode()
    good = place.request(CHAT, body)
    data = place.dice.choice(
        (
            place.dice.randbytes(GARBAGE_BYTES),
            good[: place.dice.randrange(len(good))],
            place.request(CHAT, body[: len(body) // 2]),
            place.request(CHAT, b"[" * 100_000),
            place.request(CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}'),
            place.request(CHAT, b'{"messages": 7, "max_tokens": 1e999}'),
            place.request("/v1/" + "x" * 300, body),
            b"GET / HTTP/1.1\r\n" + b"X-Large: " + b"y" * 200_000,
            good.replace(b"Content-Length: ", b"Content-Length: -"),
        )
    )
    async with place.connect() as (reader, writer):
        writer.write(data)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(place.dice.choice((0.01, 0.5))):
                answer = await reader.read(READ_BYTES)
                if answer.startswith(b"HTTP/1.1 5"):
                    raise Wrong(f"garbage is the client's fault, not the server's: {answer[:300]!r}")


async def aborts(place: Place) -> None:
    """Stream under a rid of our own, and abort it from another connection."""
    rid = f"soak-{place.dice.getrandbits(64):x}"
    async with place.connect() as (reader, writer):
        writer.write(place.request(CHAT, json.dumps(place.body(CHAT, stream=True, rid=rid) | {"max_tokens": 4000}).encode()))
        await asyncio.sleep(place.dice.choice((0, 0.01, 0.2)))
        status, answer = await ask(place, "/abort_request", {"rid": rid})
        if status not in (200, 404):
            raise Wrong(f"{status} for an abort: {answer[:300]!r}")
        if status == 200:
            async with asyncio.timeout(20):
                await read_answer(reader)


async def asks_small_things(place: Place) -> None:
    """Count tokens and look at the server."""
    status, answer = await ask(place, "/tokenize", {"prompt": "Say it again. " * place.dice.randint(1, 500)})
    if status == 200 and json.loads(answer)["count"] < 1:
        raise Wrong(f"no tokens: {answer[:300]!r}")
    async with place.connect() as (reader, writer):
        writer.write(place.request("/server_info", b"", method="GET"))
        await read_answer(reader)


CLIENTS: tuple[tuple[int, Callable[[Place], Awaitable[None]]], ...] = (  # how often, what
    (6, reads_both_ways),
    (6, leaves),
    (2, stalls),
    (3, sends_garbage),
    (2, aborts),
    (1, asks_small_things),
)
