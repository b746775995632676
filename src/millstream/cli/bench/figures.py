"""Figures: what the records of a run come to. Pure; times in milliseconds, of requests that succeeded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from millstream.cli.bench.wire import Record

POINTS = (50, 90, 95, 99)
TIMES = {
    "ttft_ms": "to the first token",
    "itl_ms": "between two events",
    "tpot_ms": "a token, after the first",
    "e2e_ms": "a whole request",
}


def times(records: Iterable[Record]) -> dict[str, list[float]]:
    """Every measured time by its name, sorted, in milliseconds.

    `itl_ms` is between events as they came: a server that puts several tokens in one event has longer gaps, and fewer.
    """
    found: dict[str, list[float]] = {name: [] for name in TIMES}
    for record in records:
        if record.error is not None:
            continue
        found["e2e_ms"].append((record.ended - record.sent) * 1000)
        if record.times:
            found["ttft_ms"].append((record.times[0] - record.sent) * 1000)
            found["itl_ms"] += [(b - a) * 1000 for a, b in zip(record.times, record.times[1:], strict=False)]
            if (tokens := output_tokens(record)) > 1:
                found["tpot_ms"].append((record.times[-1] - record.times[0]) * 1000 / (tokens - 1))
    for values in found.values():
        values.sort()
    return found


def output_tokens(record: Record) -> int:
    """Tokens of an answer as the server counts them; where it does not, its events."""
    return len(record.times) if record.completion_tokens is None else record.completion_tokens


def percentile(values: Sequence[float], point: float) -> float:
    """The value below which `point` percent of the sorted `values` are, between two of them in proportion."""
    place = (len(values) - 1) * point / 100
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, percentiles and the largest; None of nothing."""
    if not values:
        return None
    points = {f"p{point}": round(percentile(values, point), 3) for point in POINTS}
    return {"mean": round(sum(values) / len(values), 3), **points, "max": round(values[-1], 3)}


def figures(records: Sequence[Record], seconds: float) -> dict[str, Any]:
    """The report's figures. `seconds`: from the start of the run to its end."""
    good = [record for record in records if record.error is None]
    errors: dict[str, dict[str, Any]] = {}
    for record in records:
        if record.error is not None:
            errors.setdefault(record.error, {"count": 0, "first": record.detail})["count"] += 1
    produced = sum(map(output_tokens, good))
    prompts = [record.prompt_tokens for record in good if record.prompt_tokens is not None]
    cached = [record.cached_tokens for record in good if record.cached_tokens is not None]
    late = sorted(max(0.0, record.sent - record.due) * 1000 for record in records if record.sent)
    return {
        "seconds": round(seconds, 3),
        "requests": {"ended": len(records), "succeeded": len(good), "failed": len(records) - len(good)},
        "errors": errors,
        "tokens": {
            "prompt": sum(prompts) if prompts else None,
            "cached": sum(cached) if cached else None,
            "output": produced,
            "counted_by": "usage" if all(record.completion_tokens is not None for record in good) else "events",
        },
        "requests_per_s": round(len(good) / seconds, 3),
        "output_tokens_per_s": round(produced / seconds, 3),
        **{name: spread(values) for name, values in times(records).items()},
        "sent_late_ms": spread(late),
    }
