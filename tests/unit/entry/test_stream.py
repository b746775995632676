"""Rows of a stream take the short way to the connection where it is open, the long way where it is not, and never overtake."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.entry.openai.chunks import ChunkWriter
from millstream.messages import BatchStrOutput, Stop, TextRow, TokenizedGenerateReqInput, Usage
from tests.support.asgi import Call, run
from tests.support.engine import Entry
from tests.support.short_way import ShortWay
from tests.support.sse import parse_events

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/generate": {"text": "hi", "incremental_streaming_output": True},
}
every_route = pytest.mark.parametrize("path", BODIES)


async def start(entry: Entry, path: str, **fields: Any) -> tuple[Call, ShortWay]:
    """A stream that has shown its first text."""
    entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
    short = ShortWay()
    rid = fields.pop("rid", "r")
    count = len(entry.engine.requests)
    short.call = call = Call(entry.app, path, {**BODIES[path], "rid": rid, "stream": True, **fields}, direct=short)
    await entry.engine.wait_sent(TokenizedGenerateReqInput, count + fields.get("n", 1))
    for request in entry.engine.requests[count:]:
        entry.engine.row(request.rid, "first")
    await call.until(b"first")
    await asyncio.sleep(0)
    return call, short


def text_of(path: str, content: bytes) -> str:
    """The joined text of a stream with one choice."""
    chunks = [event.data for event in parse_events(content) if event.data != "[DONE]"]
    if path == "/generate":
        return "".join(chunk["text"] for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content", "") if "chat" in path else choice["text"] for choice in choices)


@every_route
def test_a_row_is_on_the_connection_before_its_delivery_returns(path: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        call, short = await start(entry, path)
        for index in range(3):
            entry.engine.row("r", f"now {index}")
            assert f"now {index}".encode() in short.written[-1]
        assert len(short.written) == 3
        entry.engine.row("r", "", finish=Stop())
        assert text_of(path, (await call.response()).content) == "firstnow 0now 1now 2"
        assert len(short.written) == 3  # the end goes the long way: the server must know of it

    run(scenario())


@every_route
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20))
def test_whatever_way_is_open_when_rows_keep_their_order(path: str, moves: list[tuple[bool, bool]]) -> None:
    async def scenario() -> None:
        entry = Entry()
        call, short = await start(entry, path)
        for number, (is_open, turns) in enumerate(moves):
            short.is_open = is_open
            entry.engine.row("r", f"{number},")
            if turns:
                await asyncio.sleep(0)
        short.is_open = True
        entry.engine.row("r", "end", finish=Stop())
        numbers = "".join(f"{number}," for number in range(len(moves)))
        assert text_of(path, (await call.response()).content) == f"first{numbers}end"

    run(scenario())


def test_a_row_does_not_overtake_what_the_client_has_not_taken() -> None:
    async def scenario() -> None:
        entry = Entry()
        call, short = await start(entry, "/v1/completions")
        call.stop_reading()
        short.is_open = False
        entry.engine.row("r", "waits")
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the long way has begun, and is blocked
        short.is_open = True
        entry.engine.row("r", "behind")
        assert short.written == []
        call.read_on()
        entry.engine.row("r", "", finish=Stop())
        assert text_of("/v1/completions", (await call.response()).content) == "firstwaitsbehind"

    run(scenario())


def test_usage_counts_every_row_whatever_its_way() -> None:
    async def scenario() -> None:
        entry = Entry()
        options = {"include_usage": True, "continuous_usage_stats": True}
        call, short = await start(entry, "/v1/completions", n=2, stream_options=options)
        entry.engine.row("r-0", "x")
        assert b'"completion_tokens":3' in short.written[-1]
        for rid in ("r-0", "r-1"):
            entry.engine.row(rid, "", finish=Stop())
        usage = (await call.response()).chunks[-1]["usage"]
        assert usage["completion_tokens"] == 5
        assert usage["total_tokens"] == usage["prompt_tokens"] + 5

    run(scenario())


def test_a_row_that_cannot_be_written_fails_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        entry = Entry()
        bad, _ = await start(entry, "/v1/completions", rid="bad", return_token_ids=True)
        good, _ = await start(entry, "/v1/completions", rid="good")
        original = ChunkWriter.text

        def broken(self: ChunkWriter, index: int, text: str, *more: Any) -> bytes:
            if text == "boom":
                raise ValueError("no such text")
            return original(self, index, text, *more)

        monkeypatch.setattr(ChunkWriter, "text", broken)
        usage = Usage(1, 2)
        entry.engine.handle(BatchStrOutput([TextRow("bad", 0, "boom", [1], usage), TextRow("good", 1, "fine", [1], usage)]))
        failed = await bad.response()
        assert failed.events[-1].data["error"]["code"] == "engine_error"
        assert [(abort.rid, abort.cause) for abort in entry.engine.aborts] == [("bad", "engine_error")]
        entry.engine.row("good", "", finish=Stop())
        assert text_of("/v1/completions", (await good.response()).content) == "firstfine"
        entry.engine.end("bad", "engine_error")
        assert entry.manager.live_requests == 0

    run(scenario())


def test_a_client_that_leaves_is_sent_nothing_more() -> None:
    async def scenario() -> None:
        entry = Entry()
        call, short = await start(entry, "/v1/completions")
        call.disconnect()
        await call.task
        entry.engine.row("r", "late")
        assert short.written == []
        entry.engine.end("r")
        assert entry.manager.live_requests == 0

    run(scenario())
