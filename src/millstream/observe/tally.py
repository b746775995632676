"""Tally: the counters and histograms of one process. Made once a process, written by whoever sees what it counts.

`measures` is the one way out, and tells the supervisor first: what was told to anybody outlives the process. In one thread.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import chain

from millstream.messages.measures import Distribution, Measures, Sample
from millstream.observe.families import BY_NAME, Family


class Counter:
    """Counts of a family by the values of its labels."""

    __slots__ = ("family", "values")

    def __init__(self, family: Family) -> None:
        self.family = family
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, amount: float, *labels: str) -> None:
        """Count `amount` more."""
        self.values[labels] = self.values.get(labels, 0.0) + amount


class Histogram:
    """One distribution. `observe` costs a bisection and two additions."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value; one equal to a bound lies below it."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Tally:
    """`process` is the kind of this one. `tell` gets all measures first, and says whether it could take them."""

    def __init__(self, process: str, tell: Callable[[Measures], bool] = lambda measures: True) -> None:
        self.process = process
        self._tell = tell
        self._counters: list[Counter] = []
        self._histograms: dict[tuple[str, tuple[str, ...]], Histogram] = {}

    def counter(self, family: Family) -> Counter:
        """A new counter; one a family."""
        counter = Counter(family)
        self._counters.append(counter)
        return counter

    def histogram(self, family: Family, *labels: str) -> Histogram:
        """The histogram of these values of the family's labels."""
        key = family.name, labels
        if key not in self._histograms:
            self._histograms[key] = Histogram(family.buckets)
        return self._histograms[key]

    def measures(self, more: Iterable[Sample] = ()) -> Measures | None:
        """All of it now, with `more` that is counted elsewhere. None: the supervisor could not be told, so nobody may be."""
        counted = (
            Sample(counter.family.name, labels, value) for counter in self._counters for labels, value in counter.values.items()
        )
        distributions = [
            Distribution(name, labels, list(each.counts), each.total) for (name, labels), each in self._histograms.items()
        ]
        measures = Measures(self.process, os.getpid(), list(chain(counted, more)), distributions)
        return measures if self._tell(measures) else None


def sample(family: Family, value: float, *labels: str) -> Sample:
    """One number of a family."""
    return Sample(family.name, labels, value)


def merged(measures: Iterable[Measures], process: str = "", pid: int = 0) -> Measures:
    """Added up: numbers and histograms of equal families and labels."""
    samples: dict[tuple[str, tuple[str, ...]], float] = {}
    distributions: dict[tuple[str, tuple[str, ...]], Distribution] = {}
    for each in measures:
        for one in each.samples:
            key = (one.family, one.labels)
            samples[key] = samples.get(key, 0.0) + one.value
        for many in each.distributions:
            key = (many.family, many.labels)
            known = distributions.get(key)
            distributions[key] = many if known is None else _added(known, many)
    return Measures(process, pid, [Sample(*key, value) for key, value in samples.items()], list(distributions.values()))


def _added(left: Distribution, right: Distribution) -> Distribution:
    counts = [a + b for a, b in zip(left.counts, right.counts, strict=True)]
    return Distribution(left.family, left.labels, counts, left.total + right.total)


def lasting(measures: Measures) -> Measures:
    """What still counts when the process is gone: its counters and histograms, not how it was."""
    samples = [each for each in measures.samples if BY_NAME[each.family].kind == "counter"]
    return Measures(measures.process, measures.pid, samples, measures.distributions)
