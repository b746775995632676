"""GET /openapi.json: the API as an OpenAPI 3.1 document, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from millstream import __version__
from millstream.entry.describe.bodies import REF, Bodies, json_schema
from millstream.entry.http.dialect import DIALECTS, Dialect, dialect_of
from millstream.entry.http.route import Route


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole document."""
    bodies = Bodies(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, bodies)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millstream", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {each.error_name: each.error_schema for each in DIALECTS}
            | {name: json_schema(body) for name, body in bodies.by_name.items()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, bodies: Bodies) -> dict[str, Any]:
    failure = _failure(dialect_of(route.path))
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_" + (re.sub(r"\W+", "_", route.path).strip("_") or "root"),
        "summary": route.summary,
        "responses": {"200": _answer(route), "4XX": failure, "5XX": failure},
        "security": [] if route.access == "open" else [{"key": []}, {}],  # none, where the server has no keys
    }
    text = {"type": "string"}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in re.findall(r"\{(\w+)\}", route.path)
    ] + [{"name": name, "in": "query", "required": False, "schema": text} for name in route.query]
    if parameters:
        operation["parameters"] = parameters
    if route.rules is not None:
        schema = {"$ref": REF.format(name=bodies.name(route.rules))}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _answer(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {name: {} for name in route.types}
    if route.rules is not None and "stream" in route.rules.honoured.__struct_fields__:
        content["text/event-stream"] = {}
    return {"description": "The answer.", "content": content}


def _failure(dialect: Dialect) -> dict[str, Any]:
    schema = {"$ref": REF.format(name=dialect.error_name)}
    return {"description": "An error.", "content": {"application/json": {"schema": schema}}}
