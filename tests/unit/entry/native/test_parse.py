"""/parse_function_call and /separate_reasoning, and the parsers that a server has of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.entry.parsers import choose_parsers
from millstream.entry.service import LoadedText, prepare_text
from millstream.errors import StartupError
from millstream.text.chat_template import ChatTemplate
from tests.support.asgi import get, post, run
from tests.support.engine import NAMES, TOKENIZER, Entry
from tests.support.published_templates import published_templates

TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    },
    {"function": {"name": "ping", "description": "pong", "strict": True}},
]
CALL = '<tool_call>{"name": "get_weather", "arguments": {"n": 1}}</tool_call>'


def ask(path: str, body: dict[str, Any], **parsers: str) -> Any:
    async def scenario() -> Any:
        entry = Entry()
        if parsers:
            config = ServerConfig(served_model_name=NAMES, **parsers)  # type: ignore[arg-type]
            entry.service.text_loaded(prepare_text(config, TOKENIZER))
        return await post(entry.app, path, body)

    return run(scenario())


def test_calls_are_taken_from_a_text_with_the_parser_that_is_named() -> None:
    body = {"text": f"Look:\n{CALL}", "tools": TOOLS, "tool_call_parser": "qwen25"}
    response = ask("/parse_function_call", body)
    assert (response.status, response.body) == (
        200,
        {"normal_text": "Look:", "calls": [{"tool_index": 0, "name": "get_weather", "parameters": '{"n": 1}'}]},
    )


def test_without_a_name_the_servers_own_parser_reads() -> None:
    body = {"text": "<tool_call><function=get_weather><parameter=n>12</parameter></function></tool_call>", "tools": TOOLS}
    response = ask("/parse_function_call", body, tool_call_parser="qwen3_coder")
    assert response.body["calls"] == [{"tool_index": 0, "name": "get_weather", "parameters": '{"n": 12}'}]


def test_a_call_that_breaks_off_says_that_it_is_not_complete() -> None:
    response = ask("/parse_function_call", {"text": CALL[:-16], "tools": TOOLS, "tool_call_parser": "hermes"})
    assert response.body["calls"] == [{"tool_index": 0, "name": "get_weather", "parameters": '{"n":', "incomplete": True}]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_call_parser": "nobody"}, "tool_call_parser"),
        ({"tool_call_parser": None}, "tool_call_parser"),
        ({"tool_call_parser": "none"}, "tool_call_parser"),
        ({"tools": None}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web", "function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "x", "parameters": "{}"}}]}, "tools[0].function.parameters"),
        ({"tools": [{"function": {"name": "x", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tools": [{"function": {"name": "x", "code": "1"}}]}, "tools[0].function.code"),
        ({"tools": [{"function": {"name": "x"}}] * 2}, "tools[1]"),
        ({"tools": [{"function": {"name": f"x{n}"}} for n in range(1025)]}, "tools"),
        ({"text": None}, "text"),
        ({"text": "x" * (2 * 1024 * 1024 + 1)}, "text"),
    ],
)
def test_what_is_wrong_in_a_request_is_named(change: dict[str, Any], param: str) -> None:
    body = {"text": "x", "tools": TOOLS, "tool_call_parser": "hermes"} | change
    response = ask("/parse_function_call", body)
    assert (response.status, response.error["param"]) == (400, param)


def test_reasoning_is_taken_apart_from_the_answer() -> None:
    cases = [
        ({"text": "<think>a</think>b", "reasoning_parser": "qwen3"}, {}, ("a", "b")),
        ({"text": "a</think>b", "reasoning_parser": "deepseek-r1", "return_blocks": False}, {}, ("a", "b")),
        ({"text": "[THINK]a[/THINK]b"}, {"reasoning_parser": "mistral"}, ("a", "b")),
    ]
    for body, parsers, (reasoning, text) in cases:
        response = ask("/separate_reasoning", body, **parsers)
        assert (response.status, response.body) == (200, {"reasoning_text": reasoning, "text": text})
    for body, param in [
        ({"text": "a"}, "reasoning_parser"),
        ({"text": "a", "reasoning_parser": "nobody"}, "reasoning_parser"),
        ({"text": "a", "reasoning_parser": "qwen3", "return_blocks": True}, "return_blocks"),
    ]:
        response = ask("/separate_reasoning", body)
        assert (response.status, response.error["param"]) == (400, param)


def test_the_model_says_which_parsers_it_has() -> None:
    async def scenario() -> None:
        entry = Entry()
        config = ServerConfig(served_model_name=NAMES, tool_call_parser="llama3_json", reasoning_parser="none")
        entry.service.text_loaded(prepare_text(config, TOKENIZER))
        facts = (await get(entry.app, "/model_info")).body
        assert (facts["tool_call_parser"], facts["reasoning_parser"]) == ("llama3", None)

    run(scenario())


@pytest.mark.parametrize("option", ["tool_call_parser", "reasoning_parser"])
def test_a_parser_that_nobody_has_stops_the_start(option: str) -> None:
    with pytest.raises(StartupError, match=f"{option} is `nobody`"):
        choose_parsers(dataclasses.replace(ServerConfig(), **{option: "nobody"}), {})


def test_published_templates_choose_their_parsers() -> None:
    wanted = {
        "qwen2.5:0.5b": ("hermes", None),
        "qwen3:0.6b": ("hermes", "qwen3"),
        "qwq:32b": ("hermes", "qwen3"),
        "qwen3-coder:30b": ("qwen3_coder", None),
        "deepseek-v3:671b": ("deepseekv3", None),
        "deepseek-r1:latest": ("deepseekv3", "qwen3"),
        "deepseek-v3.1:latest": ("deepseekv31", "qwen3"),
        "llama3.1:8b": ("llama3", None),
        "llama3.2:3b": ("llama3", None),
        "granite4:latest": ("hermes", None),
        "gemma2:2b": (None, None),
        "smollm2:135m": (None, None),
        "command-r7b:7b": ("command_r7b", "command_r7b"),
        "granite3.3:2b": ("granite", "granite"),
        "granite3.2:8b": ("granite", "granite32"),
        "exaone-deep:32b": (None, "exaone-deep"),
        "llama4:latest": ("llama3", None),
    }
    templates = published_templates()
    for model, (tools, reasoning) in wanted.items():
        chosen = choose_parsers(ServerConfig(), {"default": templates[model]})
        names = (chosen.tools and chosen.tools.name, chosen.reasoning and chosen.reasoning.name)
        assert names == (tools, reasoning), model
        offers = ChatTemplate(templates[model], {"bos_token": "", "eos_token": ""}).uses_tools
        # DeepSeek's own write earlier calls, but have no place for tools
        assert offers == (tools is not None and not model.startswith("deepseek")) or model.startswith("command"), model


def test_the_template_for_tools_is_asked_first_and_an_option_says_none() -> None:
    templates = {"default": "[TOOL_CALLS]<think></think>", "tool_use": "<tool_call>"}
    chosen = choose_parsers(ServerConfig(), templates)
    assert chosen.tools is not None and chosen.tools.name == "hermes"
    assert chosen.reasoning is not None and chosen.reasoning.name == "qwen3"
    nothing = choose_parsers(ServerConfig(tool_call_parser="none", reasoning_parser="none"), templates)
    assert nothing.tools is None and nothing.reasoning is None


def test_loaded_text_without_parsers_has_none() -> None:
    loaded = LoadedText(tokenizer=TOKENIZER, chat=None, names=NAMES)
    assert loaded.parsers.tools is None and loaded.parsers.reasoning is None
