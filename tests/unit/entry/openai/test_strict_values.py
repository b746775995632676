"""Every field of both routes with every kind of wrong value: 400 naming the field, nothing sent, the next request served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.entry.fields import FieldRules
from millstream.entry.openai.protocol import CHAT, COMPLETIONS
from tests.support.asgi import post, run
from tests.support.engine import Entry

HI = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, tuple[FieldRules[Any], dict[str, Any]]] = {
    "/v1/chat/completions": (CHAT, {"messages": HI}),
    "/v1/completions": (COMPLETIONS, {"prompt": "hi"}),
}
HUGE = 10**30
NO_INTEGER = (True, 1.0, 1.5, "1", [1], {"a": 1}, HUGE, -HUGE)
NO_NUMBER = (True, "1", [1], {"a": 1}, HUGE, -HUGE)
NO_BOOLEAN = (0, 1, 1.0, "true", [True], {"a": True})
NO_STRING = (1, True, 1.0, ["a"], {"a": "b"})
NO_OBJECT = (1, True, "{}", [], [1])
NO_STRINGS = (1, True, 1.5, {"a": "b"}, [1], [True], [None], [["a"]], ["a", 1])
TOO_MANY_LONG = ["x"] * 10_000

# name -> (a value that is right, values that are not)
FIELDS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "model": ("tiny", NO_STRING),
    "stream": (False, NO_BOOLEAN),
    "stream_options": (None, (*NO_OBJECT, {}, {"include_usage": True}, {"include_usge": True})),
    "n": (1, (*NO_INTEGER, 0, -1, 129)),
    "max_tokens": (2, (*NO_INTEGER, -1, 2**31)),
    "max_completion_tokens": (2, (*NO_INTEGER, -1, 2**31)),
    "min_tokens": (0, (*NO_INTEGER, -1, 2**31, 600)),
    "cache_salt": ("a", (*NO_STRING, "x" * 8193)),
    "extra_key": ("a", (*NO_STRING, "x" * 8193)),
    "rid": ("r", (*NO_STRING, "", "x" * 129, "a\nb", "é")),
    "timeout": (60, (*NO_NUMBER, 0, -1, 86_401)),
    "priority": (1, (*NO_INTEGER, 2**63, -(2**63) - 1)),
    "return_token_ids": (True, NO_BOOLEAN),
    "return_tokens_as_token_ids": (True, NO_BOOLEAN),
    "prompt_logprobs": (None, (*NO_INTEGER, -1, 21)),
    "service_tier": ("auto", (*NO_STRING, "", "Auto", "turbo")),
    "temperature": (1, (*NO_NUMBER, -0.1, 100.5)),
    "top_p": (1, (*NO_NUMBER, 0, -1, 1.5)),
    "top_k": (5, (*NO_INTEGER, 0, -2, 2**31)),
    "min_p": (0, (*NO_NUMBER, -0.1, 1.1)),
    "presence_penalty": (0, (*NO_NUMBER, 2.1, -2.1)),
    "frequency_penalty": (0, (*NO_NUMBER, 2.1, -2.1)),
    "repetition_penalty": (1, (*NO_NUMBER, 0, -1, 10.5)),
    "logit_bias": (
        {"5": -100},
        (
            *NO_OBJECT, {"a": 1}, {"-1": 1}, {"99999999": 1}, {str(HUGE): 1}, {"1.0": 1}, {" 1": 1}, {"1": "1"}, {"1": True},
            {"1": None}, {"1": 100.5}, {"1": HUGE}, {str(i): 1 for i in range(1025)},
        ),
    ),
    "seed": (-1, (True, 1.0, 1.5, "1", [1], {"a": 1}, 2**64, -(2**63) - 1)),
    "stop": (["END"], (*NO_STRINGS, "", [""], ["a"] * 33, "x" * 1025)),
    "stop_regex": (["a+"], (*NO_STRINGS, "", "a*", "(", ["a"] * 33, "x" * 257, r"\1(a)")),
    "stop_token_ids": ([3], (1, "1", {"a": 1}, [True], [1.0], ["1"], [[1]], [None], [-1], [10**6], [HUGE], [3] * 257)),
    "ignore_eos": (True, NO_BOOLEAN),
    "no_stop_trim": (True, NO_BOOLEAN),
    "skip_special_tokens": (True, NO_BOOLEAN),
    "spaces_between_special_tokens": (True, NO_BOOLEAN),
    "json_schema": (None, (1, True, 1.5, [1], ["a"])),
    "regex": (None, NO_STRING),
    "ebnf": (None, NO_STRING),
    "structural_tag": (None, (1, True, 1.5, [1], ["a"])),
    "response_format": (
        {"type": "text"},
        (
            *NO_OBJECT, {}, {"type": "xml"}, {"type": 1}, {"type": "json_schema"}, {"type": "json_object", "schema": {}},
            {"type": "json_schema", "json_schema": {}}, {"type": "json_schema", "json_schema": {"schema": "{}"}},
            {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}, {"type": "structural_tag"},
        ),
    ),
    "structured_outputs": (
        None,
        (*NO_OBJECT, {"regexp": "a"}, {"regex": 1}, {"choice": []}, {"choice": [""]}, {"regex": "a", "grammar": "start: A"}),
    ),
    "guided_json": (None, (1, True, 1.5, [1], ["a"])),
    "guided_regex": (None, NO_STRING),
    "guided_choice": (None, (1, "a", {"a": 1}, [], [""], [1])),
    "guided_grammar": (None, NO_STRING),
    "user": ("u", NO_STRING),
    "metadata": (
        {"k" * 64: "v" * 512},
        (*NO_OBJECT, {"a": 1}, {"a": None}, {"a": ["b"]}, {"k" * 65: ""}, {"a": "v" * 513}, {str(i): "" for i in range(17)}),
    ),
    "store": (False, NO_BOOLEAN),
    "safety_identifier": ("u", NO_STRING),
    "prompt_cache_key": ("u", NO_STRING),
    "prompt_cache_retention": ("24h", (*NO_STRING, "48h")),
    "prompt_cache_options": ({"mode": "implicit"}, NO_OBJECT),
    "prediction": ({"type": "content", "content": "x"}, NO_OBJECT),
    "parallel_tool_calls": (True, NO_BOOLEAN),
}  # fmt: skip
CHAT_FIELDS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "messages": (HI, (1, True, "hi", {"a": 1}, [], [1], ["hi"], [None], [[]], [{}], [{"role": 1}], [{"role": "nobody"}])),
    "logprobs": (False, NO_BOOLEAN),
    "top_logprobs": (None, (*NO_INTEGER, 1, -1, 21)),
    "add_generation_prompt": (True, NO_BOOLEAN),
    "continue_final_message": (False, (*NO_BOOLEAN, True)),
    "chat_template_kwargs": ({}, (*NO_OBJECT, {"messages": []})),
    "tools": (
        [],
        (1, True, "x", {"a": 1}, [1], [None], [{}], [{"function": {}}], [{"type": "web", "function": {"name": "x"}}]),
    ),
    "tool_choice": ("auto", (1, True, 1.5, [1], "", "Auto", "required", {}, {"type": "function"}, {"function": {"name": "x"}})),
    "separate_reasoning": (True, NO_BOOLEAN),
    "include_reasoning": (True, NO_BOOLEAN),
    "enable_thinking": (False, NO_BOOLEAN),
    "reasoning_effort": ("none", (*NO_STRING, "", "some", "low")),
    "thinking_token_budget": (0, (*NO_INTEGER, -1, 2**31)),
    "thinking_budget": (0, (*NO_INTEGER, -1, 2**31)),
}
COMPLETION_FIELDS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "prompt": (
        "hi",
        (
            1, True, 1.5, {"a": 1}, "", [], [""], [[]], ["a", 1], [1, "a"], [[1], "a"], [True], [1.0], [None], [[True]],
            [[1.0]], [[[1]]], [-1], [10**6], [HUGE], [[5], [HUGE]], TOO_MANY_LONG,
        ),
    ),
    "best_of": (1, (*NO_INTEGER, 0, -1, 129)),
    "echo": (False, NO_BOOLEAN),
    "logprobs": (None, (*NO_INTEGER, -1, 21)),
    "add_special_tokens": (True, NO_BOOLEAN),
}  # fmt: skip
TABLES = {"/v1/chat/completions": {**FIELDS, **CHAT_FIELDS}, "/v1/completions": {**FIELDS, **COMPLETION_FIELDS}}
ONLY_COMPLETIONS_TAKE = {"max_tokens": 0, "max_completion_tokens": 0}
every_route = pytest.mark.parametrize("path", TABLES)


def new_entry() -> Entry:
    return Entry(ServerConfig(enable_priority_scheduling=True))


async def assert_serves(entry: Entry, path: str) -> None:
    """The canary: a normal small request succeeds, and nothing is left of an earlier one."""
    assert (await post(entry.app, path, ROUTES[path][1])).status == 200
    assert entry.manager.live_requests == 0


@every_route
def test_the_table_has_every_field(path: str) -> None:
    rules = ROUTES[path][0]
    assert set(TABLES[path]) == {*rules.honoured.__struct_fields__, *rules.without_effect}
    assert set(rules.forms) == set(rules.without_effect)


@every_route
def test_a_wrong_value_of_any_field_is_a_400_that_names_it_and_harms_nobody(path: str) -> None:
    async def scenario() -> None:
        entry = new_entry()
        for name, (_, wrong) in TABLES[path].items():
            for value in wrong:
                response = await post(entry.app, path, {**ROUTES[path][1], name: value})
                shown = f"{name} = {str(value)[:80]}"
                assert response.status == 400, (shown, response.content)
                assert (response.error["param"] or "").startswith(name), (shown, response.error)
                assert response.error["type"] == "invalid_request_error"
                assert len(response.content) < 2000, shown
                assert entry.engine.sent == [], shown
            await assert_serves(entry, path)
            entry.engine.sent.clear()

    run(scenario())


@every_route
def test_a_right_value_of_any_field_passes_and_so_does_null(path: str) -> None:
    async def scenario() -> None:
        entry = new_entry()
        for name, (right, _) in TABLES[path].items():
            response = await post(entry.app, path, {**ROUTES[path][1], name: right})
            assert response.status == 200, (name, response.content)
            if name not in ROUTES[path][1]:
                assert (await post(entry.app, path, {**ROUTES[path][1], name: None})).status == 200, name

    run(scenario())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("name", ["name", "refusal", "reasoning_content", "reasoning", "tool_call_id"])
@pytest.mark.parametrize("value", NO_STRING)
def test_what_is_no_text_in_a_message_is_refused_and_never_written_into_a_prompt(path: str, name: str, value: Any) -> None:
    async def scenario() -> None:
        entry = Entry()
        messages = [*HI, {"role": "assistant", "content": "a", name: value}]
        response = await post(entry.app, path, {"messages": messages})
        assert (response.status, response.error["param"]) == (400, f"messages[1].{name}")
        assert entry.engine.requests == []

    run(scenario())


@every_route
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", r'"\ud83d"', r'["\udc00"]', r'{"\ud800": 1}', "01"])
def test_what_is_no_json_is_refused_wherever_it_stands(path: str, value: str) -> None:
    async def scenario() -> None:
        entry = new_entry()
        for name in TABLES[path]:
            body = {key: given for key, given in ROUTES[path][1].items() if key != name}
            raw = (json.dumps(body)[:-1] + (", " if body else "") + f'"{name}": {value}}}').encode()
            response = await post(entry.app, path, raw)
            assert (response.status, response.error["code"]) == (400, "invalid_json"), (name, response.content)
        assert entry.engine.sent == []
        await assert_serves(entry, path)

    run(scenario())


@every_route
def test_every_field_that_is_refused_by_name_says_so_and_its_neutral_values_pass(path: str) -> None:
    async def scenario() -> None:
        entry = new_entry()
        for name, rule in ROUTES[path][0].refused.items():
            response = await post(entry.app, path, {**ROUTES[path][1], name: {"some": "value"}})
            assert (response.status, response.error["param"], response.error["code"]) == (400, name, "unsupported_parameter")
            assert rule.why in response.error["message"]
            for value in rule.neutral:
                assert (await post(entry.app, path, {**ROUTES[path][1], name: value})).status == 200, (name, value)

    run(scenario())


def test_only_completions_may_ask_for_no_token() -> None:
    async def scenario() -> None:
        for name, value in ONLY_COMPLETIONS_TAKE.items():
            for path, status in (("/v1/chat/completions", 400), ("/v1/completions", 200)):
                response = await post(new_entry().app, path, {**ROUTES[path][1], name: value})
                assert response.status == status
                assert status == 200 or response.error["param"] == name

    run(scenario())
