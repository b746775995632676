"""A request's spans: one root, a child for each stage in its process, and files that say the same as the SDK's exporter."""

from __future__ import annotations

import builtins
from typing import Any

import msgspec
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from millstream.entry.recent import Recent
from millstream.errors import StartupError
from millstream.messages import Journey, RequestRecord, Timing, TraceContext, Usage
from millstream.messages.journey import Divergence, Wait
from millstream.observe.otel import TraceExport, batches, open_export
from millstream.observe.spans import chrome_trace, otlp_json, spans
from tests.unit.observe.test_timeline import WHOLE

TRACE = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7")
JOURNEY = Journey([Wait("waiting", 10.004, 10.104, "arrived", 0.1, 2, (0.0, 0.1, 0.0, 0.0))], [], Divergence("diverged", 7))


def record(**more: Any) -> RequestRecord:
    facts: dict[str, Any] = {"state": "ended", "cause": "stop", "trace": TRACE} | more
    return RequestRecord(
        rid="r",
        call="r",
        api="messages",
        model="tiny",
        received_at=1000.0,
        until=11.31,
        timing=Timing(**WHOLE, journey=msgspec.msgpack.encode(JOURNEY)),
        usage=Usage(9, 4, 3),
        **facts,
    )


def exported(given: RequestRecord) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    TraceExport(SimpleSpanProcessor(exporter), "entry-0").add(given)
    return exporter


def test_the_root_is_a_child_of_the_callers_span_and_every_other_one_a_child_of_the_root() -> None:
    root, *children = spans(record(), TRACE)
    assert (root.name, root.span_id, root.parent_id) == ("chat tiny", TRACE.span_id, TRACE.parent_id)
    assert (root.start, root.end) == (1_000_000_000_000, 1_001_310_000_000)
    assert {child.parent_id for child in children} == {TRACE.span_id}
    assert len({span.span_id for span in (root, *children)}) == len(children) + 1
    assert [child.name for child in children][:4] == ["template", "tokenize", "send", "queue"]
    assert [child.name for child in children][-2:] == ["wait queue_position", "wait page_shortage"]
    assert {child.process for child in children} == {"entry", "scheduler", "detokenizer"}
    assert all(root.start <= child.start <= child.end <= root.end for child in children)


def test_the_root_speaks_of_generative_ai_as_opentelemetry_does() -> None:
    attributes = spans(record(), TRACE)[0].attributes
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == "tiny"
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (9, 4)
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert (attributes["millstream.cache.reason"], attributes["millstream.cache.diverged_at"]) == ("diverged", 7)


def test_what_went_wrong_is_an_error_and_a_client_that_left_is_none() -> None:
    assert spans(record(cause="deadline"), TRACE)[0].error == "deadline"
    assert spans(record(cause="client_gone"), TRACE)[0].error == ""


def test_the_sdk_gets_the_same_spans() -> None:
    found = exported(record()).get_finished_spans()
    assert [span.name for span in found] == [span.name for span in spans(record(), TRACE)]
    root = found[0]
    assert root.context is not None and root.parent is not None
    assert (root.context.trace_id, root.parent.span_id) == (int(TRACE.trace_id, 16), int(TRACE.parent_id, 16))
    assert root.parent.is_remote
    assert root.resource.attributes["service.instance.id"] == "entry-0"
    assert {dict(span.attributes or {})["millstream.process"] for span in found} == {"entry", "scheduler", "detokenizer"}


@pytest.mark.parametrize("cause", ["stop", "engine_error"])
def test_our_file_is_what_the_sdks_exporter_sends(cause: str) -> None:
    (sent,) = encode_spans(exported(record(cause=cause)).get_finished_spans()).resource_spans
    (ours,) = otlp_json(record(cause=cause))["resourceSpans"]
    (theirs_scope,), (our_scope,) = sent.scope_spans, ours["scopeSpans"]
    assert (theirs_scope.scope.name, theirs_scope.scope.version) == (our_scope["scope"]["name"], our_scope["scope"]["version"])
    assert len(theirs_scope.spans) == len(our_scope["spans"])
    for theirs, span in zip(theirs_scope.spans, our_scope["spans"], strict=True):
        assert theirs.trace_id.hex() == span["traceId"]
        assert theirs.span_id.hex() == span["spanId"]
        assert theirs.parent_span_id.hex() == span["parentSpanId"]
        assert (theirs.name, theirs.kind) == (span["name"], span["kind"])
        assert [str(theirs.start_time_unix_nano), str(theirs.end_time_unix_nano)] == [
            span["startTimeUnixNano"],
            span["endTimeUnixNano"],
        ]
        assert (theirs.status.code, theirs.status.message) == (span["status"].get("code", 0), span["status"].get("message", ""))
        assert {each.key: _value(each.value) for each in theirs.attributes} == {
            each["key"]: each["value"] for each in span["attributes"]
        }


def _value(value: Any) -> dict[str, Any]:
    match value.WhichOneof("value"):
        case "int_value":
            return {"intValue": str(value.int_value)}
        case "double_value":
            return {"doubleValue": value.double_value}
        case "array_value":
            return {"arrayValue": {"values": [_value(each) for each in value.array_value.values]}}
        case _:
            return {"stringValue": value.string_value}


def test_a_trace_that_its_caller_does_not_record_is_not_exported() -> None:
    assert exported(record(trace=TRACE._replace(is_sampled=False))).get_finished_spans() == ()


def test_batches_go_out_at_the_latest_when_the_server_stops() -> None:
    exporter = InMemorySpanExporter()
    export = TraceExport(batches(exporter), "entry-0")
    export.add(record())
    export.close()
    assert exporter.get_finished_spans()[0].name == "chat tiny"


def test_a_collector_in_trouble_costs_no_request_its_end(caplog: pytest.LogCaptureFixture) -> None:
    def fail(given: RequestRecord) -> None:
        raise RuntimeError("no")

    recent = Recent(2, fail)
    recent.add(record())
    assert len(recent) == 1
    assert "could not be exported" in caplog.text


def test_without_the_package_the_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named '{name}'")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StartupError, match="OpenTelemetry") as caught:
        open_export("http://localhost:4318", "entry-0")
    assert caught.value.hint == "pip install 'millstream[otel]'"


def test_chromes_format_has_a_track_for_each_process() -> None:
    made = chrome_trace(record())
    names = {event["pid"]: event["args"]["name"] for event in made["traceEvents"] if event["ph"] == "M"}
    assert {"request", "entry", "scheduler", "detokenizer", "wait page_shortage"} <= set(names.values())
    root, *others = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert (names[root["pid"]], root["ts"], root["dur"]) == ("request", 1e9, 1.31e6)
    assert all(root["ts"] <= event["ts"] and event["dur"] >= 0 for event in others)
