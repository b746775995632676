"""/v1/responses as programs use it: OpenAI's own client, sync and async, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from millstream.entry.openai.responses.ids import keeper
from tests.support.chat import assert_serves
from tests.support.chat import script as chat_script
from tests.support.server import assert_ledger_comes_to_rest, running_server, server_info

MODEL = ""  # whichever is served


def script(*pieces: Any, **more: Any) -> str:
    """An input whose answer is scripted."""
    return chat_script(*pieces, **more)[0]["content"]


ENDLESS = script(*["x"] * 400, step_ms=50)


@pytest.fixture
def client(scripted_server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{scripted_server}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_response_is_made_read_listed_and_deleted(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model=MODEL, input=script("Hel", "lo"), instructions="Be brief.", metadata={"a": "b"}, extra_body={"top_k": 5}
    )
    assert (made.output_text, made.status, made.metadata) == ("Hello", "completed", {"a": "b"})
    assert client.responses.retrieve(made.id) == made
    (item,) = client.responses.input_items.list(made.id)
    assert item.type == "message"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_every_event_of_a_stream_is_one_that_openai_knows(client: openai.OpenAI, scripted_server: str) -> None:
    known: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    events = list(client.responses.create(model=MODEL, input=script("Hel", "lo", {"bytes": "f09fa695"}), stream=True))
    for event in events:
        assert known.validate_python(event.model_dump()).type == event.type
        assert not event.model_extra
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello🦕"
    assert client.responses.retrieve(last.response.id) == last.response
    assert last.response.output_text == "Hello🦕"
    assert_serves(scripted_server)


def test_the_stream_helper_gathers_the_same_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=script("Hel", "lo")) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == "Hello"
    assert client.responses.retrieve(final.id).output_text == "Hello"


def test_a_stream_that_reaches_the_limit_is_incomplete(client: openai.OpenAI) -> None:
    *_, last = client.responses.create(model=MODEL, input=script("Hel", "lo"), max_output_tokens=1, stream=True)
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_a_conversation_goes_on_by_the_id_of_its_last_response(client: openai.OpenAI) -> None:
    one = client.responses.create(model=MODEL, input=script("one"))
    two = client.responses.create(model=MODEL, input=script("two"), previous_response_id=one.id)
    again = client.responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": script("one")},
            *one.output,  # type: ignore[list-item]  # as OpenAI's own examples do
            {"role": "user", "content": script("two")},
        ],
    )
    assert two.usage is not None
    assert again.usage is not None
    assert two.usage.input_tokens == again.usage.input_tokens
    counted = client.responses.input_tokens.count(model=MODEL, input=script("two"), previous_response_id=one.id)
    assert counted.input_tokens == two.usage.input_tokens
    assert [item.id for item in client.responses.input_items.list(two.id, order="asc", limit=1)][1] == one.output[0].id


def test_a_background_response_is_polled_and_cancelled(client: openai.OpenAI, scripted_server: str) -> None:
    done = client.responses.create(model=MODEL, input=script("Hel", "lo"), background=True)
    while done.status in ("queued", "in_progress"):
        done = client.responses.retrieve(done.id)
    assert (done.status, done.output_text) == ("completed", "Hello")
    running = client.responses.create(model=MODEL, input=ENDLESS, background=True)
    cancelled = client.responses.cancel(running.id)
    assert cancelled.status == "cancelled"
    assert client.responses.retrieve(running.id) == cancelled
    assert_ledger_comes_to_rest(scripted_server)


def test_a_client_that_leaves_a_stream_ends_it(client: openai.OpenAI, scripted_server: str) -> None:
    with client.responses.create(model=MODEL, input=ENDLESS, stream=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    assert_ledger_comes_to_rest(scripted_server)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.response.id)


def test_errors_are_the_clients_own_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model=MODEL, input="hi", tools=[{"type": "web_search_preview"}])
    assert bad.value.param == "tools[0].type"
    with pytest.raises(openai.NotFoundError) as gone:
        client.responses.create(model=MODEL, input="hi", previous_response_id="resp_x")
    assert (gone.value.param, gone.value.code) == ("previous_response_id", "previous_response_not_found")
    with pytest.raises(openai.NotFoundError) as model:
        client.responses.create(model="other", input="hi")
    assert model.value.code == "model_not_found"
    with pytest.raises(openai.InternalServerError):
        client.responses.create(model=MODEL, input=script("a", "b", fault={"kind": "error", "after": 1}))
    *_, last = client.responses.create(model=MODEL, input=script("a", "b", fault={"kind": "error", "after": 1}), stream=True)
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert (last.response.error.code, last.response.output_text) == ("server_error", "a")


@pytest.mark.parametrize("top", [0, 3])
def test_log_probabilities_are_the_same_in_every_place(client: openai.OpenAI, top: int) -> None:
    asked: dict[str, Any] = {
        "model": MODEL, "input": script("Hel", "lo", " 🦕", "!"),
        "include": ["message.output_text.logprobs"], "top_logprobs": top,
    }  # fmt: skip
    (part,) = client.responses.create(**asked).output[0].content  # type: ignore[union-attr]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert bytes(byte for token in part.logprobs for byte in token.bytes).decode() == part.text == "Hello 🦕!"
    assert {len(token.top_logprobs) for token in part.logprobs} == {top}
    assert all(token.logprob <= 0 for token in part.logprobs)
    events = list(client.responses.create(**asked, stream=True))
    by_type = {event.type: event for event in events}
    streamed = [token for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    assert [(token.token, token.logprob) for token in streamed] == [(token.token, token.logprob) for token in part.logprobs]
    done, part_done = by_type["response.output_text.done"], by_type["response.content_part.done"]
    assert done.type == "response.output_text.done"
    assert part_done.type == "response.content_part.done"
    assert [token.model_dump() for token in done.logprobs] == [token.model_dump() for token in streamed]
    assert part_done.part == part
    for event in events:
        assert not event.model_extra


def test_the_async_client_streams_many_at_once(scripted_server: str) -> None:
    async def one(client: openai.AsyncOpenAI, text: str) -> Response:
        async with client.responses.stream(model=MODEL, input=script(*text)) as stream:
            return await stream.get_final_response()

    async def scenario() -> None:
        async with openai.AsyncOpenAI(base_url=f"{scripted_server}/v1", api_key="none", max_retries=0) as client:
            texts = [f"text {number}" for number in range(8)]
            made = await asyncio.gather(*(one(client, text) for text in texts))
            assert [response.output_text for response in made] == texts
            again = await asyncio.gather(*(client.responses.retrieve(response.id) for response in made))
            assert [response.output_text for response in again] == texts

    asyncio.run(scenario())


@pytest.mark.long
def test_every_worker_serves_what_any_of_them_keeps() -> None:
    with running_server("--executor", "scripted", "--script", "inline", "--entry-workers", "2") as url:
        made: dict[int | None, str] = {}
        for _ in range(200):
            if len(made) == 2:
                break
            body = httpx.post(f"{url}/v1/responses", json={"input": script("Hel", "lo")}).raise_for_status().json()
            made[keeper(body["id"])] = body["id"]
        assert len(made) == 2
        answered = set()
        for _ in range(200):  # a connection goes to any worker
            if len(answered) == 4:
                break
            for number, response_id in made.items():
                body = {"input": script("on"), "previous_response_id": response_id}
                response = httpx.post(f"{url}/v1/responses", json=body).raise_for_status().json()
                answered.add((number, keeper(response["id"])))
                assert httpx.get(f"{url}/v1/responses/{response_id}").raise_for_status().json()["id"] == response_id
        assert len(answered) == 4
        assert server_info(url)["stored_responses"] > 4
        for response_id in made.values():
            assert httpx.delete(f"{url}/v1/responses/{response_id}").status_code == 200
            assert httpx.get(f"{url}/v1/responses/{response_id}").status_code == 404


@pytest.mark.long
def test_the_model_remembers_a_conversation_by_its_id(model_server: str) -> None:
    with openai.OpenAI(base_url=f"{model_server}/v1", api_key="none", max_retries=0) as client:
        common: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 24}
        first = "My favourite colour is green. Say OK."
        second = "What is my favourite colour?"
        one = client.responses.create(input=first, **common)
        two = client.responses.create(input=second, previous_response_id=one.id, **common)
        messages = [
            {"role": "user", "content": first},
            {"role": "assistant", "content": one.output_text},
            {"role": "user", "content": second},
        ]
        chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=24)  # type: ignore[arg-type]
        assert two.output_text == chat.choices[0].message.content
        assert two.usage is not None
        assert chat.usage is not None
        assert two.usage.input_tokens == chat.usage.prompt_tokens
        with client.responses.stream(input=second, previous_response_id=one.id, **common) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == two.output_text
