"""Which types a JSON schema allows, as far as it says: parsers and grammars of tagged arguments must agree about it."""

from __future__ import annotations

from typing import Any

TYPES = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
STRING = frozenset(("string",))
MAX_REFS = 16


def allowed_types(schema: object, key: str, otherwise: frozenset[str] = STRING) -> frozenset[str]:
    """The JSON types that an object's schema allows for the member `key`; `otherwise` where it does not say."""
    root = schema if isinstance(schema, dict) else {}
    properties = root.get("properties")
    member = properties.get(key) if isinstance(properties, dict) else None
    return frozenset(_types(member, root, MAX_REFS)) or otherwise


def types_of(value: object) -> set[str]:
    """The JSON types of a value."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    if value is None:
        return {"null"}
    return {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}


def resolved(schema: Any, root: dict[str, Any]) -> Any:
    """What a schema refers to within `root`, if it does; None where that is not there."""
    for _ in range(MAX_REFS):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = root
        for step in reference[2:].split("/"):
            schema = schema.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(schema, dict) else None
    return None


def _types(schema: Any, root: dict[str, Any], depth: int) -> set[str]:
    """The types a schema names, itself or by what it refers to; none where it names none."""
    if not isinstance(schema, dict) or not depth:
        return set()
    named = schema.get("type")
    if named is not None:
        return {name for name in (named if isinstance(named, list) else [named]) if name in TYPES}
    found: set[str] = set()
    values = list(schema["enum"]) if isinstance(schema.get("enum"), list) else []
    for value in values + ([schema["const"]] if "const" in schema else []):
        found |= types_of(value)
    for word in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(word)
        for branch in branches[:64] if isinstance(branches, list) else []:
            found |= _types(branch, root, depth - 1)
    if "$ref" in schema:
        found |= _types(resolved({"$ref": schema["$ref"]}, root), root, depth - 1)
    return found
