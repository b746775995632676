"""Timeline: a request's record as people read it: its stages in time, and what its first token waited for.

Pure functions over `RequestRecord`, called by the entry when somebody looks. Times are in milliseconds, from the request's
arrival.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream.messages import RequestRecord, Timing
from millstream.observe.waits import reasons

# what begins with each stamp, and where; it lasts until the next stamp that was reached
_BEGINS: tuple[tuple[str, str, str], ...] = (
    ("received", "template", "entry"),
    ("adapted", "tokenize", "entry"),
    ("tokenized", "send", "entry"),
    ("checked", "send", "entry"),
    ("queued", "queue", "scheduler"),
    ("admitted", "prefill", "scheduler"),
    ("prefilled", "decode", "scheduler"),
    ("finished", "detokenize", "detokenizer"),
    ("detokenized", "write", "entry"),
)


class Stage(NamedTuple):
    """One stretch of a request's time; seconds of its clock."""

    name: str
    process: str
    start: float
    end: float
    is_over: bool


def stages(record: RequestRecord) -> list[Stage]:
    """The stages that were reached, in order, without gaps: they add up to the whole."""
    timing = record.timing
    reached = [(getattr(timing, stamp), name, process) for stamp, name, process in _BEGINS if getattr(timing, stamp) > 0.0]
    found = [
        Stage(name, process, start, end, True)
        for (start, name, process), (end, _, _) in zip(reached, reached[1:], strict=False)
    ]
    if reached:
        start, name, process = reached[-1]
        found.append(Stage(name, process, start, max(start, record.until), record.state == "ended"))
    return [stage._replace(name="grammar") if _is_grammar(stage, timing) else stage for stage in found]


def _is_grammar(stage: Stage, timing: Timing) -> bool:
    return stage.start == timing.tokenized and stage.end == timing.checked


def first_token(timing: Timing) -> dict[str, float]:
    """What the time to the first token was spent on, in milliseconds by stage; empty before there is one.

    The sum is the time to the first token: until the first text was handed to the connection of a stream or, of an answer in
    one piece, until its first token was made.
    """
    if not timing.prefilled:
        return {}
    ends = [
        ("template", timing.adapted),
        ("tokenize", timing.tokenized),
        ("grammar", timing.checked),
        ("send", timing.queued),
        ("queue", timing.admitted),
        ("prefill", timing.prefilled),
    ]
    if timing.first_written:
        # a detokenizer that was replaced decodes the first row again
        ends += [("detokenize", min(timing.first_detokenized, timing.first_written)), ("write", timing.first_written)]
    parts: dict[str, float] = {}
    before = timing.received
    for name, end in ends:
        if end > 0.0:
            parts[name] = milliseconds(end - before)
            before = end
    return parts


def summary(record: RequestRecord) -> dict[str, Any]:
    """A line of the list of requests."""
    timing, usage = record.timing, record.usage
    parts = first_token(timing)
    return {
        "rid": record.rid,
        "request_id": record.request_id or None,
        "trace_id": record.trace.trace_id if record.trace else None,
        "api": record.api,
        "model": record.model,
        "state": record.state,
        "cause": record.cause,
        "received_at": round(record.received_at, 6),
        "duration_ms": milliseconds(record.until - timing.received),
        "ttft_ms": round(sum(parts.values()), 3) if parts else None,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "retractions": usage.retractions,
    }


def timeline(record: RequestRecord) -> dict[str, Any]:
    """All that is known of a request, but for what takes a tokenizer to tell."""
    start = record.timing.received
    return {
        "object": "request",
        **summary(record),
        "stages": [
            {
                "name": stage.name,
                "process": stage.process,
                "start_ms": milliseconds(stage.start - start),
                "duration_ms": milliseconds(stage.end - stage.start),
                "is_over": stage.is_over,
            }
            for stage in stages(record)
        ],
        "ttft": first_token(record.timing) or None,
        "waits": [
            {
                "reason": reason.reason,
                "start_ms": milliseconds(reason.start - start),
                "duration_ms": milliseconds(reason.seconds),
                "detail": reason.detail,
            }
            for reason in reasons(record)
        ],
    }


def milliseconds(seconds: float) -> float:
    """For people: to the microsecond."""
    return round(seconds * 1000, 3)
