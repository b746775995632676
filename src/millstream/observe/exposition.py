"""Exposition: measures as the text that Prometheus reads, in its own format or OpenMetrics, as the client prefers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from millstream.messages.measures import Measures
from millstream.observe import aliases
from millstream.observe.aliases import ALIASES, Alias
from millstream.observe.families import PREFIX, Family, families
from millstream.observe.tally import merged

OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
Labels = tuple[str, ...]


def expose(measures: Iterable[Measures], model: str, accept: str = "") -> tuple[bytes, str]:
    """The measures added up, of a server whose model's first name is `model`: a body and its content type."""
    page = _Page(merged(measures), model)
    if prefers_openmetrics(accept):
        return _openmetrics(page), _OPENMETRICS_TYPE
    return generate_latest(page), CONTENT_TYPE_PLAIN_0_0_4


def _openmetrics(page: Collector) -> bytes:
    # by its default the library makes `_` of the colons in samples' names, but not in their families'
    body: bytes = openmetrics.generate_latest(page, openmetrics.ALLOWUTF8, "1.0.0")  # type: ignore[no-untyped-call]
    return body


def prefers_openmetrics(accept: str) -> bool:
    """Whether an `Accept` header ranks OpenMetrics above plain text, as Prometheus's does; of equals, it is the better one."""
    best = {OPENMETRICS: 0.0, "text/plain": 0.0}
    for each in accept.split(","):
        name, *parameters = (part.strip().lower() for part in each.split(";"))
        weight = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        for known in best:
            if name == known or (name in ("*/*", known.split("/")[0] + "/*") and known == "text/plain"):
                best[known] = max(best[known], _number(weight))
    return best[OPENMETRICS] > 0 and best[OPENMETRICS] >= best["text/plain"]


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return 0.0


class _Page(Collector):
    """What an answer shows, in the library's terms."""

    def __init__(self, total: Measures, model: str) -> None:
        self._model = model
        self._numbers: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, tuple[list[int], float]]] = {}
        for each in total.samples:
            self._numbers.setdefault(each.family, {})[each.labels] = each.value
        for many in total.distributions:
            self._histograms.setdefault(many.family, {})[many.labels] = many.counts, many.total

    def collect(self) -> Iterator[Metric]:
        for family in families():
            numbers = self._numbers.get(family.name, {})
            if (metric := self._metric(PREFIX + family.name, family, family.labels, numbers)) is not None:
                yield metric
        for alias in ALIASES:
            values = self._renamed(alias)
            if (metric := self._metric(aliases.PREFIX + alias.name, alias.family, alias.labels, values)) is not None:
                yield metric

    def _renamed(self, alias: Alias) -> dict[Labels, float]:
        ours = (self._model, "0")
        if alias.family.kind == "histogram":
            return {ours: 0.0}
        numbers = self._numbers.get(alias.family.name, {})
        if alias.kept:
            return {(*ours, *labels): value for labels, value in numbers.items()}
        if not alias.label:
            return {ours: sum(numbers.values())} if numbers else {}
        if not numbers:
            return {}
        place = alias.family.labels.index("cause")
        by_word = dict.fromkeys(alias.words.values(), 0.0)
        for labels, value in numbers.items():
            if (word := alias.words.get(labels[place])) is not None:
                by_word[word] += value
        return {(*ours, word): value for word, value in by_word.items()}

    def _metric(self, name: str, family: Family, labels: Labels, values: dict[Labels, float]) -> Metric | None:
        if family.kind == "histogram":
            return self._histogram(name, family, labels, values)
        if not values:
            return None
        kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        metric = kind(name, family.help, labels=labels)
        for each, value in sorted(values.items()):
            metric.add_metric(each, value)
        return metric

    def _histogram(self, name: str, family: Family, labels: Labels, renamed: dict[Labels, float]) -> Metric | None:
        found = self._histograms.get(family.name, {})
        if not found:
            return None
        metric = HistogramMetricFamily(name, family.help, labels=labels)
        for own, (counts, total) in sorted(found.items()):
            bounds = [*map(str, family.buckets), "+Inf"]
            metric.add_metric(next(iter(renamed), own), list(zip(bounds, accumulate(counts), strict=True)), total)
        return metric
