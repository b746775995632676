"""Tools and reasoning in chats: what is offered to the model, what comes out, whole and streamed, and what is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from millstream.config import ServerConfig
from millstream.messages import Length, Stop
from tests.support.asgi import Response, post, run
from tests.support.engine import NAMES, TOKENIZER, Entry

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
PING = {"type": "function", "function": {"name": "ping"}}
TEMPLATE = """
{%- if tools %}[tools]{{ tools | tojson }}<tool_call>{% endif %}
{%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>{% endfor %}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]
{%- if thinking %}<think>
{% elif thinking is defined %}<think>

</think>

{% endif %}{% endif -%}
"""
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'


def entry(template: str = TEMPLATE, **options: Any) -> Entry:
    return Entry(ServerConfig(served_model_name=NAMES, **options), templates={"default": template})


def ask(server: Entry, body: dict[str, Any], *pieces: str, finish: Any = None) -> Response:
    async def scenario() -> Response:
        say = server.engine.say_one_by_one if body.get("stream") else server.engine.say
        server.engine.answer = say(*pieces, finish=finish)
        response = await post(server.app, PATH, {"messages": HI, **body})
        assert server.manager.live_requests == 0
        return response

    return run(scenario())


def streamed(response: Response) -> dict[str, Any]:
    """A stream joined as clients join it."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    reason = None
    for chunk in response.chunks:
        ChatCompletionChunk.model_validate(chunk)
        choice = chunk["choices"][0]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        assert delta.get("reasoning_content") == delta.get("reasoning")
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(message["tool_calls"]) and part["type"] == "function"
                message["tool_calls"].append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
            call = message["tool_calls"][part["index"]]
            call["arguments"] += part["function"]["arguments"]
            call |= {"incomplete": True} if part.get("incomplete") else {}
        reason = choice["finish_reason"] or reason
    return message | {"finish_reason": reason}


def whole(response: Response) -> dict[str, Any]:
    choice = response.body["choices"][0]
    message = choice["message"]
    calls = [
        {"id": call["id"], **call["function"]} | ({"incomplete": True} if call.get("incomplete") else {})
        for call in message.get("tool_calls", ())
    ]
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": calls,
        "finish_reason": choice["finish_reason"],
    }


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    for call in answer["tool_calls"]:
        assert call.pop("id").startswith("call_")
    return answer


TEXTS = [
    f"I look.\n{CALL}",
    f"<think>\nHm.\n</think>\n\n{CALL}\n{CALL}",
    "<think>a</think>Plain.",
    "Plain.",
    "<think>never closed",
    '<tool_call>{"name": "ping"}</tool_call>',
    '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
    f"<think>I could emit {CALL}</think>No need.",
    CALL[:50],
    "if a < b and <tool",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("finish", [Stop(), Length(9)])
def test_a_stream_in_any_pieces_and_a_plain_answer_agree(text: str, finish: Any) -> None:
    server = entry()
    body = {"tools": [WEATHER, PING]}
    plain = without_ids(whole(ask(server, body, text, finish=finish)))
    drawn = random.Random(3)
    for pieces in (
        [text],
        list(text),
        [text[at : at + 7] for at in range(0, len(text), 7)],
        text.replace(" ", " |").split("|"),
        [text[: (cut := drawn.randrange(len(text)))], text[cut:]],
    ):
        assert without_ids(streamed(ask(server, body | {"stream": True}, *pieces, finish=finish))) == plain
    for call in plain["tool_calls"]:
        if plain["finish_reason"] == "tool_calls":
            assert isinstance(json.loads(call["arguments"]), dict)


def test_a_call_has_the_shape_of_openai_and_ends_in_tool_calls() -> None:
    response = ask(entry(), {"tools": [WEATHER]}, CALL, finish=Stop("x"))
    answer = ChatCompletion.model_validate(response.body, strict=True)
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert response.body["choices"][0]["matched_stop"] is None
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.id.startswith("call_") and len(call.id) == 29
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Zürich"}')


def test_ids_of_calls_differ_and_come_once() -> None:
    server = entry()
    ids = set()
    for _ in range(2):
        answer = streamed(ask(server, {"tools": [WEATHER], "stream": True}, *f"{CALL}{CALL}"))
        ids |= {call["id"] for call in answer["tool_calls"]}
    assert len(ids) == 4


def test_a_call_cut_by_length_ends_in_length_and_says_that_it_is_incomplete() -> None:
    for stream in (False, True):
        response = ask(entry(), {"tools": [WEATHER], "stream": stream}, CALL[:-20], finish=Length(5))
        answer = streamed(response) if stream else whole(response)
        assert answer["finish_reason"] == "length"
        assert answer["tool_calls"][0]["incomplete"] is True
        assert '{"city": "Zürich"}'.startswith(answer["tool_calls"][0]["arguments"])


def test_arguments_go_on_as_they_come() -> None:
    pieces = ['<tool_call>{"name":"get_weather","arguments":{"city":"', *"x" * 200, '"}}</tool_call>']
    response = ask(entry(), {"tools": [WEATHER], "stream": True}, *pieces)
    deltas = [c for chunk in response.chunks for c in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert len(deltas) >= 200


def test_tools_reach_the_template_and_keep_control_tokens_in_the_text() -> None:
    server = entry()
    ask(server, {"tools": [WEATHER]}, "x")
    sent = server.engine.requests[-1]
    assert '"name": "get_weather"' in TOKENIZER.decode(sent.input_ids, skip_special_tokens=False)
    assert sent.sampling.skip_special_tokens is False
    ask(server, {"tools": [WEATHER], "tool_choice": "none"}, "x")
    sent = server.engine.requests[-1]
    assert "get_weather" not in TOKENIZER.decode(sent.input_ids, skip_special_tokens=False)
    assert sent.sampling.skip_special_tokens is True


def test_with_tool_choice_none_nothing_is_a_call() -> None:
    for body in ({"tools": [WEATHER], "tool_choice": "none"}, {"tool_choice": "none"}, {"tool_choice": "auto", "tools": []}):
        answer = ask(entry(), body, CALL).body["choices"][0]
        assert answer["message"] == {"role": "assistant", "content": CALL}
        assert answer["finish_reason"] == "stop"


def test_without_parallel_calls_the_first_is_one_and_the_rest_is_content() -> None:
    answer = whole(ask(entry(), {"tools": [WEATHER], "parallel_tool_calls": False}, f"{CALL}{CALL}"))
    assert (len(answer["tool_calls"]), answer["content"], answer["finish_reason"]) == (1, CALL, "tool_calls")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [WEATHER], "tool_choice": {}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER], "separate_reasoning": False}, "separate_reasoning"),
    ],
)
def test_what_is_wrong_about_tools_is_named(body: dict[str, Any], param: str) -> None:
    response = ask(entry(), body, "x")
    assert (response.status, response.error["param"]) == (400, param)


def test_a_model_that_has_no_use_for_tools_says_so() -> None:
    for server in (entry("{% for m in messages %}{{ m.content }}{% endfor %}"), entry(tool_call_parser="none")):
        response = ask(server, {"tools": [WEATHER]}, "x")
        assert (response.status, response.error["param"]) == (400, "tools")
        assert ask(server, {"tools": [WEATHER], "tool_choice": "none"}, "x").status == 200


def test_a_template_that_opens_or_closes_the_tag_decides_where_the_answer_begins() -> None:
    server = entry()
    opened = whole(ask(server, {"chat_template_kwargs": {"thinking": True}}, "Let me see", " 2+2", "</think>", "4"))
    assert (opened["reasoning_content"], opened["content"]) == ("Let me see 2+2", "4")
    closed = whole(ask(server, {"chat_template_kwargs": {"thinking": False}}, "Paris"))
    assert (closed["reasoning_content"], closed["content"]) == ("", "Paris")


def test_reasoning_stays_in_the_content_where_it_is_asked_to() -> None:
    answer = ask(entry(), {"separate_reasoning": False}, "<think>a</think>b").body["choices"][0]["message"]
    assert answer == {"role": "assistant", "content": "<think>a</think>b"}


def test_several_choices_are_read_each_for_itself() -> None:
    response = ask(entry(), {"tools": [PING], "n": 2}, '<tool_call>{"name": "ping"}', "</tool_call>")
    assert [choice["finish_reason"] for choice in response.body["choices"]] == ["tool_calls", "tool_calls"]
    assert [choice["message"]["tool_calls"][0]["function"]["arguments"] for choice in response.body["choices"]] == ["{}", "{}"]


def test_an_answer_goes_back_into_the_conversation_as_it_came() -> None:
    server = entry()
    message = ask(server, {"tools": [WEATHER]}, f"<think>a</think>{CALL}").body["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    response = ask(server, {"tools": [WEATHER], "messages": [*HI, message, result]}, "Sunny.")
    assert response.status == 200, response.content
    prompt = TOKENIZER.decode(server.engine.requests[-1].input_ids, skip_special_tokens=False)
    assert 'get_weather{"city": "Z' in prompt


def test_log_probabilities_and_token_ids_come_with_the_first_delta_of_a_row() -> None:
    body = {"tools": [WEATHER], "stream": True, "return_token_ids": True}
    response = ask(entry(), body, *CALL)
    ids = [each for chunk in response.chunks for each in chunk["choices"][0].get("token_ids", ())]
    assert len(ids) == len(CALL)
