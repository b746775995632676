"""Function calls and reasoning in responses: items whole, streamed and stored, the way back, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
from openai import Omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseStreamEvent

from millstream.messages import Abort, Length, Stop
from tests.support.asgi import post, run
from tests.support.engine import TOKENIZER, Entry
from tests.support.known import known
from tests.unit.entry.openai.responses.harness import PATH, ask, checked, events_of, send
from tests.unit.entry.openai.test_chat_tools import CALL, HI, TEMPLATE, TEXTS, entry
from tests.unit.entry.openai.test_chat_tools import WEATHER as CHAT_WEATHER

EVENT: Any = pydantic.TypeAdapter(ResponseStreamEvent)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
PING = {"type": "function", "name": "ping", "parameters": None, "strict": None}
ARGUMENTS = '{"city": "Zürich"}'


async def answered(server: Entry, body: dict[str, Any], *pieces: str, finish: Any = None) -> dict[str, Any]:
    """The response object of an answer, the last one of a stream."""
    server.engine.answer = server.engine.say(*pieces, finish=finish)
    response = await ask(server, body)
    assert response.status == 200, response.content
    assert server.manager.live_requests == 0
    if not body.get("stream"):
        return checked(response.body)
    state: Any = ResponseStreamState(text_format=Omit(), input_tools=Omit())
    for event in events_of(response.content):
        state.handle_event(known(EVENT.validate_python(event.data)))
    last = events_of(response.content)[-1].data["response"]
    told = [event.data["item"] for event in events_of(response.content) if event.name == "response.output_item.done"]
    assert told == last["output"]
    return checked(last)


def facts(response: dict[str, Any]) -> Any:
    """What of a response does not depend on chance."""
    items = []
    for item in response["output"]:
        assert item["id"].startswith({"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}[item["type"]])
        items.append({name: value for name, value in item.items() if name not in ("id", "call_id")})
    assert len({item["id"] for item in response["output"]}) == len(items)
    return items, response["status"], response["incomplete_details"], response["usage"]["output_tokens"]


@pytest.mark.parametrize("finish", [Stop(), Length(64)])
@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_in_any_pieces_comes_to_the_plain_response(text: str, finish: Any) -> None:
    async def scenario() -> None:
        server, body = entry(), {"tools": [WEATHER, PING]}
        drawn = random.Random(5)
        for pieces in (
            [text],
            list(text),
            [text[at : at + 7] for at in range(0, len(text), 7)],
            [text[: (cut := drawn.randrange(1, len(text)))], text[cut:]],
        ):
            plain = await answered(server, body, *pieces, finish=finish)
            streamed = await answered(server, {**body, "stream": True}, *pieces, finish=finish)
            assert facts(streamed) == facts(plain)
            assert (await send(server, "GET", streamed["id"])).body == streamed
            for item in plain["output"]:
                if item["type"] == "function_call" and item["status"] == "completed":
                    assert isinstance(json.loads(item["arguments"]), dict)

    run(scenario())


def test_items_have_the_shape_of_openai_in_the_order_of_the_text() -> None:
    async def scenario() -> None:
        response = await answered(entry(), {"tools": [WEATHER]}, f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}Done.")
        reasoning, message, first, second, end = known(OpenAIResponse.model_validate(response)).output
        assert (reasoning.type, reasoning.summary, reasoning.status) == ("reasoning", [], "completed")
        assert [(part.type, part.text) for part in reasoning.content] == [("reasoning_text", "Hm.")]
        assert (message.content[0].text, end.content[0].text) == ("I look.", "Done.")
        assert (first.type, first.name, first.arguments, first.status) == (
            "function_call", "get_weather", ARGUMENTS, "completed"
        )  # fmt: skip
        assert first.call_id.startswith("call_") and first.call_id != second.call_id
        assert response["status"] == "completed"
        assert response["tools"] == [{**WEATHER, "description": None, "strict": None}]

    run(scenario())


def test_events_come_in_openais_order() -> None:
    async def scenario() -> None:
        server = entry()
        server.engine.answer = server.engine.say_one_by_one(*f"<think>Hm.</think>I look.{CALL}")
        events = events_of((await ask(server, {"tools": [WEATHER], "stream": True})).content)
        order: list[tuple[str, Any]] = []
        for event in events[2:-1]:
            step = (event.name.removeprefix("response."), event.data["output_index"])
            if step not in order[-1:]:
                order.append(step)
        part = ["output_item.added", "content_part.added"]
        done = ["content_part.done", "output_item.done"]
        assert order == [
            *((name, 0) for name in (*part, "reasoning_text.delta", "reasoning_text.done", *done)),
            *((name, 1) for name in (*part, "output_text.delta", "output_text.done", *done)),
            *((name, 2) for name in (
                "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
            )),
        ]  # fmt: skip
        added = [event.data["item"] for event in events if event.name == "response.output_item.added"]
        assert [item["status"] for item in added] == ["in_progress"] * 3
        assert (added[2]["name"], added[2]["arguments"]) == ("get_weather", "")
        deltas = [event.data["delta"] for event in events if event.name == "response.function_call_arguments.delta"]
        assert len(deltas) > 5 and "".join(deltas) == ARGUMENTS

    run(scenario())


def test_a_call_that_is_cut_is_incomplete_and_no_part_of_what_follows() -> None:
    async def scenario() -> None:
        server = entry()
        for stream in (False, True):
            body = {"tools": [WEATHER], "stream": stream}
            response = await answered(server, body, "I look.", CALL[:-20], finish=Length(2))
            message, call = response["output"]
            assert (response["status"], message["status"], call["status"]) == ("incomplete", "completed", "incomplete")
            assert ARGUMENTS.startswith(call["arguments"])
            await answered(server, {"previous_response_id": response["id"]}, "x")
            assert prompt_of(server).count("[assistant]I look.[user]") == 1
            await answered(server, {"input": [{"role": "user", "content": "hi"}, *response["output"]]}, "x")
            assert "<tool_call>get_weather" not in prompt_of(server)

    run(scenario())


def prompt_of(server: Entry) -> str:
    return TOKENIZER.decode(server.engine.requests[-1].input_ids, skip_special_tokens=False)


async def chat_prompt(messages: list[dict[str, Any]]) -> str:
    chat = entry()
    chat.engine.answer = chat.engine.say("x")
    response = await post(chat.app, "/v1/chat/completions", {"messages": messages, "tools": [CHAT_WEATHER]})
    assert response.status == 200, response.content
    return prompt_of(chat)


def test_a_conversation_with_calls_goes_on_as_in_a_chat_by_its_id_and_in_full() -> None:
    async def scenario() -> None:
        server = entry("{% for m in messages %}({{ m.reasoning_content }}){% endfor %}" + TEMPLATE)
        said = f"<think>a</think>I look.{CALL}{CALL}"
        first = await answered(server, {"tools": [WEATHER]}, said)
        calls = first["output"][2:]
        outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"} for call in calls]
        again = {"input": outputs, "previous_response_id": first["id"], "tools": [WEATHER]}
        await answered(server, again, "Sunny.")
        by_id = prompt_of(server)
        await answered(server, {"input": [*HI, *first["output"], *outputs], "tools": [WEATHER]}, "Sunny.")
        in_full = prompt_of(server)
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        await answered(server, {"input": [*HI, *references, *outputs], "tools": [WEATHER]}, "Sunny.")
        assert by_id == in_full == prompt_of(server)
        functions = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
        tool_calls = [
            {"id": call["call_id"], "type": "function", "function": function}
            for call, function in zip(calls, functions, strict=True)
        ]
        assistant = {"role": "assistant", "content": "I look.", "reasoning_content": "a", "tool_calls": tool_calls}
        tools = [{"role": "tool", "tool_call_id": call["call_id"], "content": "sunny"} for call in calls]
        server.engine.answer = server.engine.say("x")
        body = {"messages": [*HI, assistant, *tools], "tools": [CHAT_WEATHER]}
        assert (await post(server.app, "/v1/chat/completions", body)).status == 200
        assert prompt_of(server) == by_id

    run(scenario())


def test_the_tools_of_a_response_are_counted_in_its_prompt() -> None:
    async def scenario() -> None:
        server = entry()
        body = {"input": "hi", "tools": [{**WEATHER, "description": "The weather."}], "tool_choice": "auto"}
        made = await answered(server, body, "x")
        counted = await post(server.app, f"{PATH}/input_tokens", body)
        assert counted.body["input_tokens"] == made["usage"]["input_tokens"]
        assert "The weather." in prompt_of(server)

    run(scenario())


def test_a_choice_narrows_what_is_a_call() -> None:
    async def scenario() -> None:
        server = entry()
        calls = f'{CALL}<tool_call>{{"name": "ping"}}</tool_call>'
        none = await answered(server, {"tools": [WEATHER, PING], "tool_choice": "none"}, calls)
        assert [item["type"] for item in none["output"]] == ["message"]
        assert none["output"][0]["content"][0]["text"] == calls
        assert "get_weather" not in prompt_of(server)
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "ping"}]}
        narrow = await answered(server, {"tools": [WEATHER, PING], "tool_choice": allowed}, calls)
        assert [item["type"] for item in narrow["output"]] == ["message", "function_call"]
        assert narrow["output"][0]["content"][0]["text"] == CALL
        assert narrow["tool_choice"] == allowed
        assert "get_weather" in prompt_of(server)
        one = await answered(server, {"tools": [WEATHER, PING], "parallel_tool_calls": False}, calls)
        assert [item["type"] for item in one["output"]] == ["function_call", "message"]

    run(scenario())


def test_a_response_that_breaks_off_has_what_was_made() -> None:
    async def scenario() -> None:
        server = entry()
        for text, kinds in (("<think>Hm", ["reasoning"]), (CALL[:-20], ["function_call"]), ("", [])):
            finish = Abort("aborted", "The request was aborted.", 499)
            response = await answered(server, {"tools": [WEATHER]}, text, finish=finish)
            assert (response["status"], [item["type"] for item in response["output"]]) == ("cancelled", kinds)
            assert all(item["status"] == "incomplete" for item in response["output"])

    run(scenario())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [WEATHER], "tool_choice": {}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [5]}}, "tool_choice.tools[0]"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [CHAT_WEATHER]}, "tools[0].function"),
        ({"tools": ["get_weather"]}, "tools[0]"),
        ({"tools": [WEATHER], "top_logprobs": 2}, "top_logprobs"),
        ({"input": [{"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "x"}]}]}, "input[0].content[0]"),
    ],
)
def test_what_is_wrong_about_tools_is_named(body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        response = await ask(entry(), body)
        assert (response.status, response.error["param"]) == (400, param)

    run(scenario())


def test_a_model_that_has_no_use_for_tools_says_so() -> None:
    async def scenario() -> None:
        for server in (entry("{% for m in messages %}{{ m.content }}{% endfor %}"), entry(tool_call_parser="none")):
            response = await ask(server, {"tools": [WEATHER]})
            assert (response.status, response.error["param"]) == (400, "tools")

    run(scenario())


@pytest.fixture(scope="module")
def holder() -> Iterator[Entry]:
    """An entry that compiles grammars, and whose template shows what it is told of thinking."""
    made = entry("{{ enable_thinking }}" + TEMPLATE)
    yield made
    made.manager.close()


def test_an_effort_and_a_budget_are_told_or_bound_and_counted(holder: Entry) -> None:
    async def scenario() -> None:
        server = holder
        for fields, shown, tokens in (
            ({}, "", None),
            ({"reasoning": {"effort": "none"}}, "False", None),
            ({"reasoning": {"effort": "low", "summary": "auto"}}, "True", 2048),
            ({"reasoning": {"effort": "high"}}, "True", None),
            ({"thinking_token_budget": 20}, "", 20),
        ):
            made = await answered(server, fields, "x")
            assert prompt_of(server).startswith(f"{shown}[user]hi[assistant]")
            grammar = server.engine.requests[-1].sampling.grammar
            assert (None if grammar is None or grammar.budget is None else grammar.budget.tokens) == tokens
            assert made["reasoning"] == {"effort": fields.get("reasoning", {}).get("effort"), "summary": None}
            count = {name: value for name, value in fields.items() if name == "reasoning"}
            counted = await post(server.app, f"{PATH}/input_tokens", {"input": "hi", **count})
            assert counted.body["input_tokens"] == made["usage"]["input_tokens"]

    run(scenario())


def test_tokens_of_reasoning_are_counted_in_both_modes() -> None:
    async def scenario() -> None:
        pieces = ["<think>", "so", "</think>", "4"]
        for stream in (False, True):
            server = entry()

            def answer(request: Any, server: Entry = server) -> None:
                server.engine.accept(request.rid)
                for index, piece in enumerate(pieces):
                    ids = TOKENIZER.encode(piece, add_special_tokens=False)
                    server.engine.row(request.rid, piece, ids=ids, finish=Stop() if index == len(pieces) - 1 else None)

            server.engine.answer = answer
            response = await ask(server, {"stream": stream})
            body = events_of(response.content)[-1].data["response"] if stream else response.body
            thought = len(TOKENIZER.encode("so", add_special_tokens=False))
            assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": thought}

    run(scenario())


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "name": "get_weather"}},
        {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}},
        {"tools": [{**WEATHER, "strict": True}]},
        {"text": {"format": {"type": "json_object"}}},
    ],
)
def test_an_answer_that_is_held_to_something_is_sent_with_its_grammar(holder: Entry, fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        made = await answered(holder, {"tools": [WEATHER], **fields}, CALL)
        assert [item["type"] for item in made["output"]] == ["function_call"]
        assert made["tool_choice"] == fields.get("tool_choice", "auto")
        grammar = holder.engine.requests[-1].sampling.grammar
        assert grammar is not None and grammar.kind == "turn"

    run(scenario())


def test_a_schema_that_cannot_be_followed_is_named_where_it_stands(holder: Entry) -> None:
    async def scenario() -> None:
        wrong = {"type": "object", "properties": {"city": {"type": "town"}}}
        for fields, path in (
            ({"tools": [{**WEATHER, "parameters": wrong}], "tool_choice": "required"}, "tools[0].parameters"),
            ({"text": {"format": {"type": "json_schema", "name": "x", "schema": wrong}}}, "text.format.schema"),
        ):
            response = await ask(holder, fields)
            assert (response.error["code"], response.error["param"]) == ("invalid_grammar", f"{path}.properties.city")

    run(scenario())
