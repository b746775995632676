"""Numbers of a schema: limits where it sets none, so that no number is written that the readers of JSON cannot hold.

The library follows limits of 64 bits. A number without any limit may have an exponent, and keeps it: to forbid that would cut
what a model means by 6.02e23 down to 6.02.
"""

from __future__ import annotations

from typing import Any

from millstream.grammar.schema_parts import LISTS, MAPS, SINGLE

LEAST_INTEGER, MOST_INTEGER = -9_223_372_036_854_774_784, 9_223_372_036_854_774_784  # what 64 bits hold, and a float, too
MOST_NUMBER = 1e18  # of one with a limit on the other side: the library has it written without an exponent
_LOW = ("minimum", "exclusiveMinimum")
_HIGH = ("maximum", "exclusiveMaximum")


def bounded(schema: Any) -> Any:
    """A copy of `schema` in which integers have limits on both sides, and numbers that have one on one side."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in MAPS:
        if isinstance(children := schema.get(name), dict):
            made[name] = {key: bounded(child) for key, child in children.items()}
    for name in LISTS:
        if isinstance(children := schema.get(name), list):
            made[name] = [bounded(child) for child in children]
    for name in SINGLE:
        if isinstance(schema.get(name), dict):
            made[name] = bounded(schema[name])
    return made | _limits(schema)


def _limits(schema: dict[str, Any]) -> dict[str, Any]:
    """The limits that it lacks."""
    types = schema.get("type")
    named = set(types) if isinstance(types, list) and all(isinstance(name, str) for name in types) else {types}
    if not named & {"integer", "number"} or "const" in schema or "enum" in schema:
        return {}
    has_low, has_high = any(name in schema for name in _LOW), any(name in schema for name in _HIGH)
    least: float
    most: float
    if "number" not in named:
        least, most = LEAST_INTEGER, MOST_INTEGER
    elif has_low or has_high:
        least, most = -MOST_NUMBER, MOST_NUMBER
    else:
        return {}
    low = max((schema[name] for name in _LOW if _is_number(schema.get(name))), default=None)
    high = min((schema[name] for name in _HIGH if _is_number(schema.get(name))), default=None)
    limits: dict[str, Any] = {}
    if not has_low and (high is None or high > least):
        limits["minimum"] = least
    if not has_high and (low is None or low < most):
        limits["maximum"] = most
    return limits


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
