"""The real openai client against the real model: a stream says what the plain answer says, byte for byte."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import httpx
import pytest
from openai import AsyncOpenAI

MODEL = "smollm2-135m-instruct"
PROMPTS = [
    "Write one sentence about the sea.",
    "Écris une phrase sur l'été à Orléans.",
    "Schreibe einen Satz über Äpfel und Öl.",
    "写一句关于春天的话。",
    "春についての文を一つ書いてください。",
    "봄에 대한 문장을 하나 써 주세요.",
    "Напиши предложение о зиме.",
    "اكتب جملة عن البحر.",
    "כתוב משפט על הים.",
    "समुद्र के बारे में एक वाक्य लिखो।",
    "Repeat exactly: 😀😃👩‍👩‍👧‍👦🏳️‍🌈🇫🇷",
    "Continue: 🌊🐟🌊🐟🌊",
    "Γράψε μια πρόταση για τη θάλασσα.",
    "Wie viel ist 12 345 + 6?",
    "Write a Python function that adds two numbers.",
    "Repeat: naïve café — “quotes” … ½ ∑ √",
]


class Answer(NamedTuple):
    text: str
    token_ids: list[int]
    finish_reason: str | None
    usage: Any


async def streamed(client: AsyncOpenAI, **request: Any) -> Answer:
    text, token_ids, finish_reason, usage = "", [], None, None
    stream = await client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            token_ids += getattr(choice, "token_ids", None) or []
            finish_reason = choice.finish_reason or finish_reason
    return Answer(text, token_ids, finish_reason, usage)


async def plain(client: AsyncOpenAI, **request: Any) -> Answer:
    answer = await client.chat.completions.create(**request)
    choice = answer.choices[0]
    return Answer(choice.message.content or "", choice.token_ids, choice.finish_reason, answer.usage)  # type: ignore[attr-defined]


def request_for(prompt: str, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": 40,
        "extra_body": {"return_token_ids": True},
        **more,
    }


@pytest.fixture
def client(model_server: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{model_server}/v1", api_key="none", timeout=120, max_retries=0)


def test_sixteen_concurrent_streams_say_what_the_plain_answers_say(model_server: str, client: AsyncOpenAI) -> None:
    async def scenario() -> tuple[list[Answer], list[Answer]]:
        async with client:
            streams = await asyncio.gather(*(streamed(client, **request_for(p)) for p in PROMPTS))
            plains = await asyncio.gather(*(plain(client, **request_for(p)) for p in PROMPTS))
        return streams, plains

    streams, plains = asyncio.run(scenario())
    for stream, whole in zip(streams, plains, strict=True):
        for answer in (stream, whole):
            ids = answer.token_ids
            decoded = httpx.post(f"{model_server}/detokenize", json={"tokens": ids}).raise_for_status().json()["text"]
            assert answer.text == decoded
            assert answer.usage.completion_tokens == len(ids)
            assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert stream.usage.prompt_tokens == whole.usage.prompt_tokens
        if stream.token_ids == whole.token_ids:  # else a numeric tie, broken differently in another batch
            assert stream.text == whole.text
            assert stream.finish_reason == whole.finish_reason
    same = sum(s.token_ids == w.token_ids for s, w in zip(streams, plains, strict=True))
    assert same >= len(PROMPTS) - 2, "more differing answers than numeric ties explain"


def test_a_shared_system_prompt_is_read_from_the_cache(client: AsyncOpenAI) -> None:
    system = "You are a careful librarian who knows every shelf of a very old library. " * 8

    async def scenario() -> list[Any]:
        async with client:
            usages = []
            for question in ("Where is the map?", "Who wrote the atlas?"):
                messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
                answer = await streamed(client, **request_for("", messages=messages, max_tokens=4))
                usages.append(answer.usage)
        return usages

    first, second = asyncio.run(scenario())
    assert second.prompt_tokens_details.cached_tokens >= 100
    assert second.prompt_tokens_details.cached_tokens < second.prompt_tokens
    assert first.prompt_tokens_details.cached_tokens < 100


def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd(client: AsyncOpenAI) -> None:
    request = request_for("Tell me a story.", temperature=1.0, seed=1234, max_tokens=24)

    async def scenario() -> list[Answer]:
        async with client:
            alone = await plain(client, **request)
            crowd = await asyncio.gather(
                streamed(client, **request), *(plain(client, **{**request, "seed": seed}) for seed in range(5))
            )
        return [alone, *crowd]

    alone, again, *others = asyncio.run(scenario())
    assert again.token_ids == alone.token_ids
    assert len({tuple(answer.token_ids) for answer in others}) > 1


def test_the_answer_is_made_of_sense(client: AsyncOpenAI) -> None:
    async def scenario() -> Answer:
        async with client:
            return await plain(client, **request_for("Who wrote Hamlet?", max_tokens=32))

    answer = asyncio.run(scenario())
    assert "Shakespeare" in answer.text
