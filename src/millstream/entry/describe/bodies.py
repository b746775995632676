"""Bodies of requests as facts and as JSON Schema, read off their `FieldRules` and structs. Written by nobody by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from millstream.entry.fields import FieldRules, Refused
from millstream.entry.http.route import Route

REF = "#/components/schemas/{name}"
Schema = dict[str, Any]


class FieldFacts(NamedTuple):
    """One field of a body."""

    status: Literal["honoured", "without_effect", "refused"]
    schema: Schema
    """Of the values that pass, null apart: any where it is empty. Of a refused field: those that ask for nothing."""
    is_required: bool = False
    why: str | None = None
    """Why it has no effect, or is refused."""
    for_admins: bool = False


class Body(NamedTuple):
    """A body, or an object within one."""

    fields: dict[str, FieldFacts]
    takes_null: bool
    """Null equals absent in each of its fields."""
    takes_others: bool
    """A name that is on no list passes: only where what the object holds is nobody's business but the client's."""
    example: Schema | None = None


class Bodies:
    """Every body that a route takes, and every object within one, by name."""

    def __init__(self, routes: Iterable[Route]) -> None:
        rules = _all_rules(route.rules for route in routes)
        schemas, components = msgspec.json.schema_components([each.honoured for each in rules], ref_template=REF)
        self._names = {each.honoured: parts_of(schema)[0] for each, schema in zip(rules, schemas, strict=True)}
        self.by_name = {name: _plain(schema) for name, schema in components.items()}
        for each in rules:
            name = self.name(each)
            self.by_name[name] = self._ruled(each, components[name])

    def name(self, rules: FieldRules[Any]) -> str:
        """The name of the body of these rules: its struct's."""
        return self._names[rules.honoured]

    def _ruled(self, rules: FieldRules[Any], schema: Schema) -> Body:
        properties = dict(schema["properties"])
        for field in rules.parts:
            refs = [{"$ref": REF.format(name=self.name(part))} for part in rules.parts_of(field)]
            properties[field] = _with_parts(properties[field], refs[0] if len(refs) == 1 else {"anyOf": refs})
        required = schema.get("required", ())
        fields = {
            field: FieldFacts("honoured", _without_null(each), field in required, for_admins=field in rules.for_admins)
            for field, each in properties.items()
        }
        forms = {field: _schema(rules.forms[field]) if field in rules.forms else {} for field in rules.without_effect}
        fields |= {field: FieldFacts("without_effect", forms[field], why=why) for field, why in rules.without_effect.items()}
        fields |= {field: FieldFacts("refused", _neutral(rule), why=rule.why) for field, rule in rules.refused.items()}
        return Body(fields, takes_null=True, takes_others=False, example=rules.example)


def parts_of(schema: Schema) -> list[str]:
    """The names of the objects that a field of this schema may hold."""
    if "$ref" in schema:
        return [schema["$ref"].rpartition("/")[2]]
    inner = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    return list(dict.fromkeys(name for each in inner for name in parts_of(each)))


def json_schema(body: Body) -> Schema:
    """The body as JSON Schema: what passes the reading of fields, and nothing else."""
    properties = {
        name: _nullable(facts.schema) if body.takes_null and not facts.is_required else facts.schema
        for name, facts in body.fields.items()
    }
    for name, facts in body.fields.items():
        if facts.why is not None:
            properties[name] = {
                "description": f"{facts.status.replace('_', ' ').capitalize()}: {facts.why}.",
                **properties[name],
            }
    schema: Schema = {
        "type": "object",
        "properties": properties,
        "required": [name for name, facts in body.fields.items() if facts.is_required],
        "additionalProperties": body.takes_others or ({"type": "null"} if body.takes_null else False),
    }
    return schema if body.example is None else schema | {"examples": [body.example]}


def _all_rules(given: Iterable[FieldRules[Any] | None]) -> list[FieldRules[Any]]:
    """The rules and those of their parts, each once."""
    found: dict[int, FieldRules[Any]] = {}
    left = [rules for rules in given if rules is not None]
    while left:
        rules = left.pop(0)
        if id(rules) not in found:
            found[id(rules)] = rules
            left += [part for name in rules.parts for part in rules.parts_of(name)]
    return list(found.values())


def _plain(schema: Schema) -> Body:
    """A struct within a body, which has no rules of its own: all of its members are honoured."""
    required = schema.get("required", ())
    fields = {name: FieldFacts("honoured", each, name in required) for name, each in schema["properties"].items()}
    return Body(fields, takes_null=False, takes_others=schema.get("additionalProperties", True) is not False)


def _with_parts(schema: Schema, parts: Schema) -> Schema:
    """The schema with `parts` in place of each object that says nothing of its fields, and each item that may be anything."""
    if not schema or schema.get("type") == "object":
        return parts | ({"default": schema["default"]} if "default" in schema else {})
    changed = dict(schema)
    if schema.get("type") == "array":
        changed["items"] = _with_parts(schema.get("items", {}), parts)
    if "anyOf" in schema:
        changed["anyOf"] = [_with_parts(each, parts) for each in schema["anyOf"]]
    return changed


def _schema(form: Any) -> Schema:
    schema: Schema = msgspec.json.schema(form)
    return schema


def _neutral(rule: Refused) -> Schema:
    return {"enum": list(rule.neutral)} if rule.neutral else {"type": "null"}


def _without_null(schema: Schema) -> Schema:
    """The schema without null among its alternatives; a default of null, which is absence, goes with it."""
    if "anyOf" in schema:
        left = [each for each in schema["anyOf"] if each != {"type": "null"}]
        schema = (
            {**schema, "anyOf": left} if len(left) > 1 else {**{k: v for k, v in schema.items() if k != "anyOf"}, **left[0]}
        )
    if schema.get("default", ...) is None:
        schema = {key: value for key, value in schema.items() if key != "default"}
    return schema


def _nullable(schema: Schema) -> Schema:
    if not schema or schema == {"type": "null"}:
        return schema  # takes everything, or nothing but null
    if set(schema) == {"enum"}:
        return {"enum": [None, *schema["enum"]]}
    return {"anyOf": [schema, {"type": "null"}]}
