"""The arguments of calls that are not one JSON object: tagged parameters, and keyword arguments as Python writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from millstream.grammar.compose import Composer, one_of, quoted
from millstream.grammar.errors import GrammarError
from millstream.grammar.schema_types import allowed_types
from millstream.grammar.strings import WORDS, branches, is_string, looks_like_json, text_body
from millstream.grammar.writing import Writing

JsonPart = Callable[[dict[str, Any]], str]  # the part of a grammar that a schema is

_BEYOND = (  # what says more of an object than which members it has
    *("$ref", "anyOf", "oneOf", "allOf", "not", "if", "enum", "const", "patternProperties", "propertyNames", "minProperties"),
    *("maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
)
_DEFINITIONS = ("#/$defs/", "#/definitions/")
_PYTHON_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_TAG_NAME = re.compile(r"[^<>\s](?:[^<>\n]*[^<>\s])?")


def tagged_arguments(composer: Composer, writing: Writing, schema: dict[str, Any], where: str, json: JsonPart) -> str:
    """Each parameter between its tags, in the order of the schema.

    Raises:
        GrammarError: the schema says what cannot be held so; `place` is where.
    """
    value_end, close, after = writing.value

    def member(key: str, value: str) -> str:
        return f"{composer.literal(writing.key[0])} {key} {composer.literal(writing.key[1])} {value} {composer.literal(after)}"

    properties = _properties(schema, where)
    if properties is None:
        if schema.get("additionalProperties", True) not in (True, False, {}):
            raise GrammarError("this model's format cannot hold members that are not named", f"{where}.additionalProperties")
        key = composer.terminal("/[A-Za-z_][A-Za-z0-9_]{0,63}/")
        any_member = member(key, composer.up_to(composer.without((close,)), close, value_end))
        return f"({any_member})*" if schema.get("additionalProperties", True) is not False else ""
    required = schema.get("required", ())
    rules = []
    for key, of_member in properties.items():
        place = f"{where}.properties.{key[:100]}"
        if not _TAG_NAME.fullmatch(key):
            raise GrammarError("this model's format cannot write such a name", place)
        value = _tagged_value(composer, writing, schema, key, of_member, place, json)
        rules.append(composer.rule(member(composer.literal(key), value)) + ("" if key in required else "?"))
    return " ".join(rules)


def python_arguments(composer: Composer, schema: dict[str, Any], where: str, json: JsonPart) -> str:
    """`key=VALUE` of each, in the order of the schema, with commas between. Raises as `tagged_arguments` does."""
    properties = _properties(schema, where)
    if properties is None:
        if schema.get("additionalProperties", True) is False:
            return ""
        value = json(_with_definitions(schema.get("additionalProperties"), schema))
        any_member = f'{composer.terminal("/[A-Za-z_][A-Za-z0-9_]{0,63}/")} "=" {value}'
        return f'({any_member} (", " {any_member})*)?'
    required = schema.get("required", ())
    behind = ""  # what may follow once there was one
    first = ""  # what may follow where there was none
    for key, of_member in reversed(properties.items()):
        place = f"{where}.properties.{key[:100]}"
        if not _PYTHON_NAME.fullmatch(key):
            raise GrammarError("this model's format cannot write such a name", place)
        member = f"{quoted(key + '=')} {json(_with_definitions(of_member, schema))}"
        is_needed = key in required
        begun = composer.rule(f"{member} {behind}")
        first = begun if is_needed or not first else composer.rule(f"{begun} | {first}")
        if not is_needed and begun == first and not _any_required(properties, required, behind_key=key):
            first = composer.rule(f"{begun}?")
        more = f'", " {begun}'
        behind = composer.rule(more if is_needed else f"{more} | {behind}" if behind else f"({more})?")
    return first


def _any_required(properties: dict[str, Any], required: Any, *, behind_key: str) -> bool:
    names = list(properties)
    return any(name in required for name in names[names.index(behind_key) + 1 :])


def _properties(schema: dict[str, Any], where: str) -> dict[str, Any] | None:
    """The members that a schema names, also as required ones; None where it names none."""
    for word in _BEYOND:
        if word in schema:
            raise GrammarError("for this model's format the arguments must be an object of properties", f"{where}.{word}")
    properties = schema.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise GrammarError("it must be an object", f"{where}.properties")
    _check_references(schema, where)
    others = schema.get("additionalProperties", True)
    unnamed = [name for name in schema.get("required", ()) if name not in (properties or {})]
    if unnamed and others is False:
        raise GrammarError(f"{unnamed[0][:100]!r} is none of the properties", f"{where}.required")
    return {**(properties or {}), **dict.fromkeys(unnamed, others)} if unnamed else properties


def _check_references(schema: dict[str, Any], where: str) -> None:
    """Members are held each by itself: of the whole they know the definitions, and nothing else."""
    todo: list[tuple[str, Any]] = [(where, schema)]
    while todo:
        place, part = todo.pop()
        if isinstance(part, list):
            todo += ((f"{place}[{index}]", each) for index, each in enumerate(part))
        if not isinstance(part, dict):
            continue
        reference = part.get("$ref")
        if isinstance(reference, str) and not reference.startswith(_DEFINITIONS):
            raise GrammarError("in this model's format only definitions can be referred to", f"{place}.$ref")
        todo += ((f"{place}.{key[:100]}", each) for key, each in part.items())


def _tagged_value(
    composer: Composer, writing: Writing, schema: dict[str, Any], key: str, member: Any, place: str, json: JsonPart
) -> str:
    """A value and the marker behind it. A string is written as it is, all else as JSON."""
    value_end, close, _ = writing.value
    types = allowed_types(schema, key)
    parts = branches(member, schema)
    others = [part for part in parts if not is_string(part)]
    ways: list[str] = []
    free = composer.without((close,))
    for part in parts:
        if part in others:
            continue
        values = part["enum"] if isinstance(part.get("enum"), list) else [part["const"]] if "const" in part else None
        if values is None:
            body = text_body(composer, free, part, place, is_mixed=types != {"string"})
            ways.append(composer.up_to(body, close, value_end))
            continue
        if beside := next((word for word in WORDS if word in part), None):
            raise GrammarError("this model's format cannot hold it beside values that are given", f"{place}.{beside}")
        for value in values:
            if not isinstance(value, str) or close in value:
                raise GrammarError("this model's format cannot write one of the values", place)
            if types == {"string"} or not looks_like_json(value):
                ways.append(composer.literal(value + value_end + close))
    if others:
        whole = others[0] if len(others) == 1 else {"anyOf": others}
        ways.append(f"{json(_with_definitions(whole, schema))} {composer.literal(value_end + close)}")
    if not ways:
        raise GrammarError("it allows no text", place)
    return one_of(ways)


def _with_definitions(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    definitions: dict[str, Any] = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return {**definitions, **schema} if isinstance(schema, dict) else definitions
