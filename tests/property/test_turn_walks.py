"""What the grammar of a whole answer lets through, our own parser reads back as complete calls of the tools' schemas."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import jsonschema
import msgspec
import pytest

from millstream.grammar.plan import MAX_CALLS, PlannedCalls, PlannedThought, PlannedTool, TurnPlan
from millstream.grammar.vocabulary import vocabulary_of
from millstream.messages.grammar import GrammarSpec
from millstream.parsing.draft import Tools
from millstream.parsing.pipeline import Reading, parse
from millstream.parsing.registry import TOOL_FORMATS, reasoning_format
from millstream.parsing.stage import ToolFormat
from millstream.text.tokenizer import load_scripted_tokenizer
from tests.support.published_tokenizers import published
from tests.support.walks import Walker

OWN = {
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v3",
    "gpt-oss": "gptoss",
    "mistral": "tekken",
    "llama3": "llama3_1",
}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"]},
        "hourly": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
        "note": {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]},
    },
    "required": ["city", "unit"],
}
PLACE = {
    "$defs": {
        "point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}
    },
    "type": "object",
    "properties": {
        "at": {"$ref": "#/$defs/point"},
        "code": {"type": "string", "pattern": "^[A-Z]{2,4}-[0-9]+$", "maxLength": 12},
        "größe": {"type": ["integer", "string"]},
        "when": {"type": "string", "format": "date"},
    },
    "required": ["at", "code"],
}
FORMATS = [format_ for format_ in TOOL_FORMATS if format_.written]
SCHEMAS: dict[str, Any] = {
    "get_weather": WEATHER,
    "ping": None,
    "find-place": PLACE,
    "empty": {"type": "object", "properties": {}},
}


@functools.cache
def walker(name: str) -> Walker:
    tokenizer = load_scripted_tokenizer() if name == "scripted" else published(name)
    return Walker(vocabulary_of(tokenizer, tokenizer.eos_token_ids))


def planned(format_: ToolFormat, schemas: dict[str, Any], *, is_required: bool, max_calls: int = MAX_CALLS) -> PlannedCalls:
    return PlannedCalls(
        writings=format_.written,
        markers=(*format_.opens, *(format_.section or ())),
        bare_starts=format_.bare_starts,
        tools=tuple(PlannedTool(name, schema, f"tools.{name}") for name, schema in schemas.items()),
        max_calls=max_calls,
        is_required=is_required,
    )


def ends_of(format_: ToolFormat) -> tuple[str, ...]:
    return tuple("".join(way.value[:2]) for way in format_.written if way.style == "tagged")


def spec_of(plan: TurnPlan) -> GrammarSpec:
    return GrammarSpec("turn", msgspec.json.encode(plan).decode(), "tools")


def schemas_for(format_: ToolFormat) -> dict[str, Any]:
    if format_.name != "pythonic":
        return SCHEMAS
    properties = {key: value for key, value in PLACE["properties"].items() if key.isascii()}
    return {**SCHEMAS, "find-place": {**PLACE, "properties": properties}}


@pytest.mark.parametrize("is_own", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.name)
def test_enforced_calls_are_read_back_whole(format_: ToolFormat, is_own: bool) -> None:
    name = OWN.get(format_.name, "qwen3") if is_own else "scripted"
    schemas = schemas_for(format_)
    drawn = random.Random(f"{format_.name} {name}")
    walks = walker(name)
    matcher = walks.matcher(spec_of(TurnPlan(calls=planned(format_, schemas, is_required=True))))
    for _ in range(3 if is_own else 8):
        text = walks.walk(matcher, drawn, ends=ends_of(format_))
        parsed = parse(text, Reading(tool_format=format_, tools=Tools(schemas)))
        assert parsed.ends_in_calls and not parsed.content, text
        for call in parsed.calls:
            arguments = json.loads(call.arguments)
            jsonschema.validate(arguments, schemas[call.name] or {"maxProperties": 0})
            assert call.name in ("get_weather", "find-place") or arguments == {}


@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.name)
def test_one_call_is_exactly_one_and_comes_after_the_thought(format_: ToolFormat) -> None:
    drawn = random.Random(format_.name)
    walks = walker("scripted")
    thinks = reasoning_format("gpt-oss" if format_.name == "gpt-oss" else "qwen3")
    for place in ("open", "possible", "over"):
        if place == "open" and thinks.frames is not None:
            continue
        thought = PlannedThought(frame=thinks.frame, place=place)
        plan = TurnPlan(thought=thought, calls=planned(format_, SCHEMAS | {"find-place": None}, is_required=True, max_calls=1))
        matcher = walks.matcher(spec_of(plan))
        for _ in range(4):
            text = walks.walk(matcher, drawn, free=25, ends=ends_of(format_), once=thinks.end)
            reading = Reading(thinks, format_, Tools(SCHEMAS | {"find-place": None}), is_open=place == "open")
            parsed = parse(text, reading)
            assert len(parsed.calls) == 1 and parsed.calls[0].is_complete and not parsed.content, text


@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.name)
def test_beside_text_or_a_form_calls_are_whole_as_well(format_: ToolFormat) -> None:
    drawn = random.Random(format_.name)
    walks = walker("scripted")
    form = GrammarSpec("json_schema", '{"type": "array", "items": {"type": "integer"}}', "response_format")
    thinks = reasoning_format("gpt-oss" if format_.name == "gpt-oss" else "qwen3")
    for of_content in (None, form):
        calls = planned(format_, {"ping": None, "get_weather": WEATHER}, is_required=False)
        thought = PlannedThought(frame=thinks.frame, place="possible")
        matcher = walks.matcher(spec_of(TurnPlan(thought=thought, calls=calls, form=of_content)))
        for _ in range(8):
            text = walks.walk(matcher, drawn, free=30, ends=ends_of(format_), once=thinks.end)
            parsed = parse(text, Reading(thinks, format_, Tools({"ping": None, "get_weather": WEATHER})))
            assert all(call.is_complete for call in parsed.calls), text
            if of_content is not None:
                assert bool(parsed.calls) != bool(parsed.content), text
                assert parsed.calls or isinstance(json.loads(parsed.content), list)
