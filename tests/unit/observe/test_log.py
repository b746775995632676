"""The one line of a request's end: the numbers an operator reads first."""

from __future__ import annotations

import logging

import pytest

from millstream.messages import Timing
from millstream.observe.log import RequestEnd, log_request_end, stage_durations


def line_for(caplog: pytest.LogCaptureFixture, timing: Timing, **more: str) -> str:
    with caplog.at_level(logging.INFO, logger="millstream.request"):
        log_request_end(RequestEnd("r1", "chat", "m", "stop", 20, 16, 5, timing, ended=9.0, **more))
    (record,) = caplog.records
    return record.getMessage()


def test_a_stream_s_first_token_is_timed_when_it_was_written(caplog: pytest.LogCaptureFixture) -> None:
    line = line_for(caplog, Timing(received=1.0, prefilled=1.2, first_written=1.25, written=2.0))
    assert line == "request r1 api=chat model=m cause=stop prompt=20 cached=16 completion=5 ttft_ms=250.0 total_ms=1000.0"


def test_a_plain_answer_s_first_token_is_timed_when_it_was_made(caplog: pytest.LogCaptureFixture) -> None:
    assert "ttft_ms=200.0 total_ms=1000.0" in line_for(caplog, Timing(received=1.0, prefilled=1.2, written=2.0))


def test_a_request_without_a_token_has_no_such_time_and_the_client_s_own_id_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    line = line_for(caplog, Timing(received=8.5), request_id="abc")
    assert line.endswith("ttft_ms=- total_ms=500.0 request_id=abc")


def test_stages_are_durations_in_order_of_time_and_leave_out_what_was_not_reached() -> None:
    timing = Timing(received=1.0, adapted=1.001, tokenized=1.003, queued=1.004, written=1.010)
    assert stage_durations(timing) == "adapted=1.00 tokenized=2.00 queued=1.00 written=6.00"
