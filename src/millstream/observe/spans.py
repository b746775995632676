"""Spans: a request's record as a tree of spans, and the two files that are made of it: OTLP/JSON and Chrome's trace format.

Pure functions. Every span id follows from the root's, so whoever exports a record says the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream import __version__
from millstream.messages import RequestRecord, TraceContext
from millstream.observe.timeline import first_token, stages
from millstream.observe.trace_context import trace_context
from millstream.observe.waits import journey_of, reasons

SCOPE = "millstream"
SERVER, INTERNAL = 2, 1  # kinds, as OTLP counts them
_FAILURES = ("rejected", "engine_error", "deadline", "drain", "slow_reader")
_OPERATIONS = {"chat": "chat", "messages": "chat", "responses": "chat", "embeddings": "embeddings"}
_LAST_ID = (1 << 64) - 1

Value = str | int | float | bool | list[str]


class Span(NamedTuple):
    """One span; times in nanoseconds since 1970."""

    name: str
    process: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Value]
    kind: int = INTERNAL
    error: str = ""  # what went wrong, in a word


def context_of(record: RequestRecord) -> TraceContext:
    """The trace of a request; one of its own where it came by no HTTP request."""
    return record.trace or trace_context(None)


def spans(record: RequestRecord, context: TraceContext) -> list[Span]:
    """The root, a child for each stage, and a child for each wait."""
    offset = record.received_at - record.timing.received

    def nanoseconds(time: float) -> int:
        return round((time + offset) * 1e9)

    root = Span(
        name=f"{_operation(record)} {record.model}",
        process="entry",
        span_id=context.span_id,
        parent_id=context.parent_id,
        start=nanoseconds(record.timing.received),
        end=nanoseconds(max(record.until, record.timing.received)),
        attributes=_attributes(record),
        kind=SERVER,
        error=record.cause if record.cause in _FAILURES else "",
    )
    found = [root]

    def child(name: str, process: str, start: float, end: float, attributes: dict[str, Value]) -> None:
        more = {"millstream.process": process, **attributes}
        span_id = f"{(int(root.span_id, 16) + len(found)) & _LAST_ID or 1:016x}"
        found.append(Span(name, process, span_id, root.span_id, nanoseconds(start), nanoseconds(end), more))

    for stage in stages(record):
        child(stage.name, stage.process, stage.start, stage.end, {})
    for reason in reasons(record):
        process = str(reason.detail.get("process", "scheduler"))
        facts: dict[str, Value] = {
            f"millstream.wait.{name}": value for name, value in reason.detail.items() if isinstance(value, str | int | float)
        }
        child(f"wait {reason.reason}", process, reason.start, reason.start + reason.seconds, facts)
    return found


def _operation(record: RequestRecord) -> str:
    return _OPERATIONS.get(record.api, "text_completion")


def _attributes(record: RequestRecord) -> dict[str, Value]:
    """What the root says: OpenTelemetry's conventions for generative AI, and our own beside them."""
    usage = record.usage
    made: dict[str, Value] = {
        "gen_ai.operation.name": _operation(record),
        "gen_ai.provider.name": "millstream",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "millstream.process": "entry",
        "millstream.rid": record.rid,
        "millstream.api": record.api,
        "millstream.state": record.state,
    }
    if record.cause is not None:
        made["gen_ai.response.finish_reasons"] = [record.cause]
        made["millstream.cause"] = record.cause
        if record.cause in _FAILURES:
            made["error.type"] = record.cause
    if record.request_id:
        made["millstream.request_id"] = record.request_id
    if usage.retractions:
        made["millstream.retractions"] = usage.retractions
    if parts := first_token(record.timing):
        made["millstream.time_to_first_token_ms"] = round(sum(parts.values()), 3)
    if (cache := journey_of(record).cache) is not None:
        made["millstream.cache.reason"] = cache.reason
        made["millstream.cache.diverged_at"] = cache.at
    return made


def otlp_json(record: RequestRecord) -> dict[str, Any]:
    """The spans as OTLP/JSON, as a collector takes it at /v1/traces."""
    context = context_of(record)
    resource = {"service.name": SCOPE, "service.version": __version__}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _otlp_attributes(resource)},
                "scopeSpans": [
                    {
                        "scope": {"name": SCOPE, "version": __version__},
                        "spans": [_otlp_span(span, context) for span in spans(record, context)],
                    }
                ],
            }
        ]
    }


def _otlp_span(span: Span, context: TraceContext) -> dict[str, Any]:
    made: dict[str, Any] = {
        "traceId": context.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _otlp_attributes(span.attributes),
        "status": {"code": 2, "message": span.error} if span.error else {},
    }
    if span.parent_id:
        made["parentSpanId"] = span.parent_id
    return made


def _otlp_attributes(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _otlp_value(value)} for name, value in attributes.items()]


def _otlp_value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [_otlp_value(each) for each in value]}}


def chrome_trace(record: RequestRecord) -> dict[str, Any]:
    """The spans as Chrome's trace format, which Perfetto opens: a track for each process, and one for what was waited for."""
    found = spans(record, context_of(record))
    tracks = {name: number for number, name in enumerate(dict.fromkeys(_track(span) for span in found), 1)}
    names = [
        {"ph": "M", "name": "process_name", "pid": number, "tid": 1, "args": {"name": name}} for name, number in tracks.items()
    ]
    events = [
        {
            "ph": "X",
            "name": span.name,
            "cat": "millstream",
            "pid": tracks[_track(span)],
            "tid": 1,
            "ts": span.start / 1000,
            "dur": (span.end - span.start) / 1000,
            "args": span.attributes,
        }
        for span in found
    ]
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *events]}


def _track(span: Span) -> str:
    if span.kind == SERVER:
        return "request"
    return span.name if span.name.startswith("wait ") else span.process
