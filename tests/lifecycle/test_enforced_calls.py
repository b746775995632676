"""Enforced calls of the embedded model, which was never taught any: each is complete and follows the schema of its tool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest

from tests.clients.test_other_clients import PROGRAMS
from tests.support.server import running_server

pytestmark = pytest.mark.long

BUDGET = 6
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city", "unit"],
    },
    "größe": {
        "type": "object",
        "properties": {"at": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}},
        "required": ["at"],
    },
    "ping": {"type": "object", "properties": {}},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_server("--chat-template", str(PROGRAMS / "tools.jinja"), "--reasoning-parser", "qwen3") as url:
        yield url


def test_every_enforced_call_is_complete_and_follows_its_schema(server: str) -> None:
    def ask(seed: int) -> dict[str, Any]:
        body = {
            "messages": [{"role": "user", "content": "How is the weather in Bern?"}],
            "tools": TOOLS,
            "tool_choice": NAMED if seed % 3 == 0 else "required",
            "parallel_tool_calls": False,
            "thinking_token_budget": BUDGET,
            "temperature": 1,
            "seed": seed,
            "max_tokens": 400,
        }
        answer = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=240)
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(24)))
    for seed, answer in enumerate(answers):
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "tool_calls", choice
        (call,) = choice["message"]["tool_calls"]
        assert not choice["message"]["content"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
        assert call["function"]["name"] == "get_weather" or seed % 3
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= BUDGET + 3
