"""Routing, bodies and errors: everything a client does wrong comes back in one envelope, with the status it deserves."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from millstream.config import ServerConfig
from tests.support.asgi import Call, get, post, run
from tests.support.engine import Entry

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nope", 404), ("POST", "/", 405), ("GET", CHAT, 405), ("OPTIONS", CHAT, 405),
        ("DELETE", "/v1/models/x", 405),
        ("GET", "/v1/models/", 404), ("POST", "/v1/images", 404), ("GET", "/v1/chat/completions/", 404),
    ],
)  # fmt: skip
def test_what_the_router_refuses_has_the_envelope(method: str, path: str, status: int) -> None:
    async def scenario() -> None:
        response = await Call(Entry().app, path, b"", method=method).response()
        assert response.status == status
        assert response.error["type"] == "invalid_request_error"
        if status == 405:
            assert response.headers["allow"]

    run(scenario())


def test_head_is_answered_like_get() -> None:
    async def scenario() -> None:
        assert (await Call(Entry().app, "/health", b"", method="HEAD").response()).status == 200

    run(scenario())


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":[{"role":"user","content":"hi"}],"temperature":NaN}',
        b'{"messages":[{"role":"user","content":"hi"}],"top_p":Infinity}',
        b'{"messages":[{"role":"user","content":"hi"}],"temperature":1e999}',
        b'{"messages":[{"role":"user","content":"bad \\ud83d end"}]}',
        b'{"messages":[{"role":"user","content":"hi"}],"stop":["\\udc00"]}',
        b'{"messages":[{"role":"user","content":"hi"}],"seed":1' + b"0" * 60 + b"}",
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"hi"}]',
        b"",
        b"[]",
        b'"text"',
        b"null",
        b"[" * 100_000,
        b'{"messages":' * 3000,
    ],
)
def test_what_is_not_a_json_object_of_ours_is_a_400(raw: bytes) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await post(entry.app, CHAT, raw)
        assert response.status == 400
        assert response.error["type"] == "invalid_request_error"
        assert (await post(entry.app, CHAT, GOOD)).status == 200

    run(scenario())


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200), ("Application/JSON; charset=utf-8", 200), (None, 400),
        ("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("", 415),
    ],
)  # fmt: skip
def test_only_json_is_read(content_type: str | None, status: int) -> None:
    async def scenario() -> None:
        response = await post(Entry().app, CHAT, GOOD, headers={"content-type": content_type})
        assert response.status == status
        codes = {400: "missing_content_type", 415: "unsupported_media_type"}
        if status != 200:
            assert response.error["code"] == codes[status]

    run(scenario())


@pytest.mark.parametrize(
    ("encoding", "status"), [(None, 200), ("identity", 200), ("gzip", 415), ("Identity, br", 415), ("", 200)]
)
def test_a_compressed_body_is_refused_by_its_encoding_and_not_as_bad_json(encoding: str | None, status: int) -> None:
    async def scenario() -> None:
        response = await post(Entry().app, CHAT, GOOD, headers={"content-encoding": encoding})
        assert response.status == status
        if status != 200:
            assert response.error["code"] == "unsupported_content_encoding"
            assert str(encoding) in response.error["message"]

    run(scenario())


def test_a_body_over_the_limit_is_refused_by_its_declaration_or_while_it_comes() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_body_bytes=1000))
        declared = Call(entry.app, CHAT, parts=[], headers={"content-length": "1001"})
        assert (await declared.response()).status == 413
        counted = await post(entry.app, CHAT, parts=[b"x" * 600, b"x" * 600, b"never read"])
        assert (counted.status, counted.error["code"]) == (413, "body_too_large")
        assert "1000" in counted.error["message"]
        parts = [b'{"messages":[{"role":"user",', b'"content":"hi"}]}']
        assert (await post(entry.app, CHAT, parts=parts)).status == 200

    run(scenario())


def test_a_client_that_leaves_in_its_body_gets_nothing_and_leaves_nothing() -> None:
    async def scenario() -> None:
        entry = Entry()
        call = Call(entry.app, CHAT, parts=[b'{"mess', b"never"])
        call._incoming.get_nowait()
        call._incoming.get_nowait()
        call.disconnect()
        await call.task
        assert (call.sent, entry.engine.sent) == ([], [])

    run(scenario())


def test_our_own_fault_is_a_500_in_the_envelope_that_tells_nothing_about_us(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        entry = Entry()

        def fail(message: Any) -> None:
            raise KeyError("secret path")

        entry.engine.send = fail  # type: ignore[method-assign]
        response = await post(entry.app, CHAT, GOOD)
        assert (response.status, response.error["code"]) == (500, "engine_error")
        assert "secret" not in response.content.decode()
        assert entry.manager.live_requests == 0

    with caplog.at_level(logging.ERROR):
        run(scenario())
    assert "secret path" in caplog.text


def test_each_request_leaves_one_line_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        entry = Entry()
        await post(entry.app, CHAT, {"messages": [{"role": "user", "content": "SECRET"}], "rid": "r1"})
        await post(entry.app, CHAT, {**GOOD, "max_tokens": 10**6})
        await get(entry.app, "/nope")

    with caplog.at_level(logging.DEBUG, logger="millstream"):
        run(scenario())
    ends = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request ")]
    assert len([line for line in ends if line.startswith("request r1 api=chat model=tiny cause=stop")]) == 1
    assert len([line for line in ends if "cause=rejected" in line]) == 1
    assert "code=context_length_exceeded" in caplog.text
    assert "stages_ms" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_client_cannot_write_lines_of_its_own_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        app = Entry().app
        await get(app, "/x\n2026-01-01 I entry       forged")
        await post(app, CHAT, {**GOOD, "a\nb" * 1000: 1})

    with caplog.at_level("INFO", logger="millstream"):
        run(scenario())
    messages = [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused")]
    assert len(messages) == 2
    assert all("\n" not in message and len(message) < 400 for message in messages)
