"""JSON schemas that grammars are measured with. Used by `run`."""

from __future__ import annotations

from typing import Any


def record(**properties: Any) -> dict[str, Any]:
    """An object with these properties, all of them and no others."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


STRING, INTEGER = {"type": "string", "maxLength": 40}, {"type": "integer", "minimum": 0, "maximum": 100_000}
ITEM = record(name={"type": "string"}, n={"type": "integer"}, k={"enum": ["red", "green", "blue"]})
ENDLESS = {"type": "array", "items": ITEM, "minItems": 200}  # longer than any run

# to compile
KINDS: list[dict[str, Any]] = [
    ITEM,
    ENDLESS,
    {"anyOf": [{"type": "null"}, ITEM, {"type": "string", "pattern": r"^\d{3}-[a-z]+$"}]},
    {"enum": [f"value {number}" for number in range(500)]},
    {"type": "object", "properties": {f"f{i}": {"type": ["string", "null"]} for i in range(50)}, "required": ["f0"]},
    {"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}},
    {"type": "array", "prefixItems": [ITEM, {"type": "number", "minimum": 0.5, "maximum": 7}], "items": False, "minItems": 2},
]

# to answer in
ANSWERS: dict[str, dict[str, Any]] = {
    "a person": record(first_name=STRING, last_name=STRING, age=INTEGER, country=STRING, is_member={"type": "boolean"}),
    "a verdict": record(category={"enum": ["positive", "negative", "neutral"]}, confidence=INTEGER, explanation=STRING),
    "a call": record(
        name={"const": "get_current_weather"},
        arguments=record(location=STRING, unit={"enum": ["celsius", "fahrenheit"]}, num_days=INTEGER),
    ),
    "a list": {
        "type": "array",
        "items": record(
            product_name=STRING, unit_price=INTEGER, quantity=INTEGER, availability={"enum": ["in stock", "sold out"]}
        ),
        "minItems": 3,
        "maxItems": 3,
    },
}
