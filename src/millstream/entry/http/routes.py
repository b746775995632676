"""The table of routes: what answers what, which fields a body has, whose key it takes. The app follows it, and the docs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import msgspec

from millstream.config import MetricsAccess
from millstream.entry.anthropic.messages import count_tokens, messages
from millstream.entry.anthropic.protocol import COUNT_TOKENS, MESSAGES
from millstream.entry.describe.capabilities import describe_api, describe_server
from millstream.entry.describe.openapi import document
from millstream.entry.http.exchange import Exchange
from millstream.entry.http.route import Route, delete, get, post
from millstream.entry.native.abort import abort_request
from millstream.entry.native.flush import flush_cache
from millstream.entry.native.generate import generate
from millstream.entry.native.health import health_generate
from millstream.entry.native.info import health, model, model_info, models, ready, server_info
from millstream.entry.native.ledger import debug_ledger
from millstream.entry.native.log_level import LOG_LEVEL, log_level, set_log_level
from millstream.entry.native.metrics import metrics
from millstream.entry.native.parse import parse_function_call, separate_reasoning
from millstream.entry.native.protocol import ABORT, DETOKENIZE, GENERATE, PARSE_CALLS, SCORE, SEPARATE, TOKENIZE
from millstream.entry.native.radix import debug_radix
from millstream.entry.native.requests import list_requests, show_request
from millstream.entry.native.score import score
from millstream.entry.native.tokenize import detokenize, tokenize
from millstream.entry.openai.chat import chat_completions
from millstream.entry.openai.completions import completions
from millstream.entry.openai.embeddings import embeddings
from millstream.entry.openai.embeddings_protocol import EMBEDDINGS
from millstream.entry.openai.protocol import CHAT, COMPLETIONS
from millstream.entry.openai.responses.create import create_response
from millstream.entry.openai.responses.prompt import count_input_tokens
from millstream.entry.openai.responses.protocol import INPUT_TOKENS, RESPONSES
from millstream.entry.openai.responses.stored import (
    QUERY_LIST,
    QUERY_READ,
    cancel_response,
    delete_response,
    list_input_items,
    read_response,
)
from millstream.entry.page import page_file, root
from millstream.entry.service import Service


async def capabilities(exchange: Exchange, service: Service) -> None:
    """Every endpoint and field with what becomes of it, and what the served model can do."""
    await exchange.send_json({**describe_server(service), **_api(service.config.metrics_access)})


async def openapi(exchange: Exchange, service: Service) -> None:
    """This API as an OpenAPI 3.1 document."""
    await exchange.send_json(_document(service.config.metrics_access))


ROUTES: tuple[Route, ...] = (
    get("/", root, access="open", types=("application/json", "text/html")),
    get("/page/{file}", page_file, access="open", types=("text/html", "text/css", "text/javascript", "image/svg+xml")),
    get("/health", health, access="open"),
    get("/ready", ready, access="open"),
    get("/health_generate", health_generate, query=("timeout",), access="open"),
    get("/server_info", server_info, access="admin"),
    get("/get_server_info", server_info, access="admin"),
    get("/model_info", model_info),
    get("/get_model_info", model_info),
    get("/flush_cache", flush_cache, query=("timeout",), access="admin"),
    post("/flush_cache", flush_cache, None, access="admin"),
    get("/metrics", metrics, access="open", types=("text/plain", "application/openmetrics-text")),
    get("/log_level", log_level, access="admin"),
    post("/log_level", set_log_level, LOG_LEVEL, access="admin", is_counted=False),
    get("/debug/ledger", debug_ledger, query=("rid",), access="admin"),
    get("/debug/radix", debug_radix, query=("max_nodes",), access="admin"),
    get("/v1/requests", list_requests),
    get("/v1/requests/{rid}", show_request, query=("format",)),
    get("/openapi.json", openapi),
    get("/v1/capabilities", capabilities),
    get("/v1/models", models),
    get("/v1/models/{model}", model),
    post("/v1/chat/completions", chat_completions, CHAT),
    post("/v1/completions", completions, COMPLETIONS),
    post("/v1/embeddings", embeddings, EMBEDDINGS),
    post("/v1/responses", create_response, RESPONSES),
    post("/v1/responses/input_tokens", count_input_tokens, INPUT_TOKENS),
    get("/v1/responses/{response_id}", read_response, query=QUERY_READ),
    delete("/v1/responses/{response_id}", delete_response),
    post("/v1/responses/{response_id}/cancel", cancel_response, None, is_counted=False),  # it ends requests, too
    get("/v1/responses/{response_id}/input_items", list_input_items, query=QUERY_LIST),
    post("/v1/messages", messages, MESSAGES),
    post("/v1/messages/count_tokens", count_tokens, COUNT_TOKENS),
    post("/generate", generate, GENERATE),
    post("/v1/score", score, SCORE),
    post("/abort_request", abort_request, ABORT, is_counted=False),  # what ends requests must work where there are too many
    post("/tokenize", tokenize, TOKENIZE),
    post("/v1/tokenize", tokenize, TOKENIZE),
    post("/detokenize", detokenize, DETOKENIZE),
    post("/v1/detokenize", detokenize, DETOKENIZE),
    post("/parse_function_call", parse_function_call, PARSE_CALLS),
    post("/separate_reasoning", separate_reasoning, SEPARATE),
)


def served_routes(metrics_access: MetricsAccess) -> tuple[Route, ...]:
    """The table of a server with this option."""
    if metrics_access == "off":
        return tuple(route for route in ROUTES if route.handler is not metrics)
    return tuple(replace(route, access=metrics_access) if route.handler is metrics else route for route in ROUTES)


@cache
def _api(metrics_access: MetricsAccess) -> dict[str, msgspec.Raw]:
    told = describe_api(served_routes(metrics_access))
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in told.items()}


@cache
def _document(metrics_access: MetricsAccess) -> bytes:
    return msgspec.json.encode(document(served_routes(metrics_access)))
