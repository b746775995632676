"""Calls that are enforced, and thought that is bounded and counted: what is sent to be held to, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.json import decode

from millstream.grammar.plan import MAX_CALLS, TurnPlan
from millstream.messages import Length, Stop
from tests.support.asgi import Response
from tests.support.engine import TOKENIZER, Entry
from tests.unit.entry.openai.test_chat_tools import CALL, PING, TEMPLATE, WEATHER, ask, entry, streamed, whole

OTHER = {"type": "function", "function": {"name": "other", "strict": True, "parameters": {"type": "object"}}}
BAD = {
    "type": "function",
    "function": {"name": "bad", "parameters": {"type": "object", "properties": {"a": {"type": "sting"}}}},
}
NAMED = {"type": "function", "function": {"name": "ping"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.fixture(scope="module")
def server() -> Iterator[Entry]:
    made = entry()
    yield made
    made.manager.close()


def plan_of(server: Entry) -> TurnPlan:
    grammar = server.engine.requests[-1].sampling.grammar
    assert grammar.kind == "turn" and grammar.checked
    return decode(grammar.source, type=TurnPlan)


@pytest.mark.parametrize(
    ("choice", "names"), [("required", ["get_weather", "ping"]), (NAMED, ["ping"]), (ALLOWED, ["ping"])], ids=str
)
def test_a_call_that_is_wanted_is_held_to_the_tools_that_may_be_called(server: Entry, choice: Any, names: list[str]) -> None:
    said = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    response = ask(server, {"tools": [WEATHER, PING], "tool_choice": choice}, said)
    assert whole(response)["finish_reason"] == "tool_calls"
    calls = plan_of(server).calls
    assert calls is not None and calls.is_required and calls.max_calls == MAX_CALLS
    assert [tool.name for tool in calls.tools] == names
    prompt = TOKENIZER.decode(server.engine.requests[-1].input_ids, skip_special_tokens=False)
    assert "get_weather" in prompt  # the model is told of all


def test_one_call_at_most_is_one_in_the_grammar(server: Entry) -> None:
    ask(server, {"tools": [PING], "tool_choice": "required", "parallel_tool_calls": False}, "x")
    calls = plan_of(server).calls
    assert calls is not None and calls.max_calls == 1


def test_a_strict_tool_is_held_to_its_schema_and_others_to_their_form(server: Entry) -> None:
    ask(server, {"tools": [WEATHER, OTHER]}, "x")
    calls = plan_of(server).calls
    assert calls is not None and not calls.is_required
    assert [tool.parameters for tool in calls.tools] == [{"type": "object"}, {"type": "object"}]
    ask(server, {"tools": [WEATHER, PING]}, "x")
    assert server.engine.requests[-1].sampling.grammar is None


def test_a_form_is_for_the_content_beside_calls_and_behind_the_thought(server: Entry) -> None:
    body = {"response_format": {"type": "json_object"}}
    answer = whole(ask(server, body | {"tools": [PING]}, '<think>a</think>{"b": 1}'))
    assert (answer["reasoning_content"], answer["content"]) == ("a", '{"b": 1}')
    plan = plan_of(server)
    assert plan.calls is not None and plan.form is not None and plan.thought is not None
    assert plan.thought.place == "possible"
    ask(server, body | {"chat_template_kwargs": {"thinking": True}}, 'a</think>{"b": 1}')
    assert (thought := plan_of(server).thought) is not None and thought.place == "open"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [WEATHER, BAD], "tool_choice": "required"}, "tools[1].function.parameters.properties.a"),
        ({"tools": [BAD | {"function": BAD["function"] | {"strict": True}}]}, "tools[0].function.parameters.properties.a"),
        (
            {"tools": [PING], "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "sting"}}}},
            "response_format.json_schema.schema",
        ),
        ({"thinking_budget": 1, "thinking_token_budget": 1}, "thinking_budget"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"reasoning_effort": "some"}, "reasoning_effort"),
    ],
)
def test_what_cannot_be_held_to_is_named(server: Entry, body: dict[str, Any], param: str) -> None:
    response = ask(server, body, "x")
    assert (response.status, response.error["param"]) == (400, param)


@pytest.mark.parametrize("field", [{"reasoning_effort": "low"}, {"thinking_token_budget": 5}, {"enable_thinking": True}])
def test_a_model_that_has_no_thoughts_refuses_what_is_said_of_them(field: dict[str, Any]) -> None:
    server = entry(reasoning_parser="none")
    response = ask(server, field, "x")
    assert (response.status, response.error["param"]) == (400, next(iter(field)))
    assert ask(server, {"reasoning_effort": "none"}, "x").status == 200


def test_the_template_is_told_where_it_can_be_and_else_a_budget_does_it(server: Entry) -> None:
    ask(server, {"enable_thinking": True}, "a</think>b")
    assert TOKENIZER.decode(server.engine.requests[-1].input_ids, skip_special_tokens=False).endswith("<think>\n")
    ask(server, {"reasoning_effort": "none"}, "b")
    assert server.engine.requests[-1].sampling.grammar is None  # the template has closed the tag
    ask(server, {"reasoning_effort": "low"}, "a</think>b")
    assert (budget := server.engine.requests[-1].sampling.grammar.budget) is not None and budget.tokens == 2048
    deaf = entry(TEMPLATE.replace("thinking", "dreaming"))
    ask(deaf, {"enable_thinking": False}, "b")
    assert (budget := deaf.engine.requests[-1].sampling.grammar.budget) is not None and budget.tokens == 0
    deaf.manager.close()


@pytest.mark.parametrize("text", ["<think>one two</think>Yes.", "<think>never closed", "No thought.", "<think></think>x"])
@pytest.mark.parametrize("finish", [Stop(), Length(9)])
def test_thought_is_counted_alike_streamed_and_whole(server: Entry, text: str, finish: Any) -> None:
    def details(response: Response, usage: dict[str, Any]) -> int:
        return int(usage["completion_tokens_details"]["reasoning_tokens"])

    pieces = list(text)
    plain = ask(server, {}, *pieces, finish=finish)
    events = ask(server, {"stream": True, "stream_options": {"include_usage": True}}, *pieces, finish=finish)
    count = details(plain, plain.body["usage"])
    assert count == details(events, events.chunks[-1]["usage"])


def test_reasoning_may_be_left_out_and_is_counted_all_the_same(server: Entry) -> None:
    text = f"<think>a</think>{CALL}"
    for stream in (False, True):
        response = ask(server, {"tools": [WEATHER], "include_reasoning": False, "stream": stream}, text)
        answer = streamed(response) if stream else whole(response)
        assert answer["reasoning_content"] == "" and len(answer["tool_calls"]) == 1
