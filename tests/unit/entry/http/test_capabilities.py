"""What the server says of its API is what it does: every field of every endpoint, sent."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import millstream.entry
import millstream.text
from millstream.config import ServerConfig
from millstream.entry.describe.bodies import Bodies, FieldFacts
from millstream.entry.fields import FieldRules
from millstream.entry.http.route import Route
from millstream.entry.http.routes import ROUTES
from millstream.messages import Length, TokenizedGenerateReqInput
from millstream.messages.details import Logprobs, RowDetails
from tests.support.asgi import Response, get, post, run
from tests.support.engine import NAMES, Entry

INSTEAD_OF = {"input_ids": ("text",), "messages": ("prompt",)}  # fields that exclude each other
NAMED_AS = {"sampling_seed": "seed"}  # two names of one field
BODIES = Bodies(ROUTES)
POSTS = [route for route in ROUTES if route.rules is not None]
paths = pytest.mark.parametrize("route", POSTS, ids=lambda route: route.path)


class Spot(NamedTuple):
    """An object in a body: the rules that hold for it, and a body that has it."""

    rules: FieldRules[Any]
    example: dict[str, Any]
    way: tuple[str | int, ...] = ()

    def body(self, **fields: Any) -> dict[str, Any]:
        """The body with more fields in this object."""
        body: Any = copy.deepcopy(self.example)
        inner = body
        for step in self.way:
            inner = inner[step]
        inner.update(fields)
        return body

    def within(self, name: str, part: FieldRules[Any]) -> Spot:
        """The spot of an object in the field `name`."""
        schema = BODIES.by_name[BODIES.name(self.rules)].fields[name].schema
        inner = part.example or {}
        is_list = "array" in json.dumps(schema)
        body = self.body(**{name: [inner] if is_list else inner})
        for other in INSTEAD_OF.get(name, ()):
            body.pop(other, None)
        return Spot(part, body, (*self.way, name, *((0,) if is_list else ())))


def spots(route: Route) -> list[Spot]:
    """The body itself, and each object that may be within it and has rules."""
    found = [Spot(rules_of(route), example_of(route))]
    for spot in found:
        found += [spot.within(name, part) for name in spot.rules.parts for part in spot.rules.parts_of(name)]
    return found


def rules_of(route: Route) -> FieldRules[Any]:
    assert route.rules is not None
    return route.rules


def example_of(route: Route) -> dict[str, Any]:
    example = rules_of(route).example
    assert example is not None, "a body needs an example"
    return example


def facts(spot: Spot, status: str) -> dict[str, FieldFacts]:
    fields = BODIES.by_name[BODIES.name(spot.rules)].fields
    return {name: each for name, each in fields.items() if each.status == status}


def entry() -> Entry:
    made = Entry(ServerConfig(enable_priority_scheduling=True))
    say = made.engine.answer

    def answer(request: TokenizedGenerateReqInput) -> None:
        if request.logprobs is None or not request.logprobs.token_ids:
            say(request)
            return
        asked = [[-1.0] * len(request.logprobs.token_ids)]
        made.engine.accept(request.rid)
        made.engine.row(request.rid, "a", finish=Length(1), details=RowDetails(logprobs=Logprobs([-1.0], [[]], [[]], asked)))

    made.engine.answer = answer
    return made


def param_of(response: Response) -> str:
    """The field that an error names, in OpenAI's shape or Anthropic's."""
    error = response.body["error"]
    return str(error.get("details", error)["param"])


async def send(entry: Entry, route: Route, body: dict[str, Any]) -> Response:
    response = await post(entry.app, route.path, body)
    entry.engine.sent.clear()
    return response


@paths
def test_the_example_of_a_body_is_answered_and_any_other_field_refused(route: Route) -> None:
    async def scenario() -> None:
        server = entry()
        assert (await send(server, route, example_of(route))).status == 200
        for spot in spots(route):
            is_answered = (await send(server, route, spot.body())).status == 200  # or has no place in this model's template
            response = await send(server, route, spot.body(no_such_field=1))
            assert response.status == 400
            assert param_of(response).endswith("no_such_field") or not is_answered

    run(scenario())


@paths
def test_a_refused_field_is_refused_by_name_and_passes_where_it_asks_for_nothing(route: Route) -> None:
    async def scenario() -> None:
        server = entry()
        for spot in spots(route):
            is_answered = (await send(server, route, spot.body())).status == 200  # or has no place in this model's template
            for name, each in facts(spot, "refused").items():
                refused = await send(server, route, spot.body(**{name: "no such value"}))
                assert (refused.status, param_of(refused).rpartition(".")[2]) == (400, name)
                for value in (None, *each.schema.get("enum", ())):
                    response = await send(server, route, spot.body(**{name: value}))
                    assert response.status == 200 or not is_answered, (name, value, response.body)

    run(scenario())


@paths
def test_a_field_without_effect_passes_whatever_it_holds(route: Route) -> None:
    async def scenario() -> None:
        server = entry()
        for spot in spots(route):
            if (await send(server, route, spot.body())).status != 200:
                continue  # this model's template has no place for it
            for name, each in facts(spot, "without_effect").items():
                for value in (None, *samples(each.schema)):
                    response = await send(server, route, spot.body(**{name: value}))
                    assert response.status == 200, (name, value, response.body)

    run(scenario())


@paths
def test_a_value_beyond_a_limit_that_is_told_is_refused_by_name(route: Route) -> None:
    async def scenario() -> None:
        server = entry()
        for spot in spots(route):
            for name, each in facts(spot, "honoured").items():
                for value in beyond(each.schema):
                    body = spot.body(**{name: value})
                    if name == "query" and isinstance(value, list):
                        body["items"] = [[1]]  # of its form
                    for other in INSTEAD_OF.get(name, ()):
                        body.pop(other, None)
                    response = await send(server, route, body)
                    assert response.status == 400, (name, str(value)[:100], response.body)
                    assert NAMED_AS.get(name, name) in param_of(response), (name, str(value)[:100], response.body)

    run(scenario())


def samples(schema: dict[str, Any]) -> list[Any]:
    """Values that the schema of a field without effect takes."""
    if not schema:
        return ["text", 5, {"a": [1]}]
    return schema["enum"] if "enum" in schema else [{"string": "text", "boolean": True, "object": {}}[schema["type"]]]


def beyond(schema: dict[str, Any]) -> Iterator[Any]:
    """Values just outside of each limit that a schema tells."""
    for each in schema.get("anyOf", ()):
        yield from beyond(each)
    for keyword, value in schema.items():
        if keyword in BEYOND:
            yield from BEYOND[keyword](value)
    if "maxItems" in schema:
        yield [INSIDE[schema["items"]["type"]]] * (schema["maxItems"] + 1)
    if isinstance(items := schema.get("items"), dict):
        yield from ([value] for value in beyond(items))
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from ({"1": value} for value in beyond(values))


BEYOND: dict[str, Callable[[Any], list[Any]]] = {
    "maximum": lambda limit: [limit + 1],
    "minimum": lambda limit: [limit - 1],
    "exclusiveMinimum": lambda limit: [limit],
    "not": lambda schema: [schema["const"]],
    "minLength": lambda limit: ["a" * (limit - 1)],
    "maxLength": lambda limit: ["a" * (limit + 1)],
    "minItems": lambda limit: [[]],
    "maxProperties": lambda limit: [{str(number): 0 for number in range(limit + 1)}],
}
INSIDE = {"string": "a", "integer": 1, "number": 1.0, "array": [1]}


def test_every_honoured_field_is_read_by_some_code() -> None:
    read: set[str] = set()
    for package in (millstream.entry, millstream.text):
        for path in Path(package.__path__[0]).rglob("*.py"):
            read |= {name for node in ast.walk(ast.parse(path.read_text())) for name in names_read(node)}
    honoured = {name for body in BODIES.by_name.values() for name, each in body.fields.items() if each.status == "honoured"}
    assert honoured - read == UNREAD


def names_read(node: ast.AST) -> Iterator[str]:
    """`x.name`, `x["name"]` and `x.get("name")` or `pop`."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        yield str(node.slice.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop") and node.args:
        yield str(getattr(node.args[0], "value", ""))


# nothing is padded, whether it says so or not; what chat templates read; no summary is made, and context has one value
UNREAD = {"include_obfuscation", "tool_call_id", "generate_summary", "context"}


def test_an_object_within_a_body_takes_no_names_that_are_not_told() -> None:
    assert [name for name, body in BODIES.by_name.items() if body.takes_others] == []


def test_the_endpoint_tells_of_every_route_and_of_the_model() -> None:
    async def scenario() -> None:
        server = entry()
        told = (await get(server.app, "/v1/capabilities")).body
        assert [(each["method"], each["path"]) for each in told["endpoints"]] == [(each.method, each.path) for each in ROUTES]
        assert {each["body"] for each in told["endpoints"]} - {None} <= set(told["bodies"])
        assert (told["model"]["id"], told["model"]["context_length"]) == (NAMES[0], 512)
        assert told["has_priorities"]
        assert told["limits"]["choices"] == 128
        chat = told["bodies"]["ChatCompletionRequest"]["fields"]
        assert chat["messages"]["required"]
        assert chat["top_p"]["schema"] == {"type": "number", "exclusiveMinimum": 0.0, "maximum": 1.0, "default": 1.0}
        assert chat["user"] == {"status": "without_effect", "why": "not used", "schema": {"type": "string"}}

    run(scenario())


def test_capabilities_of_a_model_are_told_once_there_is_one() -> None:
    async def scenario() -> None:
        loading = Entry(ready=False)
        assert (await get(loading.app, "/v1/capabilities")).status == 503
        assert (await get(loading.app, "/openapi.json")).status == 200

    run(scenario())


def test_every_reference_in_the_openapi_document_leads_somewhere_and_operations_have_names_of_their_own() -> None:
    async def scenario() -> None:
        response = await get(entry().app, "/openapi.json")
        document = response.body
        assert document["openapi"] == "3.1.0"
        names = set(document["components"]["schemas"])
        assert {name.rpartition("/")[2] for name in references(document)} <= names
        operations = [each for methods in document["paths"].values() for each in methods.values()]
        assert len({each["operationId"] for each in operations}) == len(operations) == len(ROUTES)
        assert all(each["summary"] for each in operations)

    run(scenario())


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (inner for key, inner in value.items() if key == "$ref")
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)
