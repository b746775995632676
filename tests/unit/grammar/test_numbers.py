"""Numbers under a schema: those that JSON readers cannot hold are not written where a limit can say so."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.grammar.errors import GrammarError
from millstream.grammar.numbers import LEAST_INTEGER, MOST_INTEGER
from tests.support.schemas import SchemaGrammar

ENDLESS = "9" * 400


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": ["null", "integer"]},
        {"type": "integer", "minimum": 0},
        {"type": "integer", "multipleOf": 3},
        {"type": "integer", "minimum": 1.5, "multipleOf": 7},
        {"type": "number", "minimum": 0},
        {"type": "number", "exclusiveMinimum": 0},
        {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    ],
)
def test_numbers_that_no_reader_holds_are_not_written(schema: dict[str, Any]) -> None:
    grammar = SchemaGrammar(schema)
    assert not grammar.allows(ENDLESS)
    assert not grammar.allows("1e400")
    assert grammar.allows("2100")


def test_limits_are_those_of_64_bits_and_a_schema_s_own_come_before() -> None:
    grammar = SchemaGrammar({"type": "integer"})
    assert grammar.allows(str(LEAST_INTEGER)) and grammar.allows(str(MOST_INTEGER)) and grammar.allows("-0")
    assert not grammar.allows(str(2**63)) and not grammar.allows("1e3") and not grammar.allows("1.0")
    assert not SchemaGrammar({"type": "integer", "minimum": 5, "exclusiveMaximum": 6.5}).allows("7")
    assert SchemaGrammar({"type": "integer", "minimum": 5, "exclusiveMaximum": 6.5}).allows("6")
    assert not SchemaGrammar({"type": "number", "maximum": 0.1}).allows("0.11")
    assert SchemaGrammar({"type": "number", "exclusiveMaximum": -3}).allows("-3.00001")


def test_inner_schemas_and_members_named_like_keywords_are_bounded() -> None:
    grammar = SchemaGrammar({"type": "object", "properties": {"type": {"type": "integer"}, "items": {"type": "integer"}}})
    assert grammar.allows_value({"type": 1, "items": 2}) and not grammar.allows(f'{{"type":{ENDLESS}}}')
    assert not SchemaGrammar({"type": "array", "prefixItems": [{"type": "integer"}]}).allows(f"[{ENDLESS}]")
    assert SchemaGrammar({"enum": [10**30]}).allows(str(10**30))  # values that are given stay


def test_a_number_without_limits_may_have_an_exponent() -> None:
    assert SchemaGrammar({"type": "number"}).allows("6.02e23")


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_schemas_with_numbers_that_are_none_are_refused(value: float) -> None:
    with pytest.raises(GrammarError, match="too large"):
        SchemaGrammar({"enum": [value]})
