"""One streamed chat request on a connection of its own, timed. Speaks HTTP/1.1 by httptools; never waits beyond its limit.

A connection each, so that no answer depends on what a connection was used for before; opening it is not part of any time.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

READ_BYTES = 256 * 1024


@dataclass(slots=True)
class Record:
    """What became of one request. Times in seconds on the clock of `time.perf_counter`."""

    due: float
    """When it should have been sent."""
    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    """When each event with text, reasoning or a call came."""
    ended: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None
    """The kind of failure, few enough to count: `timeout`, `connection`, `cut off`, `error event`, `not OpenAI`, `HTTP 429`."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go. `timeout_s`: for a whole request."""

    url: str
    model: str
    key: str | None
    timeout_s: float
    extra: dict[str, Any]


class Failed(Exception):
    """The request has failed: its kind, and what was said."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind, self.detail = kind, detail


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


async def ask(target: Target, messages: list[dict[str, Any]], max_tokens: int | None, record: Record) -> str:
    """Ask, and note in `record` what comes; returns the answer's text, or as much of it as came before it failed."""
    body = {"model": target.model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    reply = _Reply(record)
    try:
        async with asyncio.timeout(target.timeout_s):
            await _exchange(target, msgspec.json.encode({**body, **target.extra}), reply)
    except TimeoutError:
        record.error, record.detail = "timeout", f"not complete after {target.timeout_s:g} s"
    except Failed as failed:
        record.error, record.detail = failed.kind, failed.detail
    except OSError as error:
        record.error, record.detail = "connection", str(error)
    except httptools.HttpParserError as error:
        record.error, record.detail = "not OpenAI", f"not HTTP: {error}"
    finally:
        record.ended = time.perf_counter()
    return reply.text


async def _exchange(target: Target, body: bytes, reply: _Reply) -> None:
    parts = urlsplit(target.url)
    secure = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or (443 if secure else 80), ssl=ssl.create_default_context() if secure else None
    )
    try:
        key = f"Authorization: Bearer {target.key}\r\n" if target.key else ""
        head = (
            f"POST {parts.path.rstrip('/')}/v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{key}\r\n"
        )
        reply.record.sent = time.perf_counter()
        writer.write(head.encode() + body)
        await writer.drain()
        parser = httptools.HttpResponseParser(reply)
        while not reply.is_over:
            data = await reader.read(READ_BYTES)
            if not data:
                break
            parser.feed_data(data)
            if reply.failed is not None:
                raise reply.failed
        reply.check(parser.get_status_code() if reply.has_head else None)
    finally:
        writer.transport.abort()  # nothing more is wanted of it, and nobody waits for its end


class _Reply:
    """httptools calls it with the parts of the answer. What a callback finds wrong waits in `failed`: none may raise."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.text = ""
        self.is_over = False
        self.has_head = False
        self.failed: Failed | None = None
        self._is_done = False
        self._is_stream = False
        self._buffer = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        self._buffer += data
        if self._is_stream:
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                if line.startswith(b"data:") and self.failed is None:
                    self._event(line[5:].strip())

    def on_message_complete(self) -> None:
        self.is_over = True

    def check(self, status: int | None) -> None:
        """What the whole of it amounts to, once no more comes.

        Raises:
            Failed: it is no complete answer.
        """
        if status is None:
            raise Failed("cut off", "no answer came")
        if status != 200:
            raise Failed(f"HTTP {status}", self._buffer[:300].decode(errors="replace"))
        if not self._is_stream:
            raise Failed("not OpenAI", "the answer is no stream of events")
        if not self._is_done:
            raise Failed("cut off", "the stream ended without [DONE]")

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._is_done = True
            return
        try:
            event = _decode(data)
        except msgspec.MsgspecError as error:
            self.failed = Failed("not OpenAI", f"{error}: {data[:100].decode(errors='replace')}")
            return
        if event.error:
            self.failed = Failed("error event", str(event.error)[:300])
        for choice in event.choices or ():
            delta = choice.delta
            if delta and (delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls):
                self.record.times.append(time.perf_counter())
                self.text += delta.content or ""
        if (usage := event.usage) is not None:
            self.record.prompt_tokens = usage.prompt_tokens
            self.record.completion_tokens = usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                self.record.cached_tokens = usage.prompt_tokens_details.cached_tokens
