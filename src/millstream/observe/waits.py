"""Waits: why a request waited, for people: read off its record by the entry when somebody looks. See `observe.timeline`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from millstream.messages import Journey, RequestRecord
from millstream.messages.journey import LACKS, Chunk, Lack, Wait

# what the queue waits for, in a person's words
_REASONS: dict[Lack, str] = {
    "slots": "batch_full",
    "pages": "page_shortage",
    "tokens": "prefill_budget",
    "prefix": "same_prefix",
}
_TOO_SHORT_S = 0.0005  # to be told: every request waits for its turn in the loop

_decoder = msgspec.msgpack.Decoder(Journey)


class Reason(NamedTuple):
    """One thing that a request waited for, from `start` on, for `seconds` in all; times on the clock of its stamps."""

    reason: str
    start: float
    seconds: float
    detail: dict[str, Any]


def journey_of(record: RequestRecord) -> Journey:
    """What the scheduler says of it; nothing where it never came there, or the scheduler has died."""
    return _decoder.decode(record.timing.journey) if record.timing.journey else Journey()


def reasons(record: RequestRecord) -> list[Reason]:
    """All that a request waited for, in order of time. They may overlap: the queue waits for what its first one lacks."""
    return sorted(_all(record), key=lambda reason: reason.start)


def _all(record: RequestRecord) -> Iterator[Reason]:
    timing, journey = record.timing, journey_of(record)
    if timing.checked:
        yield Reason("grammar_compile", timing.tokenized, timing.checked - timing.tokenized, {"process": "entry"})
    for wait in journey.waits:
        yield from _of_wait(wait)
    if timing.replayed:
        yield Reason("restart", timing.lost, timing.replayed - timing.lost, {"process": "detokenizer"})
    if len(journey.chunks) > 1:
        yield _chunks(journey.chunks, timing.received)


def _of_wait(wait: Wait) -> Iterator[Reason]:
    detail: dict[str, Any] = {"times": wait.times} if wait.times > 1 else {}
    match wait.place, wait.why:
        case "waiting_grammar", _:
            yield Reason("grammar_compile", wait.start, wait.seconds, detail | {"process": "scheduler"})
        case "paused", _:
            yield Reason("slow_reader", wait.start, wait.seconds, detail)
        case _, "retracted" | "preempted":
            yield Reason("retraction", wait.start, wait.seconds, detail | {"why": wait.why})
        case _, "resumed":
            yield Reason("resume", wait.start, wait.seconds, detail)
        case _ if wait.ahead:
            yield Reason("queue_position", wait.start, wait.seconds, detail | {"ahead": wait.ahead})
    for lack, seconds in zip(LACKS, wait.lacked, strict=False):
        if seconds >= _TOO_SHORT_S:
            yield Reason(_REASONS[lack], wait.start, seconds, {"of_ms": round(wait.seconds * 1000, 3)})


def _chunks(chunks: list[Chunk], received: float) -> Reason:
    listed = [
        {
            "start_ms": round((chunk.start - received) * 1000, 3),
            "duration_ms": round((chunk.end - chunk.start) * 1000, 3),
            "tokens": chunk.num_tokens,
            "steps": chunk.steps,
        }
        for chunk in chunks
    ]
    detail = {
        "chunks": sum(chunk.steps for chunk in chunks),
        "tokens": sum(chunk.num_tokens for chunk in chunks),
        "list": listed,
    }
    return Reason("prefill_chunks", chunks[0].start, chunks[-1].end - chunks[0].start, detail)
