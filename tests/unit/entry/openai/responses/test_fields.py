"""Every field of /v1/responses: what is wrong with it is a 400 that names it, and nothing of it reaches the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.entry.openai.responses.protocol import INCLUDABLE
from tests.support.asgi import run
from tests.support.engine import Entry
from tests.unit.entry.openai.responses.harness import ask, made

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": 5}, "input"),
    ({"input": {}}, "input"),
    ({"input": []}, "input"),
    ({"input": ["hi"]}, "input[0]"),
    ({"input": [{}]}, "input[0].role"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": ["user"], "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content[0].text"),
    (
        {"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": "y"}]}]},
        "input[0].content[0].annotations",
    ),
    ({"input": [{"role": "user", "content": "x", "status": "odd"}]}, "input[0].status"),
    ({"input": [{"role": "user", "content": "x", "id": 5}]}, "input[0].id"),
    ({"input": [{"role": "user", "content": "x", "colour": "red"}]}, "input[0].colour"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": ["message"], "role": "user", "content": "x"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": "x"}, {"type": "item_reference"}]}, "input[1].id"),
    ({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}, "input"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}, "input[0].type"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].type"),
    ({"instructions": 5}, "instructions"),
    ({"instructions": ["x"]}, "instructions"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"model": 5}, "model"),
    ({"store": "yes"}, "store"),
    ({"background": 1}, "background"),
    ({"background": True, "store": False}, "store"),
    ({"background": True, "stream": True}, "stream"),
    ({"stream": "true"}, "stream"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_obfuscation": "x"}}, "stream_options.include_obfuscation"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"max_output_tokens": 1.5}, "max_output_tokens"),
    ({"max_output_tokens": "5"}, "max_output_tokens"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"include": "x"}, "include"),
    ({"include": ["x"]}, "include[0]"),
    ({"include": [5]}, "include[0]"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"top_logprobs": True}, "top_logprobs"),
    ({"text": "x"}, "text"),
    ({"text": {"format": "text"}}, "text.format"),
    ({"text": {"format": {}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": []}}}, "text.format.type"),
    ({"text": {"format": {"type": "text", "strict": True}}}, "text.format.strict"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"colour": "red"}}, "text.colour"),
    ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
    ({"tools": {}}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"truncation": "auto"}, "truncation"),
    ({"truncation": "left"}, "truncation"),
    ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"reasoning": {"depth": 1}}, "reasoning"),
    ({"thinking_token_budget": 5}, "thinking_token_budget"),
    ({"reasoning": "low"}, "reasoning"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"metadata": []}, "metadata"),
    ({"metadata": {"a": 5}}, "metadata[...]"),
    ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: "x"}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"user": 5}, "user"),
    ({"safety_identifier": 5}, "safety_identifier"),
    ({"prompt_cache_key": 5}, "prompt_cache_key"),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
    ({"prompt_cache_options": "explicit"}, "prompt_cache_options"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"moderation": {"model": "x"}}, "moderation"),
    ({"access_programs": {"cyber": "standard"}}, "access_programs"),
    ({"background_options": {"completion_window": "2h"}}, "background_options"),
    ({"n": 2}, "n"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"response_format": {"type": "text"}}, "response_format"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"min_p": 2.0}, "min_p"),
    ({"seed": 2**70}, "seed"),
    ({"stop": [5]}, "stop"),
    ({"stop_regex": "("}, "stop_regex"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"rid": ""}, "rid"),
    ({"timeout": 0}, "timeout"),
    ({"priority": 1}, "priority"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"inputs": "x"}, "inputs"),
]


@pytest.mark.parametrize(("body", "param"), WRONG, ids=[json.dumps(body)[:60] for body, _ in WRONG])
def test_a_wrong_field_is_named_and_reaches_nobody(body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await ask(entry, body)
        assert response.status == 400
        named = str(response.error["param"])
        assert named == param or named.startswith((param + "[", param + ".")), response.error
        assert entry.engine.sent == []
        assert (len(entry.service.responses), entry.manager.live_requests) == (0, 0)
        await made(entry)

    run(scenario())


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"input": [{"type": "item_reference", "id": "msg_unknown"}]}, "input[0].id"),
    ({"previous_response_id": ""}, "previous_response_id"),
    ({"previous_response_id": "resp_" + "0" * 33}, "previous_response_id"),
    ({"model": "other"}, "model"),
]


@pytest.mark.parametrize(("body", "param"), UNKNOWN)
def test_what_leads_nowhere_is_named(body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await ask(entry, body)
        assert (response.status, response.error["param"]) == (404, param)
        assert entry.engine.sent == []

    run(scenario())


NEUTRAL: list[dict[str, Any]] = [
    {"include": ["reasoning.encrypted_content"]},
    {"include": list(INCLUDABLE)},
    {"top_logprobs": 0},
    {"text": {}},
    {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
    {"text": {"format": None, "verbosity": None}},
    {"tools": [], "tool_choice": "auto"},
    {"reasoning": {}},
    {"reasoning": {"effort": None, "summary": None}},
    {"reasoning": {"effort": "none", "summary": "auto", "generate_summary": "detailed", "context": "auto", "mode": "standard"}},
    {"thinking_token_budget": 0},
    {"service_tier": "auto"},
    {"service_tier": "default"},
    {"service_tier": "flex"},
    {"stream_options": None, "max_output_tokens": None, "instructions": None, "previous_response_id": None},
    {"metadata": {"k" * 64: "v" * 512} | {str(number): "" for number in range(15)}},
    {"background_options": {"completion_window": "soonest"}, "context_management": [], "n": 1},
    {"instructions": ""},
    {"prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "in-memory"},
]


@pytest.mark.parametrize("body", NEUTRAL, ids=[json.dumps(body)[:60] for body in NEUTRAL])
def test_what_asks_for_nothing_passes(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        entry = Entry()
        answer = await made(entry, body)
        assert answer["metadata"] == body.get("metadata", {})

    run(scenario())


def test_the_background_is_refused_by_name_where_nothing_is_kept() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_stored_responses=0))
        response = await ask(entry, {"background": True})
        assert (response.status, response.error["param"]) == (400, "background")
        await made(entry)
        assert len(entry.service.responses) == 0

    run(scenario())


def test_a_prompt_that_is_too_long_names_the_input() -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await ask(entry, {"input": "word " * 2000})
        assert (response.status, response.error["code"], response.error["param"]) == (400, "context_length_exceeded", "input")

    run(scenario())


@pytest.mark.parametrize(
    ("body", "param"), [({"include": ["message.output_text.logprobs"]}, "include"), ({"top_logprobs": 2}, "top_logprobs")]
)
def test_log_probabilities_are_refused_by_name_where_the_executor_has_none(body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        entry = Entry(has_logprobs=False)
        response = await ask(entry, body)
        assert (response.status, response.error["param"]) == (400, param)

    run(scenario())
