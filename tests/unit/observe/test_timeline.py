"""Stages cover a request's whole time, whatever it came to, and the parts of the time to the first token add up."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.messages import RequestRecord, Timing, Usage
from millstream.observe.timeline import first_token, stages, summary, timeline

WHOLE = {
    "received": 10.0,
    "adapted": 10.001,
    "tokenized": 10.003,
    "queued": 10.004,
    "admitted": 10.104,
    "prefilled": 10.3,
    "decoded": 11.3,
    "finished": 11.3,
    "first_detokenized": 10.301,
    "detokenized": 11.301,
    "first_written": 10.302,
    "written": 11.31,
}


def record(stamps: dict[str, float], **more: Any) -> RequestRecord:
    facts: dict[str, Any] = {"state": "ended", "cause": "stop", "until": 11.31} | more
    return RequestRecord(
        rid="r", call="r", api="chat", model="m", received_at=1000.0, timing=Timing(**stamps), usage=Usage(9, 4, 3), **facts
    )


def test_a_streamed_answer_goes_through_all_stages_without_a_gap() -> None:
    found = stages(record(WHOLE))
    assert [stage.name for stage in found] == [
        "template",
        "tokenize",
        "send",
        "queue",
        "prefill",
        "decode",
        "detokenize",
        "write",
    ]
    assert [stage.process for stage in found][2:7] == ["entry", "scheduler", "scheduler", "scheduler", "detokenizer"]
    assert all(before.end == after.start for before, after in zip(found, found[1:], strict=False))
    assert (found[0].start, found[-1].end) == (10.0, 11.31)
    assert all(stage.is_over for stage in found)


def test_the_parts_of_the_time_to_the_first_token_add_up_to_it() -> None:
    made = timeline(record(WHOLE))
    assert made["ttft"] == {
        "template": 1.0, "tokenize": 2.0, "send": 1.0, "queue": 100.0, "prefill": 196.0, "detokenize": 1.0, "write": 1.0,
    }  # fmt: skip
    assert made["ttft_ms"] == pytest.approx(302.0)
    assert made["duration_ms"] == pytest.approx(1310.0)


def test_an_answer_in_one_piece_has_its_first_token_when_it_is_made() -> None:
    parts = first_token(Timing(**WHOLE | {"first_written": 0.0}))
    assert list(parts)[-1] == "prefill"
    assert sum(parts.values()) == pytest.approx(300.0)


def test_a_grammar_is_a_stage_of_its_own() -> None:
    stamps = WHOLE | {"checked": 10.0035}
    assert [stage.name for stage in stages(record(stamps))][1:4] == ["tokenize", "grammar", "send"]
    assert first_token(Timing(**stamps))["grammar"] == pytest.approx(0.5)


def test_a_request_that_ended_in_the_queue_was_never_anywhere_else() -> None:
    stamps = {name: WHOLE[name] for name in ("received", "adapted", "tokenized", "queued")}
    found = stages(record(stamps | {"finished": 15.0, "first_detokenized": 15.001, "detokenized": 15.001}, until=15.002))
    assert [(stage.name, round(stage.end - stage.start, 3)) for stage in found][3:] == [
        ("queue", 4.996),
        ("detokenize", 0.001),
        ("write", 0.001),
    ]
    assert first_token(Timing(**stamps)) == {}
    assert summary(record(stamps))["ttft_ms"] is None


def test_a_live_request_is_in_its_last_stage() -> None:
    stamps = {name: WHOLE[name] for name in ("received", "adapted", "tokenized", "queued", "admitted")}
    found = stages(record(stamps, state="running", cause=None, until=10.5))
    assert (found[-1].name, found[-1].end, found[-1].is_over) == ("prefill", 10.5, False)


def test_a_first_row_decoded_again_after_it_was_written_counts_as_written() -> None:
    parts = first_token(Timing(**WHOLE | {"first_detokenized": 12.0}))
    assert parts["write"] == 0.0
    assert sum(parts.values()) == pytest.approx(302.0)
