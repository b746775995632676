"""Answers and chunks are valid by the `openai` package's own models; what they have beyond those is on our list."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion, completion_create_params
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat import completion_create_params as chat_create_params
from pydantic import BaseModel

from millstream.config import ServerConfig
from millstream.entry.openai.protocol import CHAT, COMPLETIONS
from millstream.messages import Length, Logprobs, RowDetails, Stop
from tests.support.asgi import Response, post, run
from tests.support.engine import Entry
from tests.support.openai_models import EXTENSIONS, MODEL_EXTENSIONS, extras, foreseen

CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
EVERYTHING: dict[str, dict[str, Any]] = {
    CHAT_PATH: {
        "messages": HI, "logprobs": True, "top_logprobs": 2, "return_token_ids": True, "service_tier": "flex", "n": 2,
        "stop": "END",
    },
    COMPLETIONS_PATH: {
        "prompt": ["a b", "c d"], "logprobs": 2, "return_token_ids": True, "service_tier": "auto", "n": 2, "stop": "END",
    },
}  # fmt: skip
PLAIN: dict[str, dict[str, Any]] = {CHAT_PATH: {"messages": HI}, COMPLETIONS_PATH: {"prompt": "a b"}}
every_route = pytest.mark.parametrize("path", EVERYTHING)


def table(count: int, top: int) -> Logprobs:
    return Logprobs([-0.5] * count, [[41, 42][:top]] * count, [[-0.5, -1.0][:top]] * count, [[]] * count)


def ask(path: str, body: dict[str, Any]) -> Response:
    async def scenario() -> Response:
        entry = Entry()

        def answer(sent: Any) -> None:
            entry.engine.accept(sent.rid)
            details = None
            if sent.logprobs is not None:
                details = RowDetails(table(1, sent.logprobs.top))
                if sent.logprobs.prompt_start is not None:
                    details.prompt_logprobs = table(len(sent.input_ids) - 1, sent.logprobs.top)
            entry.engine.row(sent.rid, TEXT, ids=[ID], details=details)
            finish = Stop("END") if sent.rid.endswith("0") else Length(2)
            more = None if details is None else RowDetails(table(1, sent.logprobs.top))
            entry.engine.row(sent.rid, "" if finish == Stop("END") else TEXT, ids=[ID], finish=finish, details=more)

        entry.engine.answer = answer
        response = await post(entry.app, path, body)
        assert response.status == 200, response.content
        return response

    return run(scenario())


ID, TEXT = 40, "I"


@every_route
@pytest.mark.parametrize("body", ["plain", "everything"])
def test_answers_are_openais_and_what_they_have_beyond_is_listed(path: str, body: str) -> None:
    asked = (PLAIN if body == "plain" else EVERYTHING)[path]
    model: type[BaseModel] = ChatCompletion if path == CHAT_PATH else Completion
    found = extras(model, ask(path, asked).body)
    assert found <= EXTENSIONS | ({"service_tier"} if path == COMPLETIONS_PATH else set())
    assert body == "everything" or found == {"choices[].matched_stop"}


@every_route
@pytest.mark.parametrize("body", ["plain", "everything"])
def test_so_are_the_chunks_of_a_stream(path: str, body: str) -> None:
    asked = {**(PLAIN if body == "plain" else EVERYTHING)[path], "stream": True, "stream_options": {"include_usage": True}}
    model: type[BaseModel] = ChatCompletionChunk if path == CHAT_PATH else Completion
    for chunk in ask(path, asked).chunks:
        assert extras(model, chunk if path == CHAT_PATH else foreseen(chunk)) <= EXTENSIONS | (
            {"service_tier"} if path == COMPLETIONS_PATH else set()
        )


def test_the_docs_have_the_list_of_what_answers_have_beyond_openais() -> None:
    text = (Path(__file__).parents[4] / "docs" / "api.md").read_text()
    listed = text.partition("**Beyond OpenAI's**")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([^`]+)`", listed)) == EXTENSIONS | MODEL_EXTENSIONS | {"service_tier"}


def test_an_unknown_member_is_found_at_any_depth() -> None:
    answer = ask(CHAT_PATH, EVERYTHING[CHAT_PATH]).body
    answer["choices"][1]["logprobs"]["content"][0]["top_logprobs"][1]["colour"] = "red"
    answer["usage"]["prompt_tokens_details"]["cost"] = 1
    found = extras(ChatCompletion, answer)
    assert {"choices[].logprobs.content[].top_logprobs[].colour", "usage.prompt_tokens_details.cost"} <= found


@every_route
def test_prompt_logprobs_stand_where_vllm_has_them(path: str) -> None:
    body = ask(path, {**PLAIN[path], "prompt_logprobs": 1}).body
    told = body["prompt_logprobs"] if path == CHAT_PATH else body["choices"][0]["prompt_logprobs"]
    assert len(told) == body["usage"]["prompt_tokens"]
    assert told[0] is None
    assert set(told[1]["41"]) == {"logprob", "rank", "decoded_token"}


@every_route
def test_the_tier_is_told_where_it_was_asked_about_and_is_always_the_only_one(path: str) -> None:
    for tier in ("auto", "default", "flex", "scale", "priority", "fast"):
        assert ask(path, {**PLAIN[path], "service_tier": tier}).body["service_tier"] == "default"
        for chunk in ask(path, {**PLAIN[path], "service_tier": tier, "stream": True}).chunks:
            assert chunk["service_tier"] == "default"
    assert "service_tier" not in ask(path, PLAIN[path]).body


def test_the_fingerprint_is_one_for_all_answers_and_another_for_another_server() -> None:
    async def scenario() -> None:
        seen = set()
        for config in (ServerConfig(), ServerConfig(kv_cache_dtype="int8")):
            prints = set()
            for path, body in PLAIN.items():
                entry = Entry(config)
                prints.add((await post(entry.app, path, body)).body["system_fingerprint"])
                stream = await post(entry.app, path, {**body, "stream": True})
                prints |= {chunk["system_fingerprint"] for chunk in stream.chunks}
            assert len(prints) == 1
            seen |= prints
        assert len(seen) == 2
        assert all(word.startswith("fp_") for word in seen)

    run(scenario())


@pytest.mark.parametrize(
    ("rules", "params"), [(CHAT, chat_create_params), (COMPLETIONS, completion_create_params)], ids=["chat", "completions"]
)
def test_every_parameter_of_the_openai_package_is_on_one_of_our_lists(rules: Any, params: Any) -> None:
    known = {*rules.honoured.__struct_fields__, *rules.without_effect, *rules.refused}
    assert set(params.CompletionCreateParamsStreaming.__annotations__) <= known
