"""POST /v1/messages: what comes out, whole and streamed, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config import ServerConfig
from millstream.entry.http.protocol import MAX_HEADER_BYTES
from millstream.messages import Length, Stop, TokenizedGenerateReqInput
from tests.support.asgi import Call, Response, get, post, run
from tests.support.engine import CONTEXT_LENGTH, NAMES, TOKENIZER, Entry, hold, state
from tests.support.http import serving
from tests.support.short_way import ShortWay
from tests.unit.entry.anthropic.harness import COUNT, HI, PATH, ask, count_of, error_of, events_of, joined_text, message_of


def test_a_whole_answer_has_the_shape_of_anthropic() -> None:
    response, entry = ask({"rid": "mine", "model": NAMES[1]}, "Hel", "lo", finish=Stop(7))
    message = message_of(response)
    assert (message.id, message.type, message.role, message.model) == ("msg_mine", "message", "assistant", NAMES[1])
    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [("text", "Hello")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert entry.engine.requests[0].rid == "mine"
    assert response.headers["request-id"].startswith("req_")


def test_input_tokens_are_those_that_no_cache_had() -> None:
    response, entry = ask({}, "Hel", "lo")
    prompt = len(entry.engine.requests[0].input_ids)
    assert response.body["usage"] == {
        "input_tokens": prompt - 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 1,
        "output_tokens": 2,
        "service_tier": "standard",
    }


@pytest.mark.parametrize(
    ("finish", "reason", "sequence"),
    [
        (Stop(), "end_turn", None),
        (Stop(3), "end_turn", None),
        (Stop("END"), "stop_sequence", "END"),
        (Length(8), "max_tokens", None),
        (Length(5), "model_context_window_exceeded", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_stop_reason_says_what_ended_the_answer(finish: Any, reason: str, sequence: str | None, stream: bool) -> None:
    response, _ = ask({"stream": stream, "stop_sequences": ["END"]}, "a", finish=finish)
    if stream:
        delta = next(data["delta"] for name, data in events_of(response.content) if name == "message_delta")
    else:
        delta = {name: response.body[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
    assert delta == {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}


def test_a_stream_is_a_message_of_one_block() -> None:
    response, entry = ask({"stream": True, "rid": "mine"}, "Hel", "", "lo")
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.content)
    names = [name for name, _ in events]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert joined_text(events) == "Hello"
    prompt = len(entry.engine.requests[0].input_ids)
    start = events[0][1]["message"]
    assert (start["id"], start["content"], start["stop_reason"]) == ("msg_mine", [], None)
    assert (start["usage"]["input_tokens"], start["usage"]["output_tokens"]) == (prompt, 0)
    assert events[-2][1]["usage"] == {
        "input_tokens": prompt - 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1, "output_tokens": 3,
    }  # fmt: skip


@given(st.lists(st.text(), min_size=1, max_size=6))
def test_joined_deltas_are_the_plain_answer(pieces: list[str]) -> None:
    plain, _ = ask({}, *pieces)
    streamed, _ = ask({"stream": True}, *pieces)
    assert joined_text(events_of(streamed.content)) == plain.body["content"][0]["text"] == "".join(pieces)


def sent(body: dict[str, Any]) -> TokenizedGenerateReqInput:
    """What the engine gets of a request."""
    response, entry = ask(body)
    assert response.status == 200, response.content
    return entry.engine.requests[0]


def test_sampling_fields_reach_the_engine() -> None:
    request = sent(
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "seed": 11,
            "stop_sequences": ["a", "b"],
            "cache_salt": "x",
            "max_tokens": 3,
        }
    )
    params = request.sampling
    assert (params.temperature, params.top_p, params.top_k, params.seed, params.stop) == (0.5, 0.9, 5, 11, ("a", "b"))
    assert request.max_new_tokens == 3
    assert request.cache_namespace == "1:x"


def test_defaults_are_anthropics() -> None:
    params = sent({"top_k": 0}).sampling
    assert (params.temperature, params.top_p, params.top_k, params.stop) == (1.0, 1.0, -1, ())


def test_max_tokens_beyond_the_context_are_shortened_to_what_it_leaves() -> None:
    request = sent({"max_tokens": 100_000})
    assert request.max_new_tokens == CONTEXT_LENGTH - len(request.input_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_at_all_computes_the_prompt(stream: bool) -> None:
    async def scenario() -> TokenizedGenerateReqInput:
        entry = Entry()

        def answer(request: TokenizedGenerateReqInput) -> None:
            entry.engine.accept(request.rid)
            entry.engine.row(request.rid, "", finish=Length(0), ids=[])

        entry.engine.answer = answer
        response = await post(entry.app, PATH, {"max_tokens": 0, "messages": HI, "stream": stream})
        if stream:
            delta = events_of(response.content)[-2][1]
            assert (delta["delta"]["stop_reason"], delta["usage"]["output_tokens"]) == ("max_tokens", 0)
        else:
            message = message_of(response)
            assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 0)
        return entry.engine.requests[0]

    assert run(scenario()).max_new_tokens == 0


def prompt(body: dict[str, Any]) -> str:
    """The prompt text of a request."""
    return TOKENIZER.decode(sent(body).input_ids, skip_special_tokens=False)


def chat_prompt(messages: list[dict[str, Any]], **more: Any) -> str:
    """The prompt text that the chat route makes."""

    async def scenario() -> str:
        entry = Entry()
        response = await post(entry.app, "/v1/chat/completions", {"messages": messages, **more})
        assert response.status == 200, response.content
        return TOKENIZER.decode(entry.engine.requests[0].input_ids, skip_special_tokens=False)

    return run(scenario())


def test_the_prompt_is_that_of_the_same_chat() -> None:
    body = {
        "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    }
    assert prompt(body) == chat_prompt([{"role": "system", "content": "Be short."}, {"role": "user", "content": "ab"}])


def test_an_assistant_message_at_the_end_is_continued() -> None:
    messages = [*HI, {"role": "assistant", "content": "The answer is ("}]
    text = prompt({"messages": messages})
    assert text.endswith("The answer is (")
    assert text == chat_prompt(messages, continue_final_message=True)


@pytest.mark.parametrize(
    "messages",
    [
        HI,
        [*HI, {"role": "assistant", "content": "The"}],
        [{"role": "user", "content": [{"type": "text", "text": "Grüße, 世界 🙂"}]}],
        [{"role": "user", "content": "a control token of the template, as text: <|im_end|>"}],
    ],
)
def test_count_tokens_counts_the_prompt_of_the_same_request(messages: list[Any]) -> None:
    body = {"messages": messages, "system": "Be kind."}
    response, entry = ask(body)
    counted, _ = ask(body, path=COUNT)
    assert count_of(counted) == len(entry.engine.requests[0].input_ids)
    usage = response.body["usage"]
    assert count_of(counted) == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_counting_goes_beyond_the_context_and_asks_nothing_of_the_engine() -> None:
    response, entry = ask({"messages": [{"role": "user", "content": "word " * 2 * CONTEXT_LENGTH}]}, path=COUNT)
    assert count_of(response) > CONTEXT_LENGTH
    assert entry.engine.sent == []


def refused(body: dict[str, Any], *, path: str = PATH, status: int = 400) -> dict[str, Any]:
    """The error of a body."""
    response, entry = ask(body, path=path)
    assert response.status == status, response.content
    assert entry.engine.sent == []
    return error_of(response)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", None), ("max_tokens", -1), ("max_tokens", "8"), ("max_tokens", 2**31),
        ("max_tokens", 1.5), ("max_tokens", 10**30), ("temperature", 1.01), ("temperature", -0.1), ("temperature", "hot"),
        ("top_p", 0), ("top_p", 1.1), ("top_k", -1), ("top_k", 2**31), ("top_k", 0.5), ("stop_sequences", "END"),
        ("stop_sequences", ["x"] * 33),
        ("stop_sequences[1]", ["a", ""]), ("stop_sequences[0]", ["a" * 1025]), ("seed", 2**64), ("stream", 1), ("timeout", 0),
        ("rid", ""), ("priority", 1), ("messages", None), ("messages", []), ("messages", "hi"), ("messages", {}), ("system", 5),
        ("messages", [*HI] * 10_001), ("tools[0].input_schema", [{"name": "f"}]), ("tool_choice", {"type": "any"}),
        ("thinking", {"type": "enabled", "budget_tokens": 1024}), ("thinking.type", {"type": "between_tools"}),
        ("thinking.budget_tokens", {"type": "enabled"}), ("thinking.budget_tokens", {"type": "adaptive", "budget_tokens": 5}),
        ("service_tier", "priority"), ("container", {}), ("output_config.effort", {"effort": "low"}), ("speed", "fast"),
        ("mcp_servers", [{}]), ("stop", ["x"]), ("temprature", 1), ("n", 2), ("chat_template_kwargs", {"messages": 1}),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_honoured_is_refused_by_name(field: str, value: Any) -> None:
    error = refused({re.split(r"[.[]", field)[0]: value})
    assert error["type"] == "invalid_request_error"
    assert field in error["message"] or field == "chat_template_kwargs"
    assert error["details"]["param"] == field


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "u"}}, {"service_tier": "auto"}, {"service_tier": "standard_only"}, {"tools": []},
        {"thinking": {"type": "disabled"}}, {"cache_control": {"type": "ephemeral"}}, {"tool_choice": {"type": "auto"}},
        {"thinking": {"type": "adaptive", "display": None}}, {"output_config": {}},
        {"speed": "standard"}, {"temperature": 0}, {"temperature": 1}, {"system": ""}, {"stop_sequences": []}, {"tools": None},
    ],
)  # fmt: skip
def test_a_field_that_asks_for_nothing_passes(fields: dict[str, Any]) -> None:
    assert sent(fields).sampling.stop == ()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("messages[0].content", 5),
        ("messages[0].content", None),
        ("messages[0].content[0]", ["hi"]),
        ("messages[0].content[1].type", [{"type": "text", "text": "a"}, {"type": "image", "source": {}}]),
        ("messages[0].content[0].type", [{"type": "document", "source": {}}]),
        ("messages[0].content[0].type", [{"type": "redacted_thinking", "data": "x"}]),
        ("messages[0].content[0].type", [{"text": "a"}]),
        ("messages[0].content[0].type", [{"type": ["text"], "text": "a"}]),
        ("messages[0].content[0].text", [{"type": "text"}]),
        ("messages[0].content[0].text", [{"type": "text", "text": 5}]),
        ("messages[0].content[0].texts", [{"type": "text", "text": "a", "texts": 1}]),
    ],
)
@pytest.mark.parametrize("route", [PATH, COUNT])
def test_content_that_cannot_be_read_is_refused_by_its_path(path: str, content: Any, route: str) -> None:
    error = refused({"messages": [{"role": "user", "content": content}]}, path=route)
    assert error["details"]["param"] == path
    assert path in error["message"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("messages[0]", "hi"),
        ("messages[0].role", {"role": "tool", "content": "x"}),
        ("messages[0].name", {**HI[0], "name": "x"}),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_by_its_path(path: str, message: Any) -> None:
    assert refused({"messages": [message]})["details"]["param"] == path


@pytest.mark.parametrize("block", [{"type": "image", "source": {}}, {"type": "text"}, 5])
def test_a_system_block_that_is_no_text_is_refused_by_its_path(block: Any) -> None:
    assert refused({"system": [block]})["details"]["param"].startswith("system[0]")


def test_a_prompt_beyond_the_context_is_refused_with_the_limit() -> None:
    error = refused({"messages": [{"role": "user", "content": "word " * 2 * CONTEXT_LENGTH}]})
    assert error["details"] == {"error_code": "context_length_exceeded", "param": "messages"}
    assert str(CONTEXT_LENGTH) in error["message"]


def failure(
    entry: Entry, body: Any = None, *, method: str = "POST", path: str = PATH, **more: Any
) -> tuple[int, dict[str, Any]]:
    """Status and error of a request that fails, whatever for."""

    async def scenario() -> Response:
        body_or_default = {"max_tokens": 8, "messages": HI} if body is None else body
        return await Call(entry.app, path, body_or_default, method=method, **more).response()

    response = run(scenario())
    return response.status, error_of(response)


@pytest.mark.parametrize(
    ("config", "request_", "status", "kind"),
    [
        ({}, {"body": b"{"}, 400, "invalid_request_error"),
        ({}, {"body": b"[]"}, 400, "invalid_request_error"),
        ({}, {"headers": {"content-type": None}}, 400, "invalid_request_error"),
        ({}, {"headers": {"content-type": "text/plain"}}, 415, "invalid_request_error"),
        ({}, {"method": "GET"}, 405, "invalid_request_error"),
        ({}, {"path": "/v1/messages/batches"}, 404, "not_found_error"),
        ({}, {"body": {"model": "gpt", "max_tokens": 1, "messages": HI}}, 404, "not_found_error"),
        ({"max_body_bytes": 1024}, {"body": {"max_tokens": 1, "messages": HI, "system": "x" * 2000}}, 413, "request_too_large"),
        ({"api_key": ("secret",)}, {}, 401, "authentication_error"),
        ({"api_key": ("secret",)}, {"headers": {"x-api-key": "wrong"}}, 401, "authentication_error"),
    ],
)  # fmt: skip
def test_what_fails_before_the_handler_is_said_in_anthropics_words(
    config: dict[str, Any], request_: dict[str, Any], status: int, kind: str
) -> None:
    found, error = failure(Entry(ServerConfig(**config)), **request_)
    assert (found, error["type"]) == (status, kind)


def test_a_server_that_loads_is_overloaded() -> None:
    status, error = failure(Entry(ready=False))
    assert (status, error["type"], error["details"]["error_code"]) == (503, "overloaded_error", "loading")


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_a_rate_limit_with_a_time_to_come_back(stream: bool) -> None:
    async def scenario() -> Response:
        entry = Entry()
        entry.engine.answer = lambda request: entry.engine.reject(request.rid, retry_after_s=7)
        return await post(entry.app, PATH, {"max_tokens": 8, "messages": HI, "stream": stream})

    response = run(scenario())
    assert (response.status, error_of(response)["type"]) == (429, "rate_limit_error")
    assert response.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("cause", "status", "kind"),
    [("engine_error", 500, "api_error"), ("deadline", 504, "timeout_error"), ("aborted", 499, "invalid_request_error")],
)
def test_an_end_that_is_no_success_is_an_error_before_the_first_byte_and_an_event_after_it(
    cause: str, status: int, kind: str
) -> None:
    async def scenario(stream: bool) -> Response:
        entry = Entry()
        entry.engine.answer = lambda request: entry.engine.accept(request.rid)
        call = Call(entry.app, PATH, {"max_tokens": 8, "messages": HI, "stream": stream, "rid": "r"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        await asyncio.sleep(0)
        entry.engine.row("r", "some")
        entry.engine.end("r", cause)
        response = await call.response()
        assert not call.closed
        return response

    plain = run(scenario(False))
    assert (plain.status, error_of(plain)["type"]) == (status, kind)
    streamed = run(scenario(True))
    assert streamed.status == 200
    name, data = events_of(streamed.content)[-1]
    assert (name, data["error"]["type"], data["error"]["details"]["error_code"]) == ("error", kind, cause)
    assert data["request_id"] == streamed.headers["request-id"]
    assert b"message_stop" not in streamed.content


@pytest.mark.parametrize("stream", [False, True])
def test_the_death_of_the_scheduler_is_said_in_anthropics_words(stream: bool) -> None:
    async def scenario() -> Response:
        entry = Entry()
        entry.engine.answer = lambda request: entry.engine.accept(request.rid)
        call = Call(entry.app, PATH, {"max_tokens": 8, "messages": HI, "stream": stream, "rid": "r"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        await asyncio.sleep(0)
        entry.engine.row("r", "some")
        if stream:
            await call.until(b"some")
        entry.service.update(state(scheduler="FAILED"))
        return await call.response()

    response = run(scenario())
    if stream:
        name, data = events_of(response.content)[-1]
        assert (name, data["error"]["type"]) == ("error", "overloaded_error")
    else:
        assert (response.status, error_of(response)["type"]) == (503, "overloaded_error")
        assert int(response.headers["retry-after"]) > 0


def test_a_row_is_on_the_connection_before_its_delivery_returns() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda request: entry.engine.accept(request.rid)
        short = ShortWay()
        body = {"max_tokens": 8, "messages": HI, "stream": True, "rid": "r"}
        short.call = call = Call(entry.app, PATH, body, direct=short)
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        entry.engine.row("r", "first")
        await call.until(b"first")
        await asyncio.sleep(0)
        entry.engine.row("r", "now")
        assert joined_text(events_of(short.written[-1])) == "now"
        entry.engine.row("r", "last", finish=Stop())
        assert joined_text(events_of((await call.response()).content)) == "firstnowlast"

    run(scenario())


def test_a_silent_stream_is_kept_alive_by_pings() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(sse_keep_alive_s=0.01))
        entry.engine.answer = lambda request: entry.engine.accept(request.rid)
        call = Call(entry.app, PATH, {"max_tokens": 8, "messages": HI, "stream": True, "rid": "r"})
        await call.until(b'"ping"}\n\nevent: ping')
        entry.engine.row("r", "late", finish=Stop())
        events = events_of((await call.response()).content)
        assert joined_text(events) == "late"

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, PATH, {"max_tokens": 8, "messages": HI, "stream": stream})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        call.disconnect()
        await call.task
        assert [(abort.rid, abort.cause) for abort in entry.engine.aborts] == [(entry.engine.requests[0].rid, "client_gone")]

    run(scenario())


def test_a_clients_own_request_id_is_the_answers() -> None:
    response, _ = ask({}, headers={"X-Request-Id": "mine"})
    assert (response.headers["request-id"], response.headers["x-request-id"]) == ("mine", "mine")


def test_versions_and_betas_are_taken_and_change_nothing() -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "some-beta,another"}
    plain, _ = ask({"rid": "r"})
    response, _ = ask({"rid": "r"}, headers=headers, query=b"beta=true")
    assert response.body == plain.body


def test_other_routes_keep_their_own_errors() -> None:
    async def scenario() -> None:
        entry = Entry()
        for path in ("/v1/messagesx", "/v1/nothing"):
            response = await get(entry.app, path)
            assert (response.status, response.error["code"]) == (404, "not_found")
            assert "request-id" not in response.headers

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "status", "kind", "code"),
    [
        (b"X-Big: " + b"a" * (MAX_HEADER_BYTES + 1), 431, "invalid_request_error", "headers_too_large"),
        (
            b'Content-Type: application/json\r\nX-Request-Id: mine\r\nContent-Length: 99\r\n\r\n{"max',
            408,
            "invalid_request_error",
            "request_timeout",
        ),
    ],
)
def test_what_is_no_whole_request_is_refused_in_anthropics_words_too(sent: bytes, status: int, kind: str, code: str) -> None:
    async def scenario() -> None:
        async with serving(Entry(ServerConfig(read_timeout_s=0.1))) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /v1/messages?beta=true HTTP/1.1\r\nHost: x\r\n" + sent)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        assert head.startswith(b"HTTP/1.1 %d " % status)
        answer = json.loads(body)
        assert (answer["type"], answer["error"]["type"], answer["error"]["details"]["error_code"]) == ("error", kind, code)
        assert f"request-id: {answer['request_id']}" in head.decode().split("\r\n")
        assert (answer["request_id"] == "mine") == (b"mine" in sent)

    run(scenario())
