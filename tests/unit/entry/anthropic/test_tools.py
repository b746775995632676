"""Tools and thinking in messages: blocks whole and streamed, the way back into a conversation, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jiter
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given
from hypothesis import strategies as st

from millstream.entry.anthropic.content import SIGNATURE
from millstream.entry.anthropic.partial_json import closed
from millstream.messages import Length, Stop
from tests.support.asgi import Response, post, run
from tests.support.engine import TOKENIZER, Entry
from tests.unit.entry.anthropic.harness import COUNT, EVENT, HI, ask, count_of, error_of, events_of, message_of
from tests.unit.entry.openai.test_chat_tools import CALL, TEXTS, entry
from tests.unit.entry.openai.test_chat_tools import WEATHER as CHAT_WEATHER

WEATHER = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
PING = {"name": "ping", "input_schema": {"type": "object"}}
DOCUMENT = (
    r'{"a": [1, -2.5e3, "x\"}]", {"b": null, "ключ": [[], {}]}], "c\\": {"d": true}, "e": "\u00e9 [", "f" : 0 , "g":[[1]] }'
)


def stream_of(response: Response) -> list[dict[str, Any]]:
    """The events of a stream, but for pings."""
    return [data for name, data in events_of(response.content) if name != "ping"]


def gathered(response: Response) -> dict[str, Any]:
    """The message that the official client's stream helper makes of a stream."""
    message, buffers = None, {}  # type: ignore[var-annotated]
    for data in stream_of(response):
        message = accumulate_event(event=EVENT.validate_python(data), current_snapshot=message, json_bufs=buffers)
    assert message is not None
    return message.to_dict(mode="json")


def facts(message: dict[str, Any]) -> tuple[list[dict[str, Any]], Any, int]:
    """Blocks, without the drawn ids of calls, the end, and what it cost."""
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return blocks, message["stop_reason"], message["usage"]["output_tokens"]


def said(body: dict[str, Any], *pieces: str, finish: Any = None, server: Entry | None = None) -> Response:
    return ask({"max_tokens": 64, **body}, *pieces, finish=finish, entry=server or entry())[0]


@pytest.mark.parametrize("finish", [Stop(), Length(64), Stop("END")])
@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_in_any_pieces_comes_to_the_plain_message(text: str, finish: Any) -> None:
    server, body = entry(), {"tools": [WEATHER, PING]}
    drawn = random.Random(5)
    for pieces in (
        [text],
        list(text),
        [text[at : at + 7] for at in range(0, len(text), 7)],
        [text[: (cut := drawn.randrange(1, len(text)))], text[cut:]],
    ):
        plain = message_of(said(body, *pieces, finish=finish, server=server)).to_dict(mode="json")
        assert facts(gathered(said({**body, "stream": True}, *pieces, finish=finish, server=server))) == facts(plain)
        calls = [block for block in plain["content"] if block["type"] == "tool_use"]
        assert (plain["stop_reason"] == "tool_use") <= bool(calls)


def test_blocks_come_in_their_order_and_each_is_opened_and_closed() -> None:
    text = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}Done."
    events = stream_of(said({"tools": [WEATHER], "stream": True}, *text, finish=Stop()))
    shape: list[Any] = []
    for event in events:
        if event["type"] == "content_block_start":
            shape.append((event["index"], event["content_block"]["type"]))
        elif event["type"] == "content_block_delta" and shape[-1] != (event["index"], event["delta"]["type"]):
            shape.append((event["index"], event["delta"]["type"]))
        elif event["type"] == "content_block_stop":
            shape.append((event["index"], "stop"))
    assert shape == [
        (0, "thinking"), (0, "thinking_delta"), (0, "signature_delta"), (0, "stop"),
        (1, "text"), (1, "text_delta"), (1, "stop"),
        (2, "tool_use"), (2, "input_json_delta"), (2, "stop"),
        (3, "tool_use"), (3, "input_json_delta"), (3, "stop"),
        (4, "text"), (4, "text_delta"), (4, "stop"),
    ]  # fmt: skip
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None}


def test_a_call_has_the_shape_of_anthropic_and_its_input_as_the_model_wrote_it() -> None:
    response = said({"tools": [WEATHER]}, f"<think>a</think>{CALL}{CALL}")
    message = message_of(response)
    assert message.stop_reason == "tool_use"
    thought, first, second = message.content
    assert thought.type == "thinking" and (thought.thinking, thought.signature) == ("a", SIGNATURE)
    assert first.type == second.type == "tool_use"
    assert (first.name, first.input) == ("get_weather", {"city": "Zürich"})
    assert first.id != second.id and first.id.startswith("toolu_")
    assert '"input":{"city": "Zürich"}' in response.content.decode()


def test_numbers_that_no_float_can_hold_stay_as_they_are() -> None:
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": 123456789012345678901234567890}}</tool_call>'
    assert b'{"city": 123456789012345678901234567890}' in said({"tools": [WEATHER]}, call).content


def test_input_goes_on_as_it_is_made() -> None:
    pieces = ['<tool_call>{"name":"get_weather","arguments":{"city":"', *"x" * 100, '"}}</tool_call>']
    server = entry()

    async def scenario() -> Response:
        server.engine.answer = server.engine.say_one_by_one(*pieces)
        body = {"model": "tiny", "messages": HI, "tools": [WEATHER], "stream": True, "max_tokens": 200}
        return await post(server.app, "/v1/messages", body)

    deltas = [event for event in stream_of(run(scenario())) if event.get("delta", {}).get("type") == "input_json_delta"]
    assert len(deltas) >= 100


@given(st.integers(1, len(DOCUMENT)))
def test_an_input_that_broke_off_is_what_the_client_makes_of_it(length: int) -> None:
    beginning = DOCUMENT[:length]
    assert json.loads(closed(beginning)) == jiter.from_json(beginning.encode(), partial_mode=True)


def test_an_input_of_which_nothing_came_is_empty() -> None:
    assert closed("") == closed("{") == "{}"
    assert len(closed('{"a":' + "[" * 50_000)) == 100_006  # within no time


@pytest.mark.parametrize("choice", [{"type": "none"}, {"type": "auto"}])
def test_without_tools_that_may_be_called_nothing_is_a_call(choice: dict[str, Any]) -> None:
    tools = [WEATHER] if choice["type"] == "none" else []
    server = entry()
    message = message_of(said({"tools": tools, "tool_choice": choice}, CALL, server=server))
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": CALL}]
    assert message.stop_reason == "end_turn"
    assert "get_weather" not in prompt_of(server)


def prompt_of(server: Entry) -> str:
    return TOKENIZER.decode(server.engine.requests[-1].input_ids, skip_special_tokens=False)


def test_without_parallel_use_the_first_call_is_one_and_the_rest_is_text() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = message_of(said({"tools": [WEATHER], "tool_choice": choice}, f"{CALL}{CALL}"))
    assert [block.type for block in message.content] == ["tool_use", "text"]


def test_tools_are_told_to_the_model_as_in_the_same_chat_and_counted() -> None:
    server, chat = entry(), entry()
    tools = [{**WEATHER, "description": "The weather.", "cache_control": {"type": "ephemeral"}, "input_examples": []}]
    said({"tools": tools}, "x", server=server)
    counted = ask({"tools": tools}, entry=server, path=COUNT)[0]

    async def scenario() -> None:
        chat.engine.answer = chat.engine.say("x")
        function = {"name": "get_weather", "description": "The weather.", "parameters": WEATHER["input_schema"]}
        body = {"messages": HI, "tools": [{"type": "function", "function": function}]}
        assert (await post(chat.app, "/v1/chat/completions", body)).status == 200

    run(scenario())
    assert prompt_of(server) == prompt_of(chat)
    assert count_of(counted) == len(server.engine.requests[-1].input_ids)


def test_an_answer_goes_back_into_the_conversation_as_in_a_chat() -> None:
    server, chat = entry(), entry()
    first = message_of(said({"tools": [WEATHER]}, f"<think>a</think>I look.{CALL}", server=server))
    call = first.content[-1]
    assert call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}], "is_error": False}
    turns = [*HI, first.to_param(), {"role": "user", "content": [result]}]
    turns[1]["content"] = [block.to_dict() for block in first.content]
    answer = said({"tools": [WEATHER], "messages": turns}, "Sunny.", server=server)
    assert message_of(answer).stop_reason == "end_turn"

    async def scenario() -> None:
        chat.engine.answer = chat.engine.say("x")
        function = {"name": "get_weather", "arguments": '{"city": "Zürich"}'}
        calls = [{"id": call.id, "type": "function", "function": function}]
        assistant = {"role": "assistant", "content": "I look.", "reasoning_content": "a", "tool_calls": calls}
        tool = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "sunny"}
        body = {"messages": [*HI, assistant, tool], "tools": [CHAT_WEATHER]}
        assert (await post(chat.app, "/v1/chat/completions", body)).status == 200

    run(scenario())
    assert prompt_of(server) == prompt_of(chat)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [WEATHER], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "any", "name": "get_weather"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "input_schema": 5}]}, "tools[0].input_schema"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**WEATHER, "parameters": {}}]}, "tools[0].parameters"),
        ({"tools": ["get_weather"]}, "tools[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type"),
        ({"output_config": {"depth": 1}}, "output_config"),
    ],
)
def test_what_is_wrong_about_tools_and_form_is_named(body: dict[str, Any], param: str) -> None:
    for path in ("/v1/messages", COUNT):
        error = error_of(ask(body, entry=entry(), path=path)[0])
        assert (error["type"], error["details"]["param"]) == ("invalid_request_error", param)


def test_a_server_tool_is_refused_by_its_name() -> None:
    error = error_of(said({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "x"))
    assert "web_search_20250305" in error["message"]


def test_a_model_that_has_no_use_for_tools_says_so() -> None:
    for server in (entry("{% for m in messages %}{{ m.content }}{% endfor %}"), entry(tool_call_parser="none")):
        error = error_of(said({"tools": [WEATHER]}, "x", server=server))
        assert error["details"]["param"] == "tools"


def test_an_answer_of_nothing_is_one_empty_text() -> None:
    for stream in (False, True):
        response = said({"tools": [WEATHER], "stream": stream}, "")
        message = gathered(response) if stream else response.body
        assert message["content"] == [{"type": "text", "text": ""}]


def test_a_template_that_opened_the_tag_begins_the_answer_with_a_thought() -> None:
    message = message_of(said({"chat_template_kwargs": {"thinking": True}}, "2+2", "</think>", "4"))
    assert [(block.type, block.to_dict()[block.type]) for block in message.content] == [("thinking", "2+2"), ("text", "4")]


@pytest.fixture(scope="module")
def thinker() -> Iterator[Entry]:
    """An entry whose template shows what it is told of thinking, and closes an empty thought where that is off."""
    made = entry(
        "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}[{{ m.content }}]{% endfor %}"
        "{{ enable_thinking }}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    )
    yield made
    made.manager.close()


@pytest.fixture(scope="module")
def holder() -> Iterator[Entry]:
    """An entry that compiles grammars."""
    made = entry()
    yield made
    made.manager.close()


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "[hi]"),
        ({"thinking": {"type": "adaptive"}}, "[hi]"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "[hi]True"),
        ({"thinking": {"type": "disabled"}}, "[hi]False<think></think>"),
        ({"output_config": {"effort": "low"}}, "[hi]True"),
    ],
)
def test_thinking_is_told_to_the_template_and_counted_so(thinker: Entry, fields: dict[str, Any], shown: str) -> None:
    server = thinker
    response = said(fields, "x", server=server)
    assert message_of(response).stop_reason == "end_turn"
    assert prompt_of(server) == shown
    counted = ask(fields, entry=server, path=COUNT)[0]
    assert count_of(counted) == len(server.engine.requests[-1].input_ids)


def test_a_budget_bounds_the_thought_and_an_effort_is_one(thinker: Entry) -> None:
    server = thinker
    for fields, tokens in (
        ({"thinking": {"type": "enabled", "budget_tokens": 20}}, 20),
        ({"output_config": {"effort": "low"}}, 2048),
        ({"output_config": {"effort": "low"}, "thinking": {"type": "enabled", "budget_tokens": 20}}, 20),
        ({"output_config": {"effort": "max"}}, None),
    ):
        said(fields, "x", server=server)
        grammar = server.engine.requests[-1].sampling.grammar
        assert (None if grammar is None or grammar.budget is None else grammar.budget.tokens) == tokens


def test_tokens_of_thought_are_counted_in_both_modes() -> None:
    pieces = ["<think>", "so", "</think>", "4"]
    for stream in (False, True):
        server = entry()

        def answer(request: Any, server: Entry = server) -> None:
            server.engine.accept(request.rid)
            for index, piece in enumerate(pieces):
                ids = TOKENIZER.encode(piece, add_special_tokens=False)
                server.engine.row(request.rid, piece, ids=ids, finish=Stop() if index == len(pieces) - 1 else None)

        server.engine.answer = answer
        response, _ = ask({"stream": stream, "max_tokens": 64}, entry=server)
        message = gathered(response) if stream else message_of(response).to_dict(mode="json")
        thought = len(TOKENIZER.encode("so", add_special_tokens=False))
        assert message["usage"]["output_tokens_details"] == {"thinking_tokens": thought}


def test_thoughts_that_are_omitted_leave_an_empty_block() -> None:
    body = {"thinking": {"type": "adaptive", "display": "omitted"}}
    for stream in (False, True):
        response = said({**body, "stream": stream}, "<think>secret</think>4")
        message = gathered(response) if stream else response.body
        thought, text = message["content"]
        assert (thought, text["text"]) == ({"type": "thinking", "thinking": "", "signature": SIGNATURE}, "4")


@pytest.mark.parametrize(
    "fields", [{"thinking": {"type": "enabled", "budget_tokens": 5}}, {"output_config": {"effort": "max"}}]
)
def test_thinking_is_refused_by_name_where_the_model_has_none(fields: dict[str, Any]) -> None:
    error = error_of(said(fields, "x", server=entry(reasoning_parser="none")))
    assert error["details"]["param"] == ("thinking" if "thinking" in fields else "output_config.effort")


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "get_weather"}},
        {"tools": [{**WEATHER, "strict": True}]},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    ],
)
def test_an_answer_that_is_held_to_something_is_sent_with_its_grammar(holder: Entry, fields: dict[str, Any]) -> None:
    response = said({"tools": [WEATHER], **fields}, CALL, server=holder)
    assert message_of(response).stop_reason == "tool_use"
    grammar = holder.engine.requests[-1].sampling.grammar
    assert grammar is not None and grammar.kind == "turn"


def test_a_schema_that_cannot_be_followed_is_named_where_it_stands(holder: Entry) -> None:
    wrong = {"type": "object", "properties": {"city": {"type": "town"}}}
    for fields, path in (
        ({"tools": [{**WEATHER, "input_schema": wrong}], "tool_choice": {"type": "any"}}, "tools[0].input_schema"),
        ({"output_config": {"format": {"type": "json_schema", "schema": wrong}}}, "output_config.format.schema"),
    ):
        error = error_of(said(fields, "x", server=holder))
        assert (error["details"]["error_code"], error["details"]["param"]) == (
            "invalid_grammar",
            f"{path}.properties.city",
        )
