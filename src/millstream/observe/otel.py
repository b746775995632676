"""TraceExport: sends the spans of requests that have ended to an OpenTelemetry collector, where `--otlp-endpoint` names one.

The package is optional (`pip install millstream[otel]`) and only imported here. Nothing is done while a request runs: its
record becomes spans at its end. They wait in a queue of fixed size for a thread of the SDK's; where the collector does not
take them, they are dropped there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from millstream import __version__
from millstream.errors import StartupError
from millstream.messages import RequestRecord
from millstream.observe.spans import INTERNAL, SCOPE, Span, context_of, spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

CLOSE_S = 2.0  # what a collector gets for the last spans when the server stops
TRACES_PATH = "/v1/traces"


class SpanSink(Protocol):
    """What takes spans: a processor of the SDK's."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span. Never blocks."""

    def shutdown(self) -> None:
        """Send what is left, and stop."""


class TraceExport:
    """The way of records to a collector; those of traces that their callers do not record are left out."""

    def __init__(self, sink: SpanSink, process: str) -> None:
        self._sink = sink
        self._process = process  # the entry worker that speaks

    def add(self, record: RequestRecord) -> None:
        """Export a request that has ended."""
        context = context_of(record)
        if context.is_sampled:
            for span in readable(spans(record, context), context.trace_id, self._process):
                self._sink.on_end(span)

    def close(self) -> None:
        """Send what is left, within `CLOSE_S` seconds."""
        closing = threading.Thread(target=self._sink.shutdown, name="otel-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def open_export(endpoint: str, process: str) -> TraceExport:
    """An export over HTTP to the collector at `endpoint`, in batches, in a thread.

    Raises:
        StartupError: the OpenTelemetry packages are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise StartupError(
            f"--otlp-endpoint needs OpenTelemetry, which is not installed: {error}.", hint="pip install 'millstream[otel]'"
        ) from None
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # each try is a warning, what is lost in the end an error
    url = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + TRACES_PATH
    return TraceExport(batches(OTLPSpanExporter(endpoint=url)), process)


def batches(exporter: SpanExporter) -> SpanSink:
    """What hands spans to `exporter` in batches, from a thread of its own."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(exporter)


def readable(found: Sequence[Span], trace_id: str, process: str) -> list[ReadableSpan]:
    """Spans as the SDK has them."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    resource = Resource({"service.name": SCOPE, "service.version": __version__, "service.instance.id": process})
    scope = InstrumentationScope(SCOPE, __version__)
    trace = int(trace_id, 16)
    flags = TraceFlags(TraceFlags.SAMPLED)

    def context(span_id: str, *, is_remote: bool) -> SpanContext | None:
        return SpanContext(trace, int(span_id, 16), is_remote=is_remote, trace_flags=flags) if span_id else None

    return [
        ReadableSpan(
            name=span.name,
            context=context(span.span_id, is_remote=False),
            parent=context(span.parent_id, is_remote=span.kind != INTERNAL),
            resource=resource,
            attributes=span.attributes,
            kind=SpanKind.INTERNAL if span.kind == INTERNAL else SpanKind.SERVER,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=scope,
        )
        for span in found
    ]
