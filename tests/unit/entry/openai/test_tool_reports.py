"""What people reported about tools and reasoning in chats of other servers: none of it happens here."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.messages import Stop
from millstream.parsing.draft import Tools
from millstream.parsing.events import join
from millstream.parsing.pipeline import Pipeline, Reading, parse
from millstream.parsing.registry import TOOL_FORMATS
from tests.support.engine import TOKENIZER
from tests.unit.entry.openai.test_chat_tools import CALL, HI, PING, WEATHER, ask, entry, streamed, whole
from tests.unit.entry.openai.test_chat_tools import without_ids as plain

CALLED = {"id": "c1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
PONG = {"role": "tool", "tool_call_id": "c1", "content": "pong"}


def prompt_of(server: Any) -> str:
    return TOKENIZER.decode(server.engine.requests[-1].input_ids, skip_special_tokens=False)


def test_a_turn_that_calls_without_saying_anything_keeps_its_calls_however_nothing_is_written() -> None:
    server, prompts = entry(), set()
    for content in ({}, {"content": None}, {"content": ""}):
        turns = [*HI, {"role": "assistant", "tool_calls": [CALLED], **content}, PONG]
        assert ask(server, {"messages": turns, "tools": [PING]}, "x").status == 200
        prompts.add(prompt_of(server))
    (prompt,) = prompts
    assert "<tool_call>ping{}</tool_call>" in prompt
    assert "None" not in prompt


def test_calls_that_are_null_are_no_calls() -> None:
    server = entry()
    turns = [*HI, {"role": "assistant", "content": "b", "tool_calls": None, "reasoning_content": None}, *HI]
    assert ask(server, {"messages": turns}, "x").status == 200
    assert prompt_of(server) == "[user]hi[assistant]b[user]hi[assistant]"


def test_the_first_delta_names_a_call_and_the_others_only_go_on() -> None:
    response = ask(entry(), {"tools": [WEATHER], "stream": True}, *CALL)
    first, *others = [part for chunk in response.chunks for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert first["id"] and first["type"] == "function" and first["function"]["name"] == "get_weather"
    assert all(set(part) == {"index", "function"} and set(part["function"]) == {"arguments"} for part in others)


def test_every_chunk_has_a_delta_and_the_first_alone_a_role() -> None:
    response = ask(entry(), {"stream": True}, "<think>", "x", "</think>", "y")
    deltas = [chunk["choices"][0]["delta"] for chunk in response.chunks]
    assert ["role" in delta for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert "".join(delta.get("content") or "" for delta in deltas) == "y"


def test_a_block_that_the_template_closed_leaves_the_whole_answer_to_the_content() -> None:
    body = {"chat_template_kwargs": {"thinking": False}}
    for stream in (False, True):
        response = ask(entry(), {**body, "stream": stream}, "Paris")
        answer = streamed(response) if stream else whole(response)
        assert (answer["content"], answer["reasoning_content"], answer["finish_reason"]) == ("Paris", "", "stop")


def test_a_call_that_is_only_thought_of_is_none() -> None:
    for stream in (False, True):
        response = ask(entry(), {"tools": [WEATHER, PING], "stream": stream}, f"<think>I could {CALL}</think>", "No need.")
        answer = streamed(response) if stream else whole(response)
        assert (answer["tool_calls"], answer["content"], answer["finish_reason"]) == ([], "No need.", "stop")
        assert CALL in answer["reasoning_content"]


@pytest.mark.parametrize("stop", ["</think>", "x = 1"])
def test_a_stop_string_within_a_thought_ends_the_answer_there(stop: str) -> None:
    answer = whole(ask(entry(), {"stop": [stop]}, "<think>so ", finish=Stop(stop)))
    assert (answer["content"], answer["reasoning_content"], answer["finish_reason"]) == ("", "so", "stop")


@pytest.mark.parametrize(
    "value", ["__import__('os').getpid()", "[].__class__", "1 if True else 2", "open('/etc/hostname').read()"]
)
def test_a_value_is_never_evaluated(value: str) -> None:
    forms = {
        "qwen3_coder": f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>",
        "glm45": f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>",
    }
    for name, text in forms.items():
        for schema in (
            {},
            {"type": "object", "properties": {"a": {}}},
            {"type": "object", "properties": {"a": {"type": "any"}}},
        ):
            tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
            (call,) = plain(whole(ask(entry(tool_call_parser=name), {"tools": [tool]}, text)))["tool_calls"]
            assert call["arguments"] in (f'{{"a": "{value}"}}', f'{{"a":"{value}"}}')
    text = f"[f(a={value})]"
    tool = {"type": "function", "function": {"name": "f"}}
    answer = whole(ask(entry(tool_call_parser="pythonic"), {"tools": [tool]}, text))
    assert answer["finish_reason"] == "stop"
    assert all(call["incomplete"] for call in answer["tool_calls"])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 2_000,
        "[f(" + "a=1," * 5_000,
        "{" * 20_000,
        "Action: x" + "\n" * 20_000,
        '<tool_call>{"name":"' + "\\" * 20_000,
    ],
    ids=["openings", "arguments", "brackets", "lines", "backslashes"],
)
def test_long_output_that_never_becomes_a_call_costs_no_more_for_each_piece_of_it(text: str) -> None:
    for format_ in TOOL_FORMATS:
        reading = Reading(tool_format=format_, tools=Tools({"f": None}))
        pipeline = Pipeline(reading)
        events = [event for at in range(0, len(text), 5) for event in pipeline.feed(text[at : at + 5])]
        assert join([*events, *pipeline.finish()]) == parse(text, reading)
