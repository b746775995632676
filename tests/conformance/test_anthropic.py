"""The real anthropic client against the real model: a stream says what the plain answer says, and both say what a chat says."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from anthropic import Anthropic, AsyncAnthropic, BadRequestError

MODEL = "smollm2-135m-instruct"
PROMPTS = ["Write one sentence about the sea.", "写一句关于春天的话。", "Repeat exactly: 😀👩‍👩‍👧‍👦🇫🇷", "اكتب جملة عن البحر."]
CITY = [{"role": "user", "content": "What is the capital of France?"}]

pytestmark = pytest.mark.long


def greedy(messages: list[Any], **more: Any) -> dict[str, Any]:
    """A request; the client's newest version has no argument for the temperature."""
    fields = {"model": MODEL, "max_tokens": 24, "messages": messages, "system": "Be brief.", **more}
    return {**fields, "extra_body": {"temperature": 0}}


def test_stream_plain_answer_and_chat_agree(model_server: str) -> None:
    async def one(client: AsyncAnthropic, chat: httpx.AsyncClient, prompt: str) -> None:
        messages = [{"role": "user", "content": prompt}]
        plain = await client.messages.create(**greedy(messages))
        async with client.messages.stream(**greedy(messages)) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text == plain.content[0].text == final.content[0].text
        assert (final.stop_reason, final.usage.output_tokens) == (plain.stop_reason, plain.usage.output_tokens)
        body = {"messages": [{"role": "system", "content": "Be brief."}, *messages], "max_tokens": 24, "temperature": 0}
        answer = (await chat.post("/v1/chat/completions", json=body)).raise_for_status().json()
        assert answer["choices"][0]["message"]["content"] == text
        counted = await client.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.")
        assert counted.input_tokens == answer["usage"]["prompt_tokens"]
        for usage in (plain.usage, final.usage):
            assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens

    async def scenario() -> None:
        async with (
            AsyncAnthropic(base_url=model_server, api_key="none") as client,
            httpx.AsyncClient(base_url=model_server, timeout=60) as chat,
        ):
            await asyncio.gather(*(one(client, chat, prompt) for prompt in PROMPTS))

    asyncio.run(scenario())


def test_a_beginning_is_continued_a_stop_sequence_ends_it_and_a_limit_cuts_it(model_server: str) -> None:
    with Anthropic(base_url=model_server, api_key="none") as client:
        beginning = [*CITY, {"role": "assistant", "content": "The capital of France is"}]
        continued = client.messages.create(**greedy(beginning, max_tokens=3))
        assert continued.content[0].text.startswith(" Paris")
        stopped = client.messages.create(**greedy(beginning, stop_sequences=["ris"]))
        assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == (" Pa", "stop_sequence", "ris")
        cut = client.messages.create(**greedy(CITY, max_tokens=1))
        assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 1)
        nothing = client.messages.create(**greedy(CITY, max_tokens=0))
        assert (nothing.stop_reason, nothing.content[0].text, nothing.usage.output_tokens) == ("max_tokens", "", 0)
        whole = client.messages.create(**greedy(CITY))
        assert whole.stop_reason in ("end_turn", "max_tokens")
        assert "Paris" in whole.content[0].text


def test_what_cannot_be_served_raises_and_leaves_a_server_that_serves(model_server: str) -> None:
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    with Anthropic(base_url=model_server, api_key="none", max_retries=0) as client:
        with pytest.raises(BadRequestError, match=r"messages\[0\]\.content\[0\]\.type"):
            client.messages.create(**greedy([{"role": "user", "content": [picture]}]))
        with pytest.raises(BadRequestError, match="maximum context length"):
            client.messages.create(**greedy([{"role": "user", "content": "word " * 20_000}]))
        assert client.messages.create(**greedy(CITY)).content[0].text
