"""GET /v1/capabilities: every endpoint and field, what becomes of it, and what the served model can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream import __version__
from millstream.entry.describe.bodies import Bodies, Body, FieldFacts
from millstream.entry.http.route import Route
from millstream.entry.limits import MAX_CHOICES
from millstream.entry.service import Service
from millstream.messages.sampling import MAX_LOGIT_BIAS, MAX_STOP_REGEXES, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from millstream.text.conversation import MAX_MESSAGES


def describe_api(routes: Sequence[Route]) -> dict[str, Any]:
    """Endpoints and bodies. A body is named by its endpoints, and an object within one by `objects` of its field."""
    bodies = Bodies(routes)
    return {
        "endpoints": [_endpoint(route, bodies) for route in routes],
        "bodies": {name: _body(body) for name, body in bodies.by_name.items()},
    }


def describe_server(service: Service) -> dict[str, Any]:
    """The served model and the limits of this server.

    Raises:
        EngineDeadError: the server is not ready.
    """
    engine, config, text = service.manager.engine, service.config, service.text
    return {
        "version": __version__,
        "model": {
            "id": text.names[0],
            "names": text.names,
            "context_length": engine.context_length,
            "vocab_size": engine.vocab_size,
            "executor": engine.executor,
            "has_chat_template": text.chat is not None,
            "has_logprobs": engine.has_logprobs,
            "has_grammars": engine.has_grammars,
            "hidden_size": engine.hidden_size,
            "has_embeddings": engine.hidden_size > 0,
            "input_modalities": ["text"],
            "output_modalities": ["text"],
            "speculative_algorithm": config.speculative_algorithm,
        },
        "limits": {
            "choices": min(MAX_CHOICES, service.capacity),
            "running_requests": engine.max_running_requests,
            "queued_requests": config.max_queued_requests,
            "live_requests": config.live_limit,
            "body_bytes": config.max_body_bytes,
            "messages": MAX_MESSAGES,
            "stop_strings": MAX_STOP_STRINGS,
            "stop_regexes": MAX_STOP_REGEXES,
            "stop_token_ids": MAX_STOP_TOKEN_IDS,
            "logit_bias": MAX_LOGIT_BIAS,
            "request_timeout_s": config.request_timeout_s,
        },
        "has_priorities": config.enable_priority_scheduling,
    }


def _endpoint(route: Route, bodies: Bodies) -> dict[str, Any]:
    return {
        "method": route.method,
        "path": route.path,
        "access": route.access,
        "summary": route.summary,
        "query": list(route.query),
        "body": None if route.rules is None else bodies.name(route.rules),
    }


def _body(body: Body) -> dict[str, Any]:
    return {
        "null_equals_absent": body.takes_null,
        "unknown_fields": "pass" if body.takes_others else "refused",
        "fields": {name: _field(facts) for name, facts in body.fields.items()},
    }


def _field(facts: FieldFacts) -> dict[str, Any]:
    if facts.status == "without_effect":
        return {"status": facts.status, "why": facts.why, "schema": facts.schema}
    if facts.status == "refused":
        return {"status": facts.status, "why": facts.why, "neutral": facts.schema.get("enum", [])}
    description: dict[str, Any] = {"status": facts.status, "required": facts.is_required, "schema": facts.schema}
    return description | {"access": "admin"} if facts.for_admins else description
