"""The official Python `openai` client against a real server: each API it shares with us, sync and async, and its errors."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types import CreateEmbeddingResponse, Model

from millstream.messages import TokenizedGenerateReqInput
from tests.support.asgi import run
from tests.support.chat import assert_serves, script
from tests.support.engine import Entry
from tests.support.http import serving
from tests.support.openai_models import MODEL_EXTENSIONS, extras

HI: Any = [{"role": "user", "content": "hi"}]
ERROR_STATUS = {openai.BadRequestError: 400, openai.NotFoundError: 404, openai.ConflictError: 409, openai.RateLimitError: 429}


@pytest.fixture
def client(scripted_server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{scripted_server}/v1", api_key="none", max_retries=0) as client:
        yield client
    assert_serves(scripted_server)


def hello(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": script("Hel", "lo 🦕"), **more}


def test_a_chat_is_one_answer_plain_streamed_parsed_and_by_the_stream_helper(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(**hello())
    parsed = client.chat.completions.parse(**hello())
    chunks = list(client.chat.completions.create(**hello(stream=True)))
    with client.chat.completions.stream(**hello()) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    texts = [plain.choices[0].message.content, parsed.choices[0].message.content, "".join(deltas)]
    texts += [final.choices[0].message.content, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)]
    assert texts == ["Hello 🦕"] * 5
    assert parsed.choices[0].message.parsed is None  # nobody asked for a form
    assert [plain.choices[0].finish_reason, final.choices[0].finish_reason] == ["stop", "stop"]


def test_completions_are_the_same_plain_and_streamed(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "scripted", "prompt": [script("a", "b")[0]["content"], script("c")[0]["content"]], "n": 2}
    plain = client.completions.create(**body)
    streamed = ["", "", "", ""]
    for chunk in client.completions.create(**body, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert [choice.text for choice in plain.choices] == streamed == ["ab", "ab", "c", "c"]


def test_the_async_client_gets_the_same(scripted_server: str) -> None:
    async def scenario() -> None:
        async with openai.AsyncOpenAI(base_url=f"{scripted_server}/v1", api_key="none", max_retries=0) as client:
            plain, completion, response, embedding = await asyncio.gather(
                client.chat.completions.create(**hello()),
                client.completions.create(model="scripted", prompt=script("a", "b")[0]["content"]),
                client.responses.create(model="scripted", input=script("Hel", "lo")[0]["content"]),
                client.embeddings.create(model="scripted", input="a"),
            )
            assert plain.choices[0].message.content == "Hello 🦕"
            assert completion.choices[0].text == "ab"
            assert response.output_text == "Hello"
            assert len(embedding.data[0].embedding) == 8
            text = ""
            async for chunk in await client.chat.completions.create(**hello(stream=True)):
                text += chunk.choices[0].delta.content or ""
            assert text == "Hello 🦕"
            assert [model.id async for model in client.models.list()]
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**hello(temperature=-1))
            assert (caught.value.param, bool(caught.value.request_id)) == ("temperature", True)

    asyncio.run(scenario())


def test_models_are_listed_and_each_is_found_by_its_name(client: openai.OpenAI) -> None:
    listed = list(client.models.list())
    assert listed
    for model in listed:
        assert client.models.retrieve(model.id) == model
        assert extras(Model, model.model_dump(mode="json")) == MODEL_EXTENSIONS


def test_embeddings_are_the_same_in_both_encodings_and_have_openais_shape(client: openai.OpenAI, scripted_server: str) -> None:
    by_default = client.embeddings.create(model="scripted", input=["a", "b"])  # the client asks for base64
    as_floats = client.embeddings.create(model="scripted", input=["a", "b"], encoding_format="float")
    assert [each.embedding for each in by_default.data] == [pytest.approx(each.embedding) for each in as_floats.data]
    raw = httpx.post(f"{scripted_server}/v1/embeddings", json={"model": "", "input": "a", "encoding_format": "base64"}).json()
    data = base64.b64decode(raw["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(data) // 4}f", data)) == pytest.approx(as_floats.data[0].embedding)
    assert extras(CreateEmbeddingResponse, as_floats.model_dump(mode="json")) == set()
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="scripted", input="a", encoding_format="int8")  # type: ignore[call-overload]
    assert caught.value.param == "encoding_format"


def test_every_answer_has_a_request_id_of_its_own(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**hello())
    assert raw.parse().choices[0].message.content == "Hello 🦕"
    with client.chat.completions.with_streaming_response.create(**hello()) as response:
        response.read()
        streaming = response.request_id
    answers = [client.chat.completions.create(**hello()), client.responses.create(model="", input="hi", max_output_tokens=1)]
    ids = [raw.request_id, streaming, *(answer._request_id for answer in answers)]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    mine = client.chat.completions.create(**hello(), extra_headers={"X-Request-Id": "mine"})
    assert mine._request_id == "mine"


@pytest.mark.parametrize(
    ("api", "body", "kind", "param", "code"),
    [
        ("chat", hello(top_p=2), openai.BadRequestError, "top_p", None),
        ("chat", hello(model="nobody"), openai.NotFoundError, "model", "model_not_found"),
        ("chat", hello(stream=True, n=0), openai.BadRequestError, "n", None),
        ("chat", hello(max_tokens=10**7), openai.BadRequestError, "messages", "context_length_exceeded"),
        ("completions", {"model": "", "prompt": "a", "best_of": 0}, openai.BadRequestError, "best_of", None),
        ("embeddings", {"model": "nobody", "input": "a"}, openai.NotFoundError, "model", "model_not_found"),
        ("responses", {"model": "", "input": "a", "temperature": 1e9}, openai.BadRequestError, "temperature", None),
    ],
)
def test_errors_are_the_clients_classes_with_status_request_id_code_and_param(
    client: openai.OpenAI, api: str, body: dict[str, Any], kind: Any, param: str, code: str | None
) -> None:
    create: Any = client.chat.completions.create if api == "chat" else getattr(client, api).create
    with pytest.raises(kind) as caught:
        create(**body)
    error = caught.value
    assert (error.status_code, error.param) == (ERROR_STATUS[kind], param)
    assert code is None or error.code == code
    assert error.type == "invalid_request_error"
    assert error.request_id == error.response.headers["x-request-id"]


def test_a_fault_in_a_stream_is_raised_and_what_came_before_is_kept(client: openai.OpenAI) -> None:
    text = ""
    messages: Any = script("a", "b", "c", fault={"after": 2, "kind": "error"})
    with pytest.raises(openai.APIError, match="asked for an error"):
        for chunk in client.chat.completions.create(model="", messages=messages, stream=True):
            text += chunk.choices[0].delta.content or ""
    assert text == "ab"


def test_a_fault_before_any_text_is_an_internal_server_error(client: openai.OpenAI) -> None:
    messages: Any = script("a", fault={"after": 0, "kind": "error"})
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="", messages=messages)
    assert caught.value.status_code == 500


def test_a_client_that_runs_out_of_patience_ends_its_request(client: openai.OpenAI, scripted_server: str) -> None:
    slow: Any = script("a", delay_ms=60_000)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).chat.completions.create(model="", messages=slow)
    while httpx.get(f"{scripted_server}/server_info").json()["live_requests"]:
        pass  # each look is a round trip through all processes


def test_a_deadline_is_not_tried_again(client: openai.OpenAI) -> None:
    slow: Any = script("a", delay_ms=60_000)
    with pytest.raises(openai.InternalServerError) as caught:
        client.with_options(max_retries=3).chat.completions.create(model="", messages=slow, extra_body={"timeout": 0.05})
    assert (caught.value.status_code, caught.value.code) == (504, "deadline")
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_comes_back_when_a_full_server_told_it_to(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def scenario() -> None:
        entry = Entry()

        def answer(request: TokenizedGenerateReqInput) -> None:
            if waits:
                entry.engine.say("fine")(request)
            else:
                entry.engine.reject(request.rid, retry_after_s=17)

        entry.engine.answer = answer
        async with (
            serving(entry) as port,
            openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=1) as client,
        ):
            made: Any = await client.chat.completions.create(model="tiny", messages=HI, stream=stream)
            text = [c.choices[0].delta.content or "" async for c in made] if stream else [made.choices[0].message.content]
            assert "".join(text) == "fine"

    monkeypatch.setattr("anyio.sleep", sleep)
    run(scenario())
    assert waits == [17]


def test_a_full_server_is_a_rate_limit_error_with_the_time_to_come_back() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda request: entry.engine.reject(request.rid, retry_after_s=17)
        async with (
            serving(entry) as port,
            openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
        ):
            with pytest.raises(openai.RateLimitError) as caught:
                await client.chat.completions.create(model="tiny", messages=HI)
            assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (429, "17")
            assert caught.value.request_id

    run(scenario())
