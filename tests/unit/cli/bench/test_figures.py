"""Figures of records that are made by hand, the text of a report, and the picture."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from millstream.cli.bench.figures import figures, percentile, spread, times
from millstream.cli.bench.picture import draw
from millstream.cli.bench.report import report_text
from millstream.cli.bench.wire import Record


def record(*at: float, sent: float = 0.0, due: float = 0.0, error: str | None = None, **counts: int) -> Record:
    """A request with tokens at these seconds, which ends with the last."""
    return Record(due, sent=sent, times=list(at), ended=at[-1] if at else sent, error=error, detail="why", **counts)


def test_percentiles_are_numpy_s() -> None:
    dice = random.Random(0)
    for count in (1, 2, 3, 50):
        values = sorted(dice.random() for _ in range(count))
        for point in (0, 1, 50, 90, 99, 100):
            assert percentile(values, point) == pytest.approx(np.percentile(values, point))
    assert spread([]) is None


def test_every_time_is_what_its_name_says() -> None:
    found = times([record(1.5, 1.75, 2.5, sent=1.0, completion_tokens=5), record(9.0, error="timeout"), record(sent=1.0)])
    assert found == {"ttft_ms": [500], "itl_ms": [250, 750], "tpot_ms": [250], "e2e_ms": [0, 1500]}


def test_failures_are_counted_by_kind_and_count_for_no_time() -> None:
    found = figures(
        [
            record(1.0, 2.0, prompt_tokens=10, cached_tokens=4, completion_tokens=2),
            record(1.0, error="HTTP 429"),
            record(error="HTTP 429"),
            record(error="timeout"),
        ],
        4.0,
    )
    assert found["requests"] == {"ended": 4, "succeeded": 1, "failed": 3}
    assert found["errors"] == {"HTTP 429": {"count": 2, "first": "why"}, "timeout": {"count": 1, "first": "why"}}
    assert found["tokens"] == {"prompt": 10, "cached": 4, "output": 2, "counted_by": "usage"}
    assert (found["requests_per_s"], found["output_tokens_per_s"]) == (0.25, 0.5)
    assert found["ttft_ms"]["max"] == 1000


def report(*records: Record) -> str:
    return report_text(
        {
            "url": "http://x",
            "model": "tiny",
            "load": {"concurrency": None, "rate": 2.5, "duration_s": None},
            "workload": {"kind": "random"},
            "seed": 3,
            "figures": figures(records, 2.0),
        }
    )


def test_the_report_has_a_line_for_each_time_and_says_what_to_mind() -> None:
    text = report(record(1.1, 2.0, sent=0.1))
    assert "tiny at http://x: 2.5 sessions a second, at random times, random, seed 3" in text
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("TTFT", "ITL", "TPOT", "E2E"))] == [
        "TTFT", "ITL", "TPOT", "E2E",
    ]  # fmt: skip
    assert "does not count tokens" in text
    assert "The client lagged: 1 % of requests left 100 ms late" in text
    assert "1 x timeout: why" in report(record(error="timeout"))


def test_the_picture_is_svg_with_a_panel_for_each_time_there_is() -> None:
    tree = ET.fromstring(draw("a < b", "under", {"ttft_ms": [0.0, 3.0, 2000.0], "itl_ms": [], "e2e_ms": [5.0]}))
    name = "{http://www.w3.org/2000/svg}"
    assert len(tree.findall(f"{name}polyline")) == 2
    words = [each.text or "" for each in tree.iter(f"{name}text")]
    assert words[:2] == ["a < b", "under"]
    assert any(word.startswith("TTFT") for word in words)
    assert not any(word.startswith("ITL") for word in words)
    width, height = float(tree.get("width", 0)), float(tree.get("height", 0))
    for circle in tree.iter(f"{name}circle"):
        assert 0 <= float(circle.get("cx", -1)) <= width
        assert 0 <= float(circle.get("cy", -1)) <= height
