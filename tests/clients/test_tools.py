"""Tools through the official clients: types, stream helpers and a conversation that goes on after the call."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
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
        "--executor", "scripted", "--script", "inline", "--chat-template", str(PROGRAMS / "tools.jinja")
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
