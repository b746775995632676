"""Tools and reasoning through the official clients: types, stream helpers and a conversation that goes on after the call."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest
from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI

from tests.clients.test_other_clients import NODE_CLIENT, PROGRAMS, run
from tests.support.server import running_server

pytestmark = pytest.mark.long

ARGUMENTS = '{"city": "Zürich", "days": 2}'
SAID = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]


def says(text: str) -> dict[str, str]:
    """A message that the scripted executor answers with `text`, a character a step."""
    return {"role": "user", "content": f"<script>{json.dumps({'pieces': list(text)})}</script>"}


REQUEST: dict[str, Any] = {"model": "scripted", "messages": [says(SAID)], "tools": TOOLS}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_server(
        *("--executor", "scripted", "--script", "inline", "--chat-template", str(PROGRAMS / "tools.jinja")),
        *("--reasoning-parser", "qwen3"),
    ) as url:
        yield url


def test_the_python_client_gets_one_call_streamed_or_not_and_goes_on_after_it(server: str) -> None:
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(**REQUEST)
        (call,) = answer.choices[0].message.tool_calls or []
        assert answer.choices[0].finish_reason == "tool_calls"
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("weather", ARGUMENTS)
        with client.chat.completions.stream(**REQUEST) as stream:
            (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or []
        assert (streamed.function.name, streamed.function.arguments) == ("weather", ARGUMENTS)
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        turns: Any = [*REQUEST["messages"], answer.choices[0].message, result, says("It is sunny.")]
        after = client.chat.completions.create(model="scripted", messages=turns, tools=TOOLS)
        assert after.choices[0].message.content == "It is sunny."
        assert after.choices[0].finish_reason == "stop"


def test_deltas_of_a_call_name_it_once_and_then_write_its_arguments(server: str) -> None:
    async def scenario() -> list[Any]:
        async with AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(**REQUEST, stream=True)
            return [call async for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or []]

    first, *rest = asyncio.run(scenario())
    assert (first.index, first.type, first.function.name) == (0, "function", "weather")
    assert first.id
    assert all(call.id is None and call.function.name is None and call.index == 0 for call in rest)
    assert first.function.arguments + "".join(call.function.arguments for call in rest) == ARGUMENTS


def test_the_node_client_gets_the_same_call(server: str) -> None:
    if shutil.which("node") is None or not NODE_CLIENT.is_file():
        pytest.skip("node, or its client that `make test` fetches where npm can be reached, is not there")
    found = run("node", str(PROGRAMS / "tools_node.mjs"), server, NODE_CLIENT.as_uri(), json.dumps(REQUEST))
    assert found["plain"] == found["streamed"] == ["tool_calls", [["function", "weather", ARGUMENTS]]]


# --- the three APIs: a stream helper makes of a stream what the plain answer says, and all say the same

SECOND = '<tool_call>{"name": "ping"}</tool_call>'
TEXTS = {
    "plain": "Just text, and if a < b then <tool.",
    "a call": SAID,
    "text and two calls": f"I look.\n{SAID}\n{SECOND}",
    "a thought and an answer": "<think>\nHm, 世界.\n</think>\n\nDone \U0001f642.",
    "a thought and a call": f"<think>I could say {SECOND}</think>{SAID}",
    "a thought alone": "<think>never closed",
    "nobody's call": '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
}
PING: dict[str, Any] = {"type": "object", "properties": {}}
Facts = tuple[str, str, list[tuple[str, Any]]]  # reasoning, content, and the calls


def chat_facts(answer: Any) -> Facts:
    message = answer.choices[0].message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    assert answer.choices[0].finish_reason == ("tool_calls" if calls else "stop")
    return getattr(message, "reasoning_content", ""), message.content or "", calls


def message_facts(answer: Any) -> Facts:
    kinds: dict[str, list[Any]] = {"thinking": [], "text": [], "tool_use": []}
    for block in answer.content:
        kinds[block.type].append(block)
    calls = [(block.name, block.input) for block in kinds["tool_use"]]
    assert answer.stop_reason == ("tool_use" if calls else "end_turn")
    return "".join(block.thinking for block in kinds["thinking"]), "".join(block.text for block in kinds["text"]), calls


def response_facts(answer: Any) -> Facts:
    assert answer.status == "completed"
    calls = [(item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"]
    thoughts = [part.text for item in answer.output if item.type == "reasoning" for part in item.content]
    return "".join(thoughts), answer.output_text, calls


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_stream_helper_gathers_is_the_plain_answer_and_the_same_in_every_api(server: str, name: str) -> None:
    functions: Any = [("weather", PARAMETERS), ("ping", PING)]
    chat: Any = {
        "model": "scripted",
        "messages": [says(TEXTS[name])],
        "tools": [{"type": "function", "function": {"name": tool, "parameters": form}} for tool, form in functions],
    }
    message: Any = {
        "model": "scripted",
        "max_tokens": 1000,
        "messages": chat["messages"],
        "tools": [{"name": tool, "input_schema": form} for tool, form in functions],
    }
    response: Any = {
        "model": "scripted",
        "input": chat["messages"],
        "tools": [{"type": "function", "name": tool, "parameters": form, "strict": None} for tool, form in functions],
    }
    found: list[Facts] = []
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
        found.append(chat_facts(client.chat.completions.create(**chat)))
        with client.chat.completions.stream(**chat) as chunks:
            found.append(chat_facts(chunks.get_final_completion()))
        plain = client.responses.create(**response)
        found += [response_facts(plain), response_facts(client.responses.retrieve(plain.id))]
        with client.responses.stream(**response) as events:
            found.append(response_facts(events.get_final_response()))
    with Anthropic(base_url=server, api_key="none", max_retries=0) as client_of_messages:
        found.append(message_facts(client_of_messages.messages.create(**message)))
        with client_of_messages.messages.stream(**message) as stream:
            found.append(message_facts(stream.get_final_message()))
    assert found == [found[0]] * len(found)


class Weather(pydantic.BaseModel):
    """Where and how long."""

    city: Literal["Zürich", "Bern"]
    days: Literal[1, 2, 3]


def test_models_of_pydantic_go_in_as_tools_and_come_out_as_objects(server: str) -> None:
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
        tool = openai.pydantic_function_tool(Weather, name="weather")
        chat: Any = client.beta.chat.completions.parse(model="scripted", messages=[says(SAID)], tools=[tool])  # type: ignore[list-item]
        calls = chat.choices[0].message.tool_calls
        assert calls
        for call in calls:
            assert call.function.parsed_arguments == Weather.model_validate_json(call.function.arguments)
        flat: Any = {"type": "function", "strict": True, "name": "weather", "parameters": tool["function"]["parameters"]}
        response: Any = client.responses.parse(model="scripted", input=[says(SAID)], tools=[flat])  # type: ignore[list-item]
        assert response.output[0].parsed_arguments == json.loads(response.output[0].arguments)


def test_a_call_that_is_required_is_made_in_every_api_and_follows_its_schema(server: str) -> None:
    schema = Weather.model_json_schema()
    turns: Any = [says(SAID.replace("Zürich", "Wien"))]
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
        function: Any = {"type": "function", "function": {"name": "weather", "parameters": schema}}
        chat = client.chat.completions.create(
            model="scripted", messages=turns, tools=[function], tool_choice="required", parallel_tool_calls=False
        )
        (call,) = chat.choices[0].message.tool_calls or []
        assert call.type == "function" and chat.choices[0].finish_reason == "tool_calls"
        Weather.model_validate_json(call.function.arguments)
        flat: Any = {"type": "function", "name": "weather", "parameters": schema, "strict": None}
        asked: Any = {"model": "scripted", "input": turns, "tools": [flat], "parallel_tool_calls": False}
        response = client.responses.create(**asked, tool_choice={"type": "function", "name": "weather"})
        (item,) = (item for item in response.output if item.type != "reasoning")
        assert item.type == "function_call"
        Weather.model_validate_json(item.arguments)
    with Anthropic(base_url=server, api_key="none", max_retries=0) as client_of_messages:
        choice: Any = {"type": "any", "disable_parallel_tool_use": True}
        tools: Any = [{"name": "weather", "input_schema": schema}]
        message: Any = {"model": "scripted", "max_tokens": 1000, "messages": turns, "tools": tools, "tool_choice": choice}
        plain = client_of_messages.messages.create(**message)
        with client_of_messages.messages.stream(**message) as stream:
            streamed = stream.get_final_message()
        for answer in (plain, streamed):
            (use,) = (block for block in answer.content if block.type != "thinking")
            assert use.type == "tool_use" and answer.stop_reason == "tool_use"
            Weather.model_validate(use.input)


def test_models_of_pydantic_go_in_as_forms_and_come_out_as_objects(model_server: str) -> None:
    ask: Any = {"model": "smollm2-135m-instruct", "temperature": 0}
    turns: Any = [{"role": "user", "content": "Where shall we go?"}]
    found: list[Any] = []
    with OpenAI(base_url=f"{model_server}/v1", api_key="none", max_retries=0) as client:
        chat = client.beta.chat.completions.parse(**ask, messages=turns, response_format=Weather)
        found.append(chat.choices[0].message.parsed)
        found.append(client.responses.parse(**ask, input=turns, text_format=Weather).output_parsed)
        with client.responses.stream(**ask, input=turns, text_format=Weather) as events:
            found.append(events.get_final_response().output_parsed)
    with Anthropic(base_url=model_server, api_key="none", max_retries=0) as client_of_messages:
        asked: Any = {"model": ask["model"], "max_tokens": 100, "messages": turns, "output_format": Weather}
        asked["extra_body"] = {"temperature": 0}
        found.append(client_of_messages.messages.parse(**asked).parsed_output)
        with client_of_messages.messages.stream(**asked) as stream:
            found.append(stream.get_final_message().parsed_output)
    assert isinstance(found[0], Weather)
    assert found == [found[0]] * len(found)


def test_a_conversation_of_messages_and_of_responses_goes_on_after_the_call(server: str) -> None:
    with Anthropic(base_url=server, api_key="none", max_retries=0) as client_of_messages:
        asked: Any = {
            "model": "scripted",
            "max_tokens": 1000,
            "tools": [{"name": "weather", "input_schema": PARAMETERS}],
        }
        first = client_of_messages.messages.create(**asked, messages=[says(SAID)])
        (use,) = first.content
        assert use.type == "tool_use"
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
        turns: Any = [says(SAID), first.to_param(), {"role": "user", "content": [result]}, says("It is sunny.")]
        after = client_of_messages.messages.create(**asked, messages=turns)
        assert [block.to_dict() for block in after.content] == [{"type": "text", "text": "It is sunny."}]
        counted = client_of_messages.messages.count_tokens(model="scripted", messages=turns, tools=asked["tools"])
        assert counted.input_tokens == after.usage.input_tokens + (after.usage.cache_read_input_tokens or 0)
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
        flat: Any = [{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": None}]
        called = client.responses.create(model="scripted", input=[says(SAID)], tools=flat)  # type: ignore[list-item]
        (item,) = called.output
        assert item.type == "function_call"
        output: Any = [{"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}, says("It is sunny.")]
        done = client.responses.create(model="scripted", input=output, tools=flat, previous_response_id=called.id)
        assert done.output_text == "It is sunny."
