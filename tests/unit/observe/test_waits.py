"""Every reason for which a request waited, in words, with its times."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.messages import Journey, RequestRecord, Timing, Usage
from millstream.messages.journey import Chunk, Wait
from millstream.observe.timeline import timeline


def waits(journey: Journey, **stamps: float) -> list[dict[str, Any]]:
    timing = Timing(received=10.0, journey=msgspec.msgpack.encode(journey), **stamps)
    record = RequestRecord(
        rid="r",
        call="r",
        api="chat",
        model="m",
        state="ended",
        received_at=1.0,
        until=20.0,
        timing=timing,
        usage=Usage(1, 1),
    )
    found: list[dict[str, Any]] = timeline(record)["waits"]
    return found


def test_a_place_in_the_queue_and_what_the_first_of_it_lacked() -> None:
    wait = Wait("waiting", 11.0, 13.0, "arrived", 2.0, ahead=3, lacked=(1.5, 0.5, 0.0, 0.0001))
    assert waits(Journey([wait])) == [
        {"reason": "queue_position", "start_ms": 1000.0, "duration_ms": 2000.0, "detail": {"ahead": 3}},
        {"reason": "batch_full", "start_ms": 1000.0, "duration_ms": 1500.0, "detail": {"of_ms": 2000.0}},
        {"reason": "page_shortage", "start_ms": 1000.0, "duration_ms": 500.0, "detail": {"of_ms": 2000.0}},
    ]


def test_retractions_pauses_and_grammars() -> None:
    journey = Journey(
        [
            Wait("waiting_grammar", 10.5, 11.0, "arrived", 0.5),
            Wait("waiting", 11.0, 11.0, "compiled", 0.0),
            Wait("waiting", 12.0, 13.0, "retracted", 1.0, ahead=1, lacked=(0.0, 1.0, 0.0, 0.0)),
            Wait("paused", 14.0, 18.0, "paused", 2.0, times=2),
            Wait("waiting", 18.0, 19.0, "resumed", 1.0),
        ]
    )
    found = waits(journey, tokenized=10.1, checked=10.2)
    assert [(wait["reason"], wait["duration_ms"]) for wait in found] == [
        ("grammar_compile", 100.0),
        ("grammar_compile", 500.0),
        ("retraction", 1000.0),
        ("page_shortage", 1000.0),
        ("slow_reader", 2000.0),
        ("resume", 1000.0),
    ]
    assert found[4]["detail"] == {"times": 2}


def test_a_detokenizer_that_was_replaced() -> None:
    (wait,) = waits(Journey(), lost=12.0, replayed=12.5)
    assert wait == {"reason": "restart", "start_ms": 2000.0, "duration_ms": 500.0, "detail": {"process": "detokenizer"}}


def test_the_chunks_of_a_prompt() -> None:
    (wait,) = waits(Journey(chunks=[Chunk(11.0, 12.0, 256), Chunk(12.5, 13.0, 300, 2)]))
    assert (wait["reason"], wait["start_ms"], wait["duration_ms"]) == ("prefill_chunks", 1000.0, 2000.0)
    assert (wait["detail"]["chunks"], wait["detail"]["tokens"]) == (3, 556)
    assert wait["detail"]["list"][1] == {"start_ms": 2500.0, "duration_ms": 500.0, "tokens": 300, "steps": 2}


def test_a_prompt_in_one_piece_and_a_request_that_never_came_to_the_scheduler_wait_for_nothing() -> None:
    assert waits(Journey([Wait("waiting", 11.0, 11.1, "arrived", 0.1, lacked=(0.0,) * 4)], [Chunk(11.0, 12.0, 9)])) == []
