"""Schemas of tools whose arguments are not written as one JSON object: followed to the letter, or refused by their place."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import msgspec
import pytest

from millstream.grammar.plan import PlannedCalls, PlannedTool, TurnPlan
from millstream.grammar.vocabulary import vocabulary_of
from millstream.grammar.wire import Proof
from millstream.grammar.worker import Prover
from millstream.messages.grammar import GrammarSpec
from millstream.parsing.draft import Tools
from millstream.parsing.pipeline import Reading, parse
from millstream.parsing.registry import tool_format
from millstream.parsing.stage import ToolFormat
from millstream.text.tokenizer import load_scripted_tokenizer
from tests.support.walks import Walker

TOKENIZER = load_scripted_tokenizer()
VOCABULARY = vocabulary_of(TOKENIZER, TOKENIZER.eos_token_ids)
PROVER = Prover(VOCABULARY)
WHERE = "tools[0].function.parameters"
QWEN, PYTHONIC = tool_format("qwen3_coder"), tool_format("pythonic")
FORMATS = pytest.mark.parametrize("format_", [QWEN, PYTHONIC], ids=lambda format_: format_.name)


def of(member: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"m": member}, "required": ["m"], **more}


def spec_of(format_: ToolFormat, schema: dict[str, Any]) -> GrammarSpec:
    calls = PlannedCalls(
        writings=format_.written,
        markers=(*format_.opens, *(format_.section or ())),
        bare_starts=format_.bare_starts,
        tools=(PlannedTool("t", schema, WHERE),),
        max_calls=1,
        is_required=True,
    )
    return GrammarSpec("turn", msgspec.json.encode(TurnPlan(calls=calls)).decode(), "tool_choice")


def proof_of(format_: ToolFormat, schema: dict[str, Any]) -> Proof:
    return PROVER.prove(spec_of(format_, schema))


BAD: list[tuple[dict[str, Any], str]] = [
    (of({"type": "null"}, required=5), ""),
    (of({"type": "null"}, required=None), ""),
    (of({"type": "null"}, required=[{}]), ""),
    (of({"type": "null"}, required="m"), ""),
    (of({"type": "null"}, required=["other"]), ""),
    (of({"type": "string", "maxLength": "5"}), ".properties.m"),
    (of({"type": "string", "maxLength": 10**6}), ".properties.m.maxLength"),
    (of({"type": "string", "format": ["date"]}), ".properties.m"),
    (of({"type": [["string"]]}), ".properties.m"),
    (of({"type": "string", "not": {"const": "a"}}), ".properties.m"),
    (of({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}), ".properties.m"),
    (of({"enum": "abc"}), ".properties.m"),
    (of({"$ref": "http://127.0.0.1:1/x"}), ".properties.m"),
    (of({"$ref": "#/$defs/none"}), ".properties.m"),
    (of({"$ref": "#"}), ""),
    (of({"type": "array", "items": {"$ref": "#"}}), ".properties.m.items.$ref"),
    ({**of({"$ref": "#/$defs/a"}), "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, ""),
]  # fmt: skip


@FORMATS
@pytest.mark.parametrize(("schema", "place"), BAD, ids=lambda each: json.dumps(each)[:60])
def test_a_schema_that_cannot_be_followed_is_refused_with_its_place(
    format_: ToolFormat, schema: dict[str, Any], place: str
) -> None:
    proof = proof_of(format_, schema)
    assert proof.error
    assert proof.place.startswith(WHERE + place), proof


def test_tags_hold_no_numbers_in_members_without_names_and_no_pattern_beside_given_strings() -> None:
    proof = proof_of(QWEN, {"type": "object", "additionalProperties": {"type": "integer"}})
    assert proof.place == f"{WHERE}.additionalProperties"
    proof = proof_of(QWEN, of({"type": "string", "enum": ["abc", "x1"], "pattern": "^[a-z]+$"}))
    assert proof.place == f"{WHERE}.properties.m.pattern"


GOOD: list[tuple[ToolFormat, dict[str, Any]]] = [
    (QWEN, {"type": "object", "required": ["zz"]}),
    (PYTHONIC, {"type": "object", "required": ["zz"]}),
    (PYTHONIC, {"type": "object", "additionalProperties": {"type": "integer", "maximum": 99}}),
    (PYTHONIC, of({"type": "boolean"}, required=["zz", "m"], additionalProperties={"enum": [1, 2]})),
    (QWEN, of({"type": "boolean"}, required=["zz"], additionalProperties=True)),
]


@pytest.mark.parametrize(("format_", "schema"), GOOD, ids=lambda each: getattr(each, "name", "schema"))
def test_required_members_and_those_without_a_name_follow_the_schema(format_: ToolFormat, schema: dict[str, Any]) -> None:
    assert not proof_of(format_, schema).error
    walker = Walker(VOCABULARY)
    matcher = walker.matcher(spec_of(format_, schema))
    ends = tuple("".join(way.value[:2]) for way in format_.written if way.style == "tagged")
    for seed in range(6):
        text = walker.walk(matcher, random.Random(seed), free=20, ends=ends)
        (call,) = parse(text, Reading(tool_format=format_, tools=Tools({"t": schema}))).calls
        jsonschema.validate(json.loads(call.arguments), schema)
