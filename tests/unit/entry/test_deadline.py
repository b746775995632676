"""Deadlines in the entry: the shortest counts, what is no time is refused, and one that passes before dispatch is a 504."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.messages import TokenizedGenerateReqInput
from tests.support.asgi import Call, post, run
from tests.support.engine import TOKENIZER, Entry

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
    GENERATE: {"text": "hi"},
}
every_route = pytest.mark.parametrize("path", BODIES)


@every_route
@pytest.mark.parametrize(
    ("field", "header", "option", "expected"),
    [
        (None, None, None, None),
        (5, None, None, 5),
        (None, "2.5", None, 2.5),
        (None, None, 60.0, 60),
        (5, "7", 60.0, 5),
        (50, " 7 ", 60.0, 7),
        (500, "700", 60.0, 60),
    ],
)
def test_the_shortest_of_field_header_and_option_counts(
    path: str, field: float | None, header: str | None, option: float | None, expected: float | None
) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(request_timeout_s=option))
        body = BODIES[path] | ({} if field is None else {"timeout": field})
        response = await post(entry.app, path, body, headers={} if header is None else {"x-request-timeout": header})
        assert response.status == 200
        (sent,) = entry.engine.requests
        assert (sent.deadline is None) == (expected is None)
        if expected is not None:
            assert sent.deadline == pytest.approx(sent.timing.received + expected)

    run(scenario())


@every_route
@pytest.mark.parametrize("value", [0, -1, 86401, 1e300, "soon"])
def test_a_field_that_is_no_time_is_refused(path: str, value: Any) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await post(entry.app, path, {**BODIES[path], "timeout": value})
        assert (response.status, response.error["param"]) == (400, "timeout")
        assert entry.engine.sent == []

    run(scenario())


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "", "1e9", "é"])
def test_a_header_that_is_no_time_is_refused(value: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await post(entry.app, CHAT, BODIES[CHAT], headers={"x-request-timeout": value})
        assert (response.status, response.error["param"]) == (400, "X-Request-Timeout")
        assert entry.engine.sent == []

    run(scenario())


class SlowTokenizer:
    """Encodes when it is told to, in a thread."""

    vocab_size = TOKENIZER.vocab_size

    def __init__(self) -> None:
        self.go = threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert self.go.wait(10)
        return [5]


@every_route
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_deadline_that_passes_while_a_prompt_is_tokenised_is_a_504(path: str, stream: bool) -> None:
    async def scenario() -> None:
        tokenizer = SlowTokenizer()
        entry = Entry(context_length=100_000, tokenizer=tokenizer)
        long = "word " * 1000
        text: dict[str, Any] = {
            CHAT: {"messages": [{"role": "user", "content": long}]},
            COMPLETIONS: {"prompt": long},
            GENERATE: {"text": long},
        }
        response = await post(entry.app, path, {**text[path], "stream": stream, "timeout": 0.02, "rid": "r"})
        assert (response.status, response.error["type"], response.error["code"]) == (504, "timeout_error", "deadline")
        assert response.error["message"] == "The request did not end within 0.02 s."
        assert (entry.engine.sent, entry.manager.live_requests) == ([], 0)
        tokenizer.go.set()

    run(scenario())


def test_a_deadline_that_passes_while_a_template_renders_is_a_504(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        entry = Entry(context_length=100_000)
        go = threading.Event()
        monkeypatch.setattr(entry.service.chat, "render", lambda *_, **__: "x" if go.wait(10) else "")
        body = {"messages": [{"role": "user", "content": "word " * 1000}], "timeout": 0.02}
        response = await post(entry.app, CHAT, body)
        go.set()
        assert (response.status, response.error["code"]) == (504, "deadline")
        assert (entry.engine.sent, entry.manager.live_requests) == ([], 0)

    run(scenario())


@every_route
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_deadline_after_admission_is_a_504_or_an_error_event(path: str, stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: (entry.engine.accept(sent.rid), entry.engine.row(sent.rid, "par"))
        call = Call(entry.app, path, {**BODIES[path], "stream": stream, "rid": "r", "timeout": 3})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        if stream:
            await call.until(b"par")
        entry.engine.end("r", "deadline", "The request did not end within 3 s.", 504)
        response = await call.response()
        if stream:
            assert response.status == 200
            error = response.events[-1].data["error"]
            assert b"[DONE]" not in response.content
        else:
            assert (response.status, response.headers["x-should-retry"]) == (504, "false")
            error = response.error
        assert (error["type"], error["code"]) == ("timeout_error", "deadline")
        assert (entry.manager.live_requests, entry.engine.aborts) == (0, [])

    run(scenario())
