"""Counting: what one process counts, what several come to, and what is left of one that is gone."""

from __future__ import annotations

import pytest

from millstream.messages import Measures
from millstream.messages.measures import Distribution, Sample
from millstream.observe import families
from millstream.observe.families import BY_NAME
from millstream.observe.tally import Histogram, Tally, lasting, merged, sample


def test_a_value_lies_below_the_bound_it_equals_and_above_the_last_there_is_room() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 14.0)


def test_what_is_told_to_anybody_is_told_to_the_supervisor_first() -> None:
    told: list[Measures] = []
    tally = Tally("entry", lambda measures: told.append(measures) is None)
    tally.counter(families.REQUESTS).add(2, "stop", "chat", "m")
    measures = tally.measures([sample(families.STORED, 5)])
    assert told == [measures]
    assert measures.samples == [Sample("requests", ("stop", "chat", "m"), 2), Sample("stored_responses", (), 5)]


def test_what_the_supervisor_could_not_take_is_told_to_nobody() -> None:
    assert Tally("entry", lambda measures: False).measures() is None


def test_equal_labels_are_added_up_and_others_stay_apart() -> None:
    one = Measures("entry", 1, [Sample("requests", ("stop", "chat", "m"), 1)], [Distribution("queue_seconds", (), [1, 2], 3.0)])
    two = Measures(
        "entry",
        2,
        [Sample("requests", ("stop", "chat", "m"), 4), Sample("requests", ("length", "chat", "m"), 1)],
        [Distribution("queue_seconds", (), [5, 0], 0.5)],
    )
    total = merged([one, two], "entry")
    assert total.samples == [Sample("requests", ("stop", "chat", "m"), 5), Sample("requests", ("length", "chat", "m"), 1)]
    assert total.distributions == [Distribution("queue_seconds", (), [6, 2], 3.5)]
    assert one.distributions[0].counts == [1, 2]


def test_counts_outlive_their_process_and_gauges_do_not() -> None:
    measures = Measures("scheduler", 1, [Sample("steps", (), 7), Sample("requests_running", (), 3)], [])
    assert lasting(measures).samples == [Sample("steps", (), 7)]


@pytest.mark.parametrize("family", BY_NAME.values(), ids=list(BY_NAME))
def test_every_family_is_declared_well(family: families.Family) -> None:
    assert family.help.endswith(".") and family.help[0].isupper()
    assert not family.name.endswith(("_total", "_count", "_sum", "_bucket", "_created"))
    assert bool(family.buckets) == (family.kind == "histogram")
    assert list(family.buckets) == sorted(set(family.buckets))
