"""Requests to the Anthropic routes, and their answers read as strictly as the official client's types allow."""

from __future__ import annotations

import json
from typing import Any

import pydantic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse

from tests.support.asgi import Response, post, run
from tests.support.engine import Entry
from tests.support.known import known

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
EVENT: Any = pydantic.TypeAdapter(RawMessageStreamEvent)


def ask(
    body: dict[str, Any], *pieces: str, finish: Any = None, entry: Entry | None = None, path: str = PATH, **more: Any
) -> tuple[Response, Entry]:
    """One request, start to end; nothing of it may be left."""

    async def scenario() -> tuple[Response, Entry]:
        server = entry or Entry()
        if pieces:
            server.engine.answer = server.engine.say(*pieces, finish=finish)
        limit = {"max_tokens": 8} if path == PATH else {}
        response = await post(server.app, path, {"model": "tiny", "messages": HI, **limit, **body}, **more)
        assert server.manager.live_requests == 0
        return response, server

    return run(scenario())


def message_of(response: Response) -> Message:
    """The message of a plain answer."""
    assert response.status == 200, response.content
    return known(Message.model_validate(response.body, strict=True))


def count_of(response: Response) -> int:
    """The tokens that were counted."""
    assert response.status == 200, response.content
    return known(MessageTokensCount.model_validate(response.body, strict=True)).input_tokens


def events_of(content: bytes) -> list[tuple[str, Any]]:
    """The events of a stream, each with its name and its data, which must say the same type."""
    assert content.endswith(b"\n\n"), content[-200:]
    events = []
    for block in content.split(b"\n\n")[:-1]:
        if block.startswith(b":"):
            assert b"\n" not in block
            continue
        first, second = block.split(b"\n")
        name = first.removeprefix(b"event: ").decode()
        data = json.loads(second.removeprefix(b"data: "))
        assert data["type"] == name
        if name not in ("ping", "error"):
            known(EVENT.validate_python(data, strict=True))
        events.append((name, data))
    return events


def joined_text(events: list[tuple[str, Any]]) -> str:
    """The text of a stream."""
    return "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")


def error_of(response: Response) -> dict[str, Any]:
    """The error of an answer, in Anthropic's shape, with the id that its header has."""
    body = response.body
    assert set(body) == {"type", "error", "request_id"}
    assert body["request_id"] == response.headers["request-id"]
    assert set(body["error"]) <= {"type", "message", "details"}
    assert body["error"]["message"]
    if body["error"]["type"] not in ("request_too_large", "conflict_error"):  # documented, and not in the client's union
        ErrorResponse.model_validate(body, strict=True)
    error: dict[str, Any] = body["error"]
    return error
