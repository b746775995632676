"""Gate: too many calls, or too many bytes of their bodies, are refused before they cost anything; all is given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.messages import AdmissionOutput, TokenizedGenerateReqInput
from tests.support.asgi import Call, post, run
from tests.support.engine import Entry, hold

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def assert_refused(response: Any, retry_after: str = "1") -> None:
    assert (response.status, response.error["type"]) == (429, "overloaded_error")
    assert response.headers["retry-after"] == retry_after


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_one_call_too_many_is_refused_and_ends_of_others_make_room(stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_live_requests=2))
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        first = Call(entry.app, "/generate", {"text": "a", "rid": "a"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        second = Call(entry.app, "/v1/completions", parts=[])  # its body does not come
        await asyncio.sleep(0)
        entry.manager.handle(AdmissionOutput(retry_after_s=17))
        for path, body in (("/v1/chat/completions", CHAT), ("/generate", {"text": "a"}), ("/tokenize", {"prompt": "a"})):
            assert_refused(await post(entry.app, path, {**body, "stream": stream} if path != "/tokenize" else body), "17")
        assert (await Call(entry.app, "/health", b"", method="GET").response()).status == 200
        second.disconnect()
        await second.task
        entry.engine.answer = entry.engine.say("hi")
        assert (await post(entry.app, "/v1/chat/completions", {**CHAT, "stream": stream})).status == 200
        assert (await post(entry.app, "/abort_request", {"rid": "a"})).status == 200
        entry.engine.end("a", "aborted")
        await first.response()

    run(scenario())


def test_aborts_are_taken_where_nothing_else_is() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_live_requests=1))
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, "/generate", {"text": "a", "rid": "a"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        assert_refused(await post(entry.app, "/generate", {"text": "a"}))
        assert (await post(entry.app, "/abort_request", {"rid": "a"})).body == {"aborted": ["a"]}
        entry.engine.end("a", "aborted")
        await call.response()

    run(scenario())


def test_the_bytes_of_all_bodies_are_bounded_together() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_body_bytes=5000, max_held_body_bytes=8000))
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, "/generate", b'{"text": "a", "rid": "a"' + b" " * 4800 + b"}")
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        large = b'{"text": "b"' + b" " * 4000 + b"}"
        assert_refused(await post(entry.app, "/generate", b"", parts=[large[:2000], large[2000:]]))
        entry.engine.answer = entry.engine.say("hi")
        assert (await post(entry.app, "/generate", {"text": "small"})).status == 200
        entry.engine.say("done")(entry.engine.requests[0])
        assert (await call.response()).status == 200
        assert (await post(entry.app, "/generate", large)).status == 200

    run(scenario())


def test_what_was_refused_or_failed_is_given_back() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_live_requests=1, max_body_bytes=1024, max_held_body_bytes=1024))
        for _ in range(3):
            assert (await post(entry.app, "/generate", {"text": 5})).status == 400
            assert (await post(entry.app, "/generate", {"text": "x" * 2000})).status == 413
            assert (await post(entry.app, "/generate", {"text": "a"})).status == 200
        assert (entry.app._gate.calls, entry.app._gate.bytes) == (0, 0)

    run(scenario())


def test_choices_are_counted_as_requests_too() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_live_requests=4))
        entry.engine.answer = hold
        call = Call(entry.app, "/v1/completions", {"prompt": ["a", "b", "c"], "rid": "r"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 3)
        assert_refused(await post(entry.app, "/v1/completions", {"prompt": "a", "n": 2}))
        assert (await post(entry.app, "/v1/completions", {"prompt": "a", "n": 5})).status == 400  # it would never fit
        call.disconnect()
        await call.task

    run(scenario())
