"""What an entry counts of a request's end."""

from __future__ import annotations

import pytest

from millstream.messages import Timing
from millstream.observe.log import RequestEnd
from millstream.observe.recorder import Recorder
from millstream.observe.tally import Tally


def recorded(*ends: tuple[str, Timing, int]) -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], tuple[int, float]]]:
    """The numbers, and of each histogram how many values there are and their sum, by family and labels."""
    tally = Tally("entry")
    recorder = Recorder(tally)
    for cause, timing, num_tokens in ends:
        recorder.record(RequestEnd("r", "chat", "m", cause, 20, 16, num_tokens, timing, ended=9.0))
    measures = tally.measures()
    assert measures is not None
    numbers = {(each.family, *each.labels): each.value for each in measures.samples}
    return numbers, {(each.family, *each.labels): (sum(each.counts), each.total) for each in measures.distributions}


STAMPS = Timing(
    received=1.0,
    adapted=1.1,
    tokenized=1.3,
    queued=1.4,
    admitted=1.8,
    prefilled=2.6,
    decoded=4.6,
    first_detokenized=2.65,
    first_written=2.7,
    written=5.0,
)


def test_the_parts_of_the_first_token_s_time_come_to_the_whole() -> None:
    _, histograms = recorded(("stop", STAMPS, 5))
    assert histograms["time_to_first_token_seconds",] == (1, pytest.approx(1.7))
    parts = {name[1]: total for name, (count, total) in histograms.items() if name[0] == "time_to_first_token_part_seconds"}
    assert parts == pytest.approx(
        {"template": 0.1, "tokenize": 0.2, "send": 0.1, "queue": 0.4, "prefill": 0.8, "detokenize": 0.05, "write": 0.05}
    )


def test_times_of_a_whole_request() -> None:
    numbers, histograms = recorded(("stop", STAMPS, 5))
    assert numbers == {("requests", "stop", "chat", "m"): 1}
    assert histograms["e2e_request_latency_seconds",] == (1, 4.0)
    assert histograms["time_per_output_token_seconds",] == (1, pytest.approx(0.5))
    assert histograms["inference_seconds",] == (1, pytest.approx(2.8))
    assert histograms["request_prompt_tokens",] == (1, 20)


def test_a_request_that_never_ran_is_counted_and_has_no_times() -> None:
    numbers, histograms = recorded(("rejected", Timing(received=1.0, queued=1.1), 0), ("rejected", Timing(received=1.0), 0))
    assert numbers == {("requests", "rejected", "chat", "m"): 2}
    assert not any(count for count, _ in histograms.values())


def test_one_that_was_aborted_before_its_first_token_waited_and_has_no_first_token() -> None:
    _, histograms = recorded(("client_gone", Timing(received=1.0, queued=1.0, admitted=3.0), 0))
    assert histograms["queue_seconds",] == (1, 2.0)
    assert histograms["time_to_first_token_seconds",] == (0, 0.0)


def test_one_token_has_no_time_between_tokens() -> None:
    _, histograms = recorded(("length", STAMPS, 1))
    assert histograms["time_per_output_token_seconds",] == (0, 0.0)
