"""The official Anthropic client against the real HTTP server of the entry: what its users see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from millstream.config import ServerConfig
from millstream.messages import AbortReq, Stop, TokenizedGenerateReqInput
from tests.support.asgi import run
from tests.support.engine import Entry, hold
from tests.support.http import serving

ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def client_of(entry: Entry, **options: Any) -> AsyncIterator[AsyncAnthropic]:
    async with serving(entry) as port:
        given: dict[str, Any] = {"base_url": f"http://127.0.0.1:{port}", "api_key": "secret", "max_retries": 0, **options}
        async with AsyncAnthropic(**given) as client:
            yield client


async def in_thread(entry: Entry, use: Callable[[Anthropic], Any]) -> Any:
    """What `use` makes of a synchronous client."""

    def work(port: int) -> Any:
        with Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="secret", max_retries=0) as client:
            return use(client)

    async with serving(entry) as port:
        return await asyncio.to_thread(work, port)


def test_a_message_is_created_counted_and_answered_again() -> None:
    async def scenario() -> None:
        async with client_of(Entry()) as client:
            message = await client.messages.create(**ASK, system="Be short.", metadata={"user_id": "u"}, stop_sequences=["END"])
            assert message.content[0].text == "Hello"
            assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 2)
            assert message._request_id is not None
            assert message._request_id.startswith("req_")
            counted = await client.messages.count_tokens(model="tiny", messages=ASK["messages"], system="Be short.")
            assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
            history = [*ASK["messages"], message.to_param(), {"role": "user", "content": "again"}]
            again = await client.messages.create(**{**ASK, "messages": history})
            assert again.content[0].text == "Hello"

    run(scenario())


def test_a_stream_helper_makes_the_plain_message() -> None:
    async def scenario() -> None:
        async with client_of(Entry()) as client:
            plain = await client.messages.create(**ASK, extra_body={"rid": "r"})
            async with client.messages.stream(**ASK, extra_body={"rid": "r"}) as stream:
                texts = [text async for text in stream.text_stream]
                final = await stream.get_final_message()
            assert "".join(texts) == plain.content[0].text
            assert final.to_dict() == plain.to_dict()

    run(scenario())


def test_a_raw_stream_gives_its_events_in_order() -> None:
    async def scenario() -> None:
        async with client_of(Entry()) as client:
            kinds = [event.type async for event in await client.messages.create(**ASK, stream=True)]
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert set(kinds[2:-3]) == {"content_block_delta"}
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]

    run(scenario())


def test_the_synchronous_client_creates_and_streams() -> None:
    def use(client: Anthropic) -> tuple[str, str]:
        plain = client.messages.create(**ASK)
        with client.messages.stream(**ASK) as stream:
            return plain.content[0].text, stream.get_final_text()

    assert run(in_thread(Entry(), use)) == ("Hello", "Hello")


def test_the_beta_client_is_served_too() -> None:
    async def scenario() -> None:
        async with client_of(Entry()) as client:
            message = await client.beta.messages.create(**ASK, betas=["some-beta"])
            assert message.content[0].text == "Hello"

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "error", "kind"),
    [
        ({"max_tokens": -1}, anthropic.BadRequestError, "invalid_request_error"),
        ({"tools": [{"name": "f", "input_schema": {"type": "object"}}]}, anthropic.BadRequestError, "invalid_request_error"),
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_is_of_its_class_and_has_the_requests_id(
    fields: dict[str, Any], error: type[anthropic.APIStatusError], kind: str, stream: bool
) -> None:
    async def scenario() -> None:
        async with client_of(Entry()) as client:
            with pytest.raises(error) as caught:
                await client.messages.create(**{**ASK, **fields}, stream=stream)
            assert caught.value.type == kind
            assert caught.value.request_id is not None
            assert caught.value.request_id.startswith("req_")
            assert caught.value.api_message

    run(scenario())


def test_a_key_is_taken_in_either_header() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("secret",)))
        async with client_of(entry) as client:
            assert (await client.messages.create(**ASK)).content[0].text == "Hello"
        async with client_of(entry, api_key=None, auth_token="none", default_headers={"x-api-key": "secret"}) as client:
            assert (await client.messages.create(**ASK)).content[0].text == "Hello"
        async with client_of(entry, api_key="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(**ASK)

    run(scenario())


def test_a_rate_limit_is_tried_again_after_its_time() -> None:
    async def scenario() -> None:
        entry = Entry()
        refused: list[str] = []

        def answer(request: TokenizedGenerateReqInput) -> None:
            if refused:
                entry.engine.say("fine")(request)
            else:
                refused.append(request.rid)
                entry.engine.reject(request.rid, retry_after_s=0)

        entry.engine.answer = answer
        async with client_of(entry, max_retries=1) as client:
            assert (await client.messages.create(**ASK)).content[0].text == "fine"
        assert len(refused) == 1

    run(scenario())


def test_a_rate_limit_without_another_try_is_of_its_class() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda request: entry.engine.reject(request.rid, retry_after_s=3)
        async with client_of(entry) as client:
            with pytest.raises(anthropic.RateLimitError) as caught:
                await client.messages.create(**ASK)
            assert caught.value.response.headers["retry-after"] == "3"

    run(scenario())


def test_a_fault_in_a_stream_is_raised_with_its_type() -> None:
    async def scenario() -> None:
        entry = Entry()

        def answer(request: TokenizedGenerateReqInput) -> None:
            entry.engine.accept(request.rid)
            entry.engine.row(request.rid, "some")
            entry.engine.end(request.rid, "engine_error", "The engine failed.")

        entry.engine.answer = answer
        async with client_of(entry) as client:
            with pytest.raises(anthropic.APIStatusError) as caught:
                async for _ in await client.messages.create(**ASK, stream=True):
                    pass
            assert (caught.value.type, caught.value.error_code) == ("api_error", "engine_error")

    run(scenario())


def test_a_client_that_closes_its_stream_ends_the_request() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda request: entry.engine.accept(request.rid)
        async with client_of(entry) as client:
            stream = await client.messages.create(**ASK, stream=True)
            assert (await anext(stream)).type == "message_start"
            await stream.close()
            await entry.engine.wait_sent(AbortReq)
            assert [abort.cause for abort in entry.engine.aborts] == ["client_gone"]
            entry.engine.end(entry.engine.requests[0].rid)

    run(scenario())


def test_a_client_that_runs_out_of_patience_ends_the_request() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        async with client_of(entry) as client:
            with pytest.raises(anthropic.APITimeoutError):
                await client.messages.create(**ASK, timeout=0.05)
            await entry.engine.wait_sent(AbortReq)
            entry.engine.accept(entry.engine.requests[0].rid)
            entry.engine.row(entry.engine.requests[0].rid, "", finish=Stop())

    run(scenario())
