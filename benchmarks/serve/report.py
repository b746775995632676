"""From runs to tables and a picture. Every figure is the median over the rounds."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.bars import Panel, draw

Runs = list[dict[str, Any]]
COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {  # heading and where the figure is, by kind of workload
    "load": (
        ("tokens/s", "tokens_per_s"),
        ("TTFT p50", "ttft_ms.p50"),
        ("TTFT p99", "ttft_ms.p99"),
        ("ITL p50", "itl_ms.p50"),
        ("ITL p99", "itl_ms.p99"),
    ),
    "mixed": (
        ("tokens/s", "tokens_per_s"),
        ("ITL p50 beside the long", "itl_ms_beside_long.p50"),
        ("p99", "itl_ms_beside_long.p99"),
        ("longest", "itl_ms_beside_long.max"),
        ("TTFT of the long", "ttft_ms_long.p50"),
    ),
    "prefix": (("TTFT cold", "ttft_ms_cold"), ("TTFT warm p50", "ttft_ms.p50"), ("hit share", "hit_share")),
    "turns": (
        ("tokens/s", "tokens_per_s"),
        ("TTFT p50 of later turns", "ttft_ms_later.p50"),
        ("hit share of later turns", "hit_share_later"),
    ),
}


def figure(runs: Runs, server: str, workload: str, path: str) -> float | None:
    """The median of one figure of one server; None where there is none."""
    values = []
    for run in runs:
        value = run["workloads"].get(workload) if run["server"] == server else None
        for key in path.split("."):
            value = value.get(key) if value else None
        if value is not None:
            values.append(value)
    return statistics.median(values) if values else None


def tables(runs: Runs) -> str:
    """Markdown: one table a workload; at the end what share of the executor's own rate is left over HTTP, and memory."""
    servers = list(dict.fromkeys(run["server"] for run in runs))
    lines = []
    for workload in dict.fromkeys(name for run in runs for name in run["workloads"]):
        columns = COLUMNS[workload.split("-")[0]]
        lines += [
            "",
            f"| {workload} | " + " | ".join(heading for heading, _ in columns) + " |",
            "| --- |" + " --- |" * len(columns),
        ]
        for server in servers:
            values = [figure(runs, server, workload, path) for _, path in columns]
            if any(value is not None for value in values):
                lines.append(f"| {server} | " + " | ".join("–" if value is None else f"{value:g}" for value in values) + " |")
    return "\n".join([*lines, "", *_shares(runs, servers), "", *_memory(runs, servers)])


def _shares(runs: Runs, servers: list[str]) -> list[str]:
    """Over HTTP, beside the executor alone under the same load in the same round."""
    lines = ["| over HTTP, of the executor alone | tokens/s | alone | share |", "| --- | --- | --- | --- |"]
    for server in servers:
        alone = [run for run in runs if run["server"] == server and run.get("executor_alone")]
        for workload in dict.fromkeys(name for run in alone for name in run["executor_alone"]):
            own = [run["executor_alone"][workload] for run in alone if workload in run["executor_alone"]]
            http = [run["workloads"][workload]["tokens_per_s"] for run in alone if workload in run["executor_alone"]]
            share = statistics.median(h / o for h, o in zip(http, own, strict=True))
            lines.append(
                f"| {server}, {workload} | {statistics.median(http):.0f} | {statistics.median(own):.0f} | {share:.1%} |"
            )
    return lines


def _memory(runs: Runs, servers: list[str]) -> list[str]:
    lines = ["| server | ready s | MiB after the loads | rounds |", "| --- | --- | --- | --- |"]
    for server in servers:
        every = [run for run in runs if run["server"] == server]
        ready = [run["ready_s"] for run in every if run["ready_s"] is not None]
        memory = [run["memory_mib"] for run in every if run["memory_mib"] is not None]
        cells = [f"{statistics.median(ready):.1f}" if ready else "–", str(max(memory)) if memory else "–"]
        lines.append(f"| {server} | " + " | ".join(cells) + f" | {len({run['round'] for run in every})} |")
    return lines


def picture(runs: Runs, path: Path) -> None:
    """Rates and first tokens by load; the longest gaps beside a long prompt; first tokens with a known prefix."""
    servers = list(dict.fromkeys(run["server"] for run in runs))
    wanted = [(f"load-{clients}", "tokens_per_s", f"{clients} clients: tokens/s") for clients in (1, 8, 16, 32)]
    wanted += [(f"load-{clients}", "ttft_ms.p50", f"{clients} clients: TTFT p50, ms (less is better)") for clients in (1, 16)]
    wanted += [("mixed", "itl_ms_beside_long.p99", "8 streams beside prompts of 2,000: ITL p99, ms (less is better)")]
    wanted += [("prefix", "ttft_ms.p50", "7 questions about a known text of 2,000: TTFT p50, ms (less is better)")]
    panels = []
    for workload, key, title in wanted:
        values = {server: figure(runs, server, workload, key) for server in servers}
        shown = {server: value for server, value in values.items() if value is not None}
        if shown:
            panels.append(Panel(title, shown))
    draw(path, "Servers over HTTP, median of the rounds", panels)
