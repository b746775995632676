"""Real models' templates: rendered as `transformers` renders them, byte for byte, or refused by both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.errors import RequestError
from millstream.text.chat_template import ChatTemplate
from millstream.text.conversation import with_parts
from tests.support.published_templates import published_templates
from tests.support.transformers_chat import SPECIAL_TOKENS, rendered

MIN_TEMPLATES = 90


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: Any, call_id: str = "call12345") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "It's <b>now</b> & here: 天气",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
HELLO = [turn("user", "Hello")]
CHAT = [turn("system", "Be brief."), turn("user", "Hi"), turn("assistant", "Hello!"), turn("user", "What's 1 < 2 & 'a'?")]
UNICODE = [turn("user", "  天气 \N{THUMBS UP SIGN}\n\n"), turn("assistant", "e\u0301\ufeff\n"), turn("user", "\u2028 &lt;")]
THOUGHT = [turn("user", "a"), turn("assistant", "<think>\nhm\n</think>\n\nb"), turn("user", "c")]
PREFILL = [turn("user", "Tell"), turn("assistant", "Once upon")]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one-turn": (HELLO, {"add_generation_prompt": True}),
    "no-generation-prompt": (HELLO, {"add_generation_prompt": False}),
    "system-and-turns": (CHAT, {"add_generation_prompt": True}),
    "system-alone": (CHAT[:1], {"add_generation_prompt": True}),
    "system-later": ([*HELLO, turn("system", "Stop.")], {"add_generation_prompt": True}),
    "two-users": ([*HELLO, *HELLO], {"add_generation_prompt": True}),
    "unicode": (UNICODE, {"add_generation_prompt": True}),
    "empty-content": ([turn("user", "")], {"add_generation_prompt": True}),
    "ends-with-the-assistant": (CHAT[:3], {"add_generation_prompt": False}),
    "named": ([turn("user", "Hi", name="ann"), turn("assistant", "Yes", name="bob"), turn("user", "?")], {}),
    "thought": (THOUGHT, {"add_generation_prompt": True}),
    "reasoning": ([turn("user", "a"), turn("assistant", "b", reasoning_content="hm"), turn("user", "c")], {}),
    "not-thinking": (HELLO, {"add_generation_prompt": True, "enable_thinking": False}),
    "thinking": (HELLO, {"add_generation_prompt": True, "enable_thinking": True, "thinking": True}),
    "continued": (PREFILL, {"continue_final_message": True}),
    "continued-after-turns": ([*CHAT, *PREFILL[1:]], {"continue_final_message": True}),
    "tools": (CHAT, {"add_generation_prompt": True, "tools": TOOLS}),
    "documents": (HELLO, {"add_generation_prompt": True, "documents": [{"title": "T", "text": "a\nb"}]}),
}


def ours(template: ChatTemplate, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    named = {name: value for name, value in options.items() if name in ("enable_thinking", "thinking")}
    rest = {"add_generation_prompt": False, **options}
    try:
        return template.render(messages, kwargs=named, **{name: rest[name] for name in rest if name not in named})
    except RequestError:
        return None


def theirs(source: str, template: ChatTemplate, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    return rendered(source, with_parts(messages) if template.style.wants_parts else messages, **options)


@pytest.fixture(scope="module")
def templates() -> dict[str, tuple[str, ChatTemplate]]:
    found = {name: (source, ChatTemplate(source, SPECIAL_TOKENS)) for name, source in published_templates().items()}
    assert len(found) >= MIN_TEMPLATES
    return found


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_rendered_as_transformers_renders_it(
    templates: dict[str, tuple[str, ChatTemplate]], name: str
) -> None:
    messages, options = CONVERSATIONS[name]
    written = 0
    for model, (source, template) in templates.items():
        text = ours(template, messages, options)
        assert text == theirs(source, template, messages, options), model
        written += text is not None
    assert written >= 10


def in_the_form_of(template: ChatTemplate, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a user of `transformers` would write by hand for this template."""
    written = []
    for message in messages:
        form = dict(message)
        if calls := message.get("tool_calls"):
            form["tool_calls"] = [
                {**each, "function": {**each["function"], "arguments": json.loads(each["function"]["arguments"])}}
                for each in calls
            ]
            form["content"] = message["content"] or (None if template.style.wants_null else "")
        written.append(form)
    return with_parts(written) if template.style.wants_parts else written


def as_clients_send(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arguments as JSON text, parts for text, null for what is empty."""
    sent = []
    for message in messages:
        form = {**message, "name": message.get("name"), "refusal": None, "tool_calls": message.get("tool_calls", [])}
        if not message["content"]:
            form["content"] = None
        elif message["role"] == "user":
            half = len(message["content"]) // 2
            form["content"] = [
                {"type": "text", "text": part} for part in (message["content"][:half], message["content"][half:])
            ]
        sent.append(form)
    return sent


def call_text(name: str, arguments: dict[str, Any], call_id: str = "call12345") -> dict[str, Any]:
    return call(name, json.dumps(arguments, ensure_ascii=False), call_id)


def contains(text: str | None, parts: list[str]) -> bool:
    return text is not None and all(part in text for part in parts)


CITY = {"city": 'Zürich <&> "q"', "days": [1, 2], "deep": {"a": None, "b": True}}
TOOL_HISTORIES = {
    "one-call": [
        turn("system", "Be brief."),
        turn("user", "Weather?"),
        turn("assistant", "", tool_calls=[call_text("get_weather", CITY)]),
        turn("tool", "rain", tool_call_id="call12345", name="get_weather"),
        turn("assistant", "5 degrees."),
        turn("user", "Thanks"),
    ],
    "call-beside-text": [
        turn("user", "Weather?"),
        turn("assistant", "Let me look.", tool_calls=[call_text("get_weather", {})]),
        turn("tool", "rain", tool_call_id="call12345", name="get_weather"),
    ],
    "two-calls": [
        turn("user", "Weather?"),
        turn("assistant", "", tool_calls=[call_text("a", {"x": 1}, "call11111"), call_text("b", {}, "call22222")]),
        turn("tool", "one", tool_call_id="call11111", name="a"),
        turn("tool", "two", tool_call_id="call22222", name="b"),
    ],
    "no-result-yet": [turn("user", "Weather?"), turn("assistant", "", tool_calls=[call_text("get_weather", CITY)])],
}


@pytest.mark.parametrize("name", TOOL_HISTORIES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no-tools", "tools"])
def test_a_history_of_tool_calls_is_rendered_as_transformers_renders_it(
    templates: dict[str, tuple[str, ChatTemplate]], name: str, tools: list[dict[str, Any]] | None
) -> None:
    written = 0
    for model, (source, template) in templates.items():
        messages = TOOL_HISTORIES[name]
        options = {"tools": tools, "add_generation_prompt": True}
        text = ours(template, as_clients_send(messages), options)
        if template.style.wants_argument_text:  # transformers makes objects of all arguments, which these templates refuse
            calls = [each["function"]["arguments"] for message in messages for each in message.get("tool_calls", [])]
            assert text is None if name == "call-beside-text" and template.style.wants_null else contains(text, calls), model
            continue
        assert text == rendered(source, in_the_form_of(template, messages), **options), model
        written += text is not None and template.writes_tool_calls
    assert written >= 10


def test_no_part_of_a_history_of_tool_calls_is_lost(templates: dict[str, tuple[str, ChatTemplate]]) -> None:
    messages = TOOL_HISTORIES["one-call"]
    for model, (_, template) in templates.items():
        text = ours(template, as_clients_send(messages), {}) if template.writes_tool_calls else None
        assert text is None or contains(text, ["get_weather", "Zürich", "rain", "5 degrees."]), model


@pytest.mark.parametrize(
    "name", ["one-turn", "system-and-turns", "unicode", "empty-content", "thought", "ends-with-the-assistant"]
)
def test_parts_and_nulls_are_rendered_as_their_text(templates: dict[str, tuple[str, ChatTemplate]], name: str) -> None:
    messages, options = CONVERSATIONS[name]
    for model, (_, template) in templates.items():
        assert ours(template, as_clients_send(messages), options) == ours(template, messages, options), model


def test_developer_instructions_stand_where_the_system_message_does(templates: dict[str, tuple[str, ChatTemplate]]) -> None:
    for model, (source, template) in templates.items():
        assert not template.style.knows_developer, model
        text = ours(template, [turn("developer", "Say BANANA."), *HELLO], {"add_generation_prompt": True})
        assert text == theirs(source, template, [turn("system", "Say BANANA."), *HELLO], {"add_generation_prompt": True}), model
