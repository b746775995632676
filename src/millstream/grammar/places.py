"""Where in a JSON Schema a fault is: the library says what is wrong and not where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MAX_TRIES = 200  # parts of one schema that are looked at

_MAPS = ("$defs", "definitions", "properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = ("items", "additionalItems", "additionalProperties")


def faulty_part(schema: Any, message: str, fault_of: Callable[[dict[str, Any]], str]) -> str:
    """The path of the innermost part of `schema` that has the fault `message` by itself; empty where that is the whole.

    `fault_of` says what is wrong with a schema, in the words of `message`; empty where nothing is.
    """
    tries = iter(range(MAX_TRIES))
    definitions = {name: schema[name] for name in _MAPS[:2] if isinstance(schema, dict) and name in schema}
    path = ""
    part = schema
    while True:
        for step, child in _children(part):
            if next(tries, None) is None:
                return path
            if isinstance(child, dict) and fault_of({**definitions, **child}) == message:
                path = f"{path}.{step}" if path else step
                part = child
                break
        else:
            return path


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return
    for name in _MAPS:
        if isinstance(schema.get(name), dict):
            yield from ((f"{name}.{key[:100]}", child) for key, child in schema[name].items())
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            yield from ((f"{name}[{index}]", child) for index, child in enumerate(schema[name]))
    for name in _SINGLE:
        if isinstance(schema.get(name), dict):
            yield name, schema[name]
