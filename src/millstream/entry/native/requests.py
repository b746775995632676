"""GET /v1/requests and /v1/requests/{rid}: what becomes of each request and what it waits for, live and for a while after."""

from __future__ import annotations

from typing import Any

from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.http.exchange import Exchange
from millstream.entry.query import read_query
from millstream.entry.records import find_records
from millstream.entry.service import Service
from millstream.errors import RequestError
from millstream.messages import RequestRecord
from millstream.observe.spans import chrome_trace, otlp_json
from millstream.observe.timeline import summary, timeline
from millstream.observe.waits import journey_of
from millstream.text.tokenizer import Tokenizer

_SHOWN_CHARS = 100
_FILES = {"perfetto": chrome_trace, "otlp": otlp_json}
FORMATS = ("json", *_FILES)


async def list_requests(exchange: Exchange, service: Service) -> None:
    """List requests, live ones first, then those that ended lately; without an admin's key only the caller's own."""
    read_query(exchange)
    records = await find_records(service, _owner(exchange))
    await exchange.send_json({"object": "list", "data": [summary(record) for record in records]})


async def show_request(exchange: Exchange, service: Service) -> None:
    """Show one request, by its rid, its answer's id or its `X-Request-Id`: its stages, its waits, and what was cached."""
    form = read_query(exchange, "format").get("format", "json")
    if form not in FORMATS:
        raise RequestError(f"format is `{form[:_SHOWN_CHARS]}`; it must be one of {', '.join(FORMATS)}.", param="format")
    name = exchange.parameters["rid"]
    records = await find_records(service, _owner(exchange), name)
    if not records:
        raise not_found(name)
    if form in _FILES:
        await exchange.send_json(_FILES[form](records[0]))
        return
    cache = _cache(records[0], service.text.tokenizer, is_admin=exchange.is_admin)
    await exchange.send_json({**timeline(records[0]), "cache": cache})


def _cache(record: RequestRecord, tokenizer: Tokenizer, *, is_admin: bool) -> dict[str, Any] | None:
    """How much of a prompt was known, and why no more. What stands there instead is another prompt's, and only for admins."""
    found = journey_of(record).cache
    if found is None:
        return None

    def text(token_ids: list[int]) -> str | None:
        return tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else None

    return {
        "cached_tokens": record.usage.cached_tokens,
        "reason": found.reason,
        "diverged_at": found.at,
        "text_before": text(found.before),
        "text_after": text(found.after),
        "sibling_text": text(found.sibling) if is_admin else None,
    }


def not_found(name: str) -> RequestFailed:
    """The 404 for a name that nobody goes by, or somebody else's request."""
    message = f"No request `{name[:_SHOWN_CHARS]}` is live or was kept for this API key: it ended too long ago, or never came."
    return RequestFailed(Failure(404, message, "invalid_request_error", "rid", "request_not_found"))


def _owner(exchange: Exchange) -> str | None:
    """Whose requests may be seen: everybody's by an admin."""
    return None if exchange.is_admin else exchange.owner
