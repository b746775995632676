"""The parts of a JSON schema that are schemas themselves, and where in it they stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MAPS = ("$defs", "definitions", "properties", "patternProperties")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
SINGLE = ("items", "additionalItems", "additionalProperties")


def parts(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part that is an object, the whole included, with its path; that of the whole is empty."""
    todo: list[tuple[str, Any]] = [("", schema)]
    while todo:
        path, part = todo.pop()
        if not isinstance(part, dict):
            continue
        yield path, part
        before = f"{path}." if path else ""
        for name in MAPS:
            if isinstance(part.get(name), dict):
                todo += ((f"{before}{name}.{key[:100]}", child) for key, child in part[name].items())
        for name in LISTS:
            if isinstance(part.get(name), list):
                todo += ((f"{before}{name}[{index}]", child) for index, child in enumerate(part[name]))
        todo += ((f"{before}{name}", part[name]) for name in SINGLE if isinstance(part.get(name), dict))
