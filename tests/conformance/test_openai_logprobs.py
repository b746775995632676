"""Log probabilities through the real openai client, of the real model: plain and streamed, generated and scored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.logprobs import content_bytes
from tests.support.server import server_info

pytestmark = pytest.mark.long
PROMPT = "Repeat exactly: 😀 naïve café — 春"
TOLERANCE = 0.05  # nats: a prompt is computed in larger pieces than its continuation was


@pytest.fixture
def client(model_server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{model_server}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client: OpenAI, **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": PROMPT}]
    return client.chat.completions.create(model="", messages=messages, temperature=0, max_tokens=40, **more)


@pytest.mark.parametrize(
    "more", [{}, {"stop": ["é"]}, {"extra_body": {"stop_regex": r"\s\w+\s"}}], ids=["free", "stop", "regex"]
)
def test_a_stream_lists_what_the_plain_answer_lists(client: OpenAI, more: dict[str, Any]) -> None:
    (plain,) = chat(client, logprobs=True, top_logprobs=3, **more).choices
    entries, text = [], ""
    for chunk in chat(client, logprobs=True, top_logprobs=3, stream=True, **more):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            entries += choice.logprobs.content if choice.logprobs else []
    listed = plain.logprobs.content
    assert [entry.model_dump() for entry in entries] == [entry.model_dump() for entry in listed]
    assert text == plain.message.content
    assert content_bytes(plain.logprobs.model_dump()).decode(errors="replace").startswith(text)
    for entry in listed:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob <= max(other.logprob for other in entry.top_logprobs) + 1e-6
        assert entry.top_logprobs == sorted(entry.top_logprobs, key=lambda other: -other.logprob)


def test_what_was_generated_costs_the_same_when_it_is_scored(client: OpenAI) -> None:
    prompt = "The capital of France is"
    made = client.completions.create(model="", prompt=prompt, max_tokens=12, temperature=0.8, seed=3, logprobs=2)
    (choice,) = made.choices
    scored = client.completions.create(model="", prompt=prompt + choice.text, max_tokens=0, echo=True, logprobs=2)
    (whole,) = scored.choices
    assert whole.text == prompt + choice.text
    assert made.usage is not None
    start = made.usage.prompt_tokens
    assert choice.logprobs is not None
    assert whole.logprobs is not None
    assert whole.logprobs.tokens is not None
    assert whole.logprobs.tokens[start:] == choice.logprobs.tokens
    assert whole.logprobs.text_offset is not None
    assert choice.logprobs.text_offset is not None
    assert whole.logprobs.text_offset[start:] == [len(prompt) + offset for offset in choice.logprobs.text_offset]
    pairs = zip(whole.logprobs.token_logprobs[start:], choice.logprobs.token_logprobs, strict=True)  # type: ignore[index,arg-type]
    assert all(abs(one - other) < TOLERANCE for one, other in pairs)


def test_a_prompt_that_is_cached_is_told_of_again(client: OpenAI) -> None:
    prompt = "The quick brown fox jumps over the lazy dog. " * 8
    first, again = (
        client.completions.create(model="", prompt=prompt, max_tokens=0, echo=True, logprobs=1).choices[0].logprobs
        for _ in range(2)
    )
    assert first is not None
    assert again is not None
    assert again.tokens == first.tokens
    pairs = zip(first.token_logprobs[1:], again.token_logprobs[1:], strict=True)  # type: ignore[index]
    assert all(abs(one - other) < TOLERANCE for one, other in pairs)


def test_the_best_of_several_are_the_likeliest(client: OpenAI) -> None:
    body: dict[str, Any] = {"model": "", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 1.2, "seed": 11}
    every = client.completions.create(**body, n=5, logprobs=0)
    best = client.completions.create(**body, n=2, best_of=5)
    means = {c.text: sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in every.choices}  # type: ignore[union-attr,arg-type]
    ranked = sorted(means, key=lambda text: -means[text])
    assert [choice.text for choice in best.choices] == ranked[:2]
    assert every.usage is not None
    assert best.usage is not None
    assert best.usage.completion_tokens == every.usage.completion_tokens


def test_a_banned_token_is_not_made_and_its_log_probability_is_told_all_the_same(client: OpenAI) -> None:
    body: dict[str, Any] = {"model": "", "prompt": "The capital of France is", "max_tokens": 1, "temperature": 0, "logprobs": 1}
    first = client.completions.create(**body, extra_body={"return_token_ids": True}).choices[0]
    (token_id,) = first.token_ids  # type: ignore[attr-defined]
    banned = client.completions.create(**body, logit_bias={str(token_id): -100}).choices[0]
    assert first.text != banned.text
    assert first.logprobs is not None
    assert banned.logprobs is not None
    assert banned.logprobs.top_logprobs is not None
    assert first.text in banned.logprobs.top_logprobs[0]


def test_what_is_refused_is_a_bad_request_with_its_param(client: OpenAI, model_server: str) -> None:
    for more in ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, **more)
        assert caught.value.param == "top_logprobs"
    assert server_info(model_server)["live_requests"] == 0
