"""Streams whose clients do not read: bounded bytes, one pause a request, and an end only for those that take nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.messages import AbortReq, Delivered, PauseReq, ResumeReq, Stop, TokenizedGenerateReqInput
from tests.support.asgi import Call, run, until
from tests.support.engine import Entry
from tests.support.sse import parse_events

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/generate": {"text": "hi", "incremental_streaming_output": True},
}
every_route = pytest.mark.parametrize("path", BODIES)
LIMIT = 64 * 1024
KIB = "é" * 512  # 1,024 bytes


def make_entry(**options: Any) -> Entry:
    entry = Entry(ServerConfig(max_unsent_bytes=LIMIT, **options))
    entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
    return entry


async def start(entry: Entry, path: str, **fields: Any) -> Call:
    """A stream whose client has read its first text, and reads no more."""
    call = Call(entry.app, path, {**BODIES[path], "rid": "r", "stream": True, **fields})
    await entry.engine.wait_sent(TokenizedGenerateReqInput, fields.get("n", 1))
    for request in entry.engine.requests:
        entry.engine.row(request.rid, "first")
    await call.until(b"first")
    await asyncio.sleep(0)
    call.stop_reading()
    return call


async def push(entry: Entry, rid: str, count: int, text: str = KIB) -> None:
    for _ in range(count):
        entry.engine.row(rid, text)
        await asyncio.sleep(0)


def sent(entry: Entry, kind: type) -> list[Any]:
    return [message for message in entry.engine.sent if isinstance(message, kind)]


@every_route
def test_a_stream_pauses_once_at_the_bound_and_goes_on_when_its_client_has_read(path: str) -> None:
    async def scenario() -> None:
        entry = make_entry()
        call = await start(entry, path)
        await push(entry, "r", 63)
        assert sent(entry, PauseReq) == []
        await push(entry, "r", 10)
        assert sent(entry, PauseReq) == [PauseReq("r")]
        assert sent(entry, ResumeReq) == []
        call.read_on()
        await entry.engine.wait_sent(ResumeReq)
        assert sent(entry, ResumeReq) == [ResumeReq("r")]
        entry.engine.row("r", "end", finish=Stop())
        chunks = [event.data for event in parse_events((await call.response()).content) if event.data != "[DONE]"]
        text = "".join(
            chunk["text"] if path == "/generate" else choice.get("text") or choice.get("delta", {}).get("content", "")
            for chunk in chunks
            for choice in chunk.get("choices", [chunk])
        )
        assert text == "first" + KIB * 73 + "end"

    run(scenario())


def test_a_stream_may_pause_again() -> None:
    async def scenario() -> None:
        entry = make_entry()
        call = await start(entry, "/v1/completions")
        for turn in (1, 2):
            await push(entry, "r", 70)
            assert len(sent(entry, PauseReq)) == turn
            call.read_on()
            await entry.engine.wait_sent(ResumeReq, turn)
            call.stop_reading()
        call.read_on()
        entry.engine.row("r", "", finish=Stop())
        await call.response()
        assert [type(message) for message in entry.engine.sent[1:]] == [*[PauseReq, ResumeReq] * 2, Delivered]

    run(scenario())


def test_what_the_connection_holds_counts() -> None:
    async def scenario() -> None:
        entry = make_entry()
        call = await start(entry, "/v1/completions")
        call.unsent = LIMIT - 2048
        await push(entry, "r", 1)
        assert sent(entry, PauseReq) == []
        await push(entry, "r", 2)
        assert sent(entry, PauseReq) == [PauseReq("r")]
        call.read_on()
        entry.engine.row("r", "", finish=Stop())
        await call.response()

    run(scenario())


def test_token_ids_without_text_count() -> None:
    async def scenario() -> None:
        entry = make_entry()
        call = await start(entry, "/generate")
        for _ in range(9):
            entry.engine.row("r", "", ids=[5] * 1000)
            await asyncio.sleep(0)
        assert sent(entry, PauseReq) == [PauseReq("r")]
        call.read_on()
        entry.engine.row("r", "", finish=Stop())
        await call.response()

    run(scenario())


def test_all_choices_of_a_call_that_still_run_pause_and_resume_together() -> None:
    async def scenario() -> None:
        entry = make_entry()
        call = await start(entry, "/v1/completions", n=3)
        entry.engine.row("r-1", "", finish=Stop())
        await push(entry, "r-0", 70)
        assert sent(entry, PauseReq) == [PauseReq("r-0"), PauseReq("r-2")]
        entry.engine.row("r-0", "", finish=Stop())  # it was on the way
        call.read_on()
        await entry.engine.wait_sent(ResumeReq)
        assert sent(entry, ResumeReq) == [ResumeReq("r-2")]
        entry.engine.row("r-2", "", finish=Stop())
        await call.response()

    run(scenario())


@every_route
def test_a_whole_answer_is_never_paused(path: str) -> None:
    async def scenario() -> None:
        entry = make_entry()
        call = Call(entry.app, path, {**BODIES[path], "rid": "r"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        for _ in range(3):
            entry.engine.row("r", KIB * 100)
        entry.engine.row("r", "", finish=Stop())
        assert KIB * 300 in (await call.response()).content.decode()
        assert sent(entry, PauseReq) == []

    run(scenario())


def test_a_client_that_leaves_while_its_stream_is_paused_is_one_abort() -> None:
    async def scenario() -> None:
        entry = make_entry()
        call = await start(entry, "/v1/completions")
        await push(entry, "r", 70)
        call.disconnect()
        await call.task
        assert entry.engine.aborts == [AbortReq("r", "client_gone")]
        entry.engine.end("r")
        assert entry.manager.live_requests == 0

    run(scenario())


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_client_that_takes_nothing_is_dropped_as_a_slow_reader(is_paused: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        entry = make_entry(write_timeout_s=0.1)
        call = await start(entry, "/v1/completions")
        await push(entry, "r", 70 if is_paused else 1)
        await call.task
        assert call.closed
        assert entry.engine.aborts == [AbortReq("r", "slow_reader")]
        entry.engine.end("r", "slow_reader")
        assert entry.manager.live_requests == 0

    with caplog.at_level("INFO"):
        run(scenario())
    assert "slow_reader" in caplog.text


def test_a_client_that_takes_a_little_at_a_time_is_never_dropped() -> None:
    async def scenario() -> None:
        entry = make_entry(write_timeout_s=0.1)
        call = await start(entry, "/v1/completions")
        call.unsent = 1_000_000_000
        await push(entry, "r", 70)
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.5

        def reads_slowly() -> bool:
            call.unsent -= 1
            return loop.time() > end

        await until(reads_slowly)
        assert not call.closed
        await call.task  # it takes nothing any more
        assert entry.engine.aborts == [AbortReq("r", "slow_reader")]
        entry.engine.end("r", "slow_reader")

    run(scenario())
