"""What the published chat templates write is read back: the same calls, in any cut."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from millstream.entry.tools import read_tools
from millstream.parsing.draft import Tools
from millstream.parsing.pipeline import Reading
from millstream.parsing.registry import reasoning_format_of, tool_format, tool_format_of
from tests.support.cuts import parsed_in_any_cut
from tests.support.published_templates import published_templates
from tests.support.transformers_chat import rendered

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "What it does.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where."},
                    "days": {"type": "integer", "description": "How many."},
                    "share": {"type": "number", "description": "How much."},
                    "hourly": {"type": "boolean", "description": "Whether."},
                    "until": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "When."},
                    "tags": {"type": "array", "items": {"type": "string"}, "description": "What."},
                    "more": {"$ref": "#/$defs/more", "description": "More."},
                },
                "$defs": {"more": {"type": "object"}},
            },
        },
    }
    for name in ("get_weather", "ping")
]
ARGUMENTS: list[dict[str, Any]] = [
    {
        "city": 'Köln\n "Süd" <x> \\ 北京 😀',
        "days": 3,
        "share": -0.5,
        "hourly": True,
        "until": None,
        "tags": ["a", "}"],
        "more": {"k": [1, {"x": False}]},
    },
    {"city": "5", "until": "7"},
]
ENDS = ("<|im_end|>", "<|eot_id|>", "<|eot|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>")
WRITERS = (
    "cogito:14b",
    "deepseek-r1:latest",
    "deepseek-v3.1:latest",
    "granite4:latest",
    "llama3.1:8b",
    "llama3.2:3b",
    "llama4:latest",
    "qwen2.5:0.5b",
    "qwen2.5-coder:1.5b",
    "qwen3:0.6b",
    "qwen3-coder:30b",
    "qwen3-next:80b",
    "qwq:32b",
    "rnj-1:latest",
)


def written(source: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """What the template writes for an assistant's turn of `calls`, without the end of the turn."""
    ask = [{"role": "user", "content": "Hi."}]
    prompt = rendered(source, ask, tools=TOOLS, add_generation_prompt=True)
    for encode in (lambda value: value, lambda value: json.dumps(value, ensure_ascii=False)):
        turn = {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": f"abcdefgh{n}", "type": "function", "function": {"name": name, "arguments": encode(arguments)}}
                for n, (name, arguments) in enumerate(calls)
            ],
        }
        text = rendered(source, [*ask, turn], tools=TOOLS)
        if text is not None and prompt is not None and calls[0][0] in text[len(prompt) - 16 :]:
            prefix = os.path.commonprefix([prompt, text])
            if prefix.rfind("<") > prefix.rfind(">"):
                prefix = prefix[: prefix.rfind("<")]  # the prompt opens a thought, which the turn has not
            text = text[len(prefix) :].rstrip()
            for end in ENDS:
                text = text.removesuffix(end)
            return text
    raise AssertionError("the template writes no calls")


@pytest.mark.parametrize("model", WRITERS)
def test_the_calls_that_a_template_writes_are_read_back(model: str) -> None:
    source = published_templates()[model]
    format_ = tool_format_of(source)
    assert format_ is not None
    calls = [("get_weather", ARGUMENTS[0]), ("ping", ARGUMENTS[1]), ("ping", {})]
    if model.startswith("llama3"):
        calls = calls[:1]  # their templates refuse more
    text = written(source, calls)
    reading = Reading(reasoning=reasoning_format_of(source), tool_format=format_, tools=read_tools(TOOLS))
    parsed = parsed_in_any_cut(text, reading)
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == calls, text
    assert parsed.ends_in_calls


def test_bare_lists_of_calls_are_read_as_cogito_writes_them() -> None:
    text = written(published_templates()["cogito:3b"], [("get_weather", ARGUMENTS[0]), ("ping", {})])
    parsed = parsed_in_any_cut(text, Reading(tool_format=tool_format("llama3"), tools=Tools({"get_weather": {}, "ping": {}})))
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == [("get_weather", ARGUMENTS[0]), ("ping", {})]
