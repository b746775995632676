"""The dashboard asks for what the server exports, by labels that it has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from millstream.observe.families import PREFIX, families

DASHBOARD = json.loads((Path(__file__).parent.parent.parent / "deploy" / "grafana" / "millstream.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPORTED: dict[str, set[str]] = {}
for family in families():
    names = [family.exported]
    if family.kind == "histogram":
        names = [f"{family.exported}_{part}" for part in ("bucket", "count", "sum")]
    for name in names:
        EXPORTED[name] = {*family.labels, *(["le"] if name.endswith("_bucket") else [])}


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def test_every_query_names_what_is_exported_and_groups_by_labels_that_it_has() -> None:
    for panel in PANELS:
        for query, target in zip(queries(panel), panel["targets"], strict=True):
            named = re.findall(rf"{PREFIX}\w+", query)
            assert named and set(named) <= EXPORTED.keys(), (panel["title"], query)
            labels = set().union(*(EXPORTED[name] for name in named))
            grouped = {word.strip() for group in re.findall(r"by \(([^)]*)\)", query) for word in group.split(",")}
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert grouped | shown <= labels, (panel["title"], query)
            assert query.count("(") == query.count(")") and query.count("{") == query.count("}")


def test_what_an_operator_looks_for_first_is_there() -> None:
    asked = {name for panel in PANELS for query in queries(panel) for name in re.findall(rf"{PREFIX}\w+", query)}
    assert {
        "millstream:requests_running",
        "millstream:time_to_first_token_seconds_bucket",
        "millstream:inter_token_latency_seconds_bucket",
        "millstream:kv_pages",
        "millstream:requests_total",
        "millstream:ledger_mismatches_total",
        "millstream:stream_mismatches_total",
        "millstream:process_restarts_total",
    } <= asked


def test_panels_have_numbers_of_their_own_and_do_not_lie_over_each_other() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        taken = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        cells |= taken
