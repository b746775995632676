"""From the rounds to tables and a picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.bars import Panel, draw
from benchmarks.engine.floor import Work, floor_ms, work_of
from millstream.checkpoint.locate import resolve_model

OURS = ("native", "torch")  # whose floor we know: a peer may hold its weights otherwise


def ceilings(report: dict[str, Any]) -> dict[str, float]:
    """The highest of all rounds: a ceiling that was reached once is there."""
    names = ("read_gb_s", "fp32_gflops", "int8_gops")
    return {name: max(each["ceilings"][name] for each in report["rounds"]) for name in names}


def times(report: dict[str, Any], engine: str, what: str, size: str) -> list[float]:
    """Every step's, or prefill's, milliseconds in all rounds."""
    engines = [each["engines"][engine] for each in report["rounds"] if engine in each["engines"]]
    return [ms for each in engines for ms in each[what].get(size, [])]


def tables(report: dict[str, Any]) -> str:
    """Markdown: ceilings, decode, prefill, memory."""
    most = ceilings(report)
    first = report["rounds"][0]["engines"]
    lines = [", ".join(f"{name} {value:,.0f}" for name, value in most.items())]
    lines.append(f"{len(report['rounds'])} rounds, {report['threads']} threads, contexts of about {report['context']} tokens")
    lines += _table("decode_ms", "rows", report, most)
    lines += _table("prefill_ms", "tokens", report, most)
    lines += ["", "| engine | load s | MiB loaded, anon / file | MiB used, anon / file |", "| --- | --- | --- | --- |"]
    for name in first:
        every = [each["engines"][name] for each in report["rounds"] if name in each["engines"]]
        load = statistics.median(each["load_s"] for each in every)
        memory = " | ".join(f"{every[-1][key]['anon']} / {every[-1][key]['file']}" for key in ("loaded_mib", "used_mib"))
        lines.append(f"| {name} | {load:.2f} | {memory} |")
    return "\n".join(lines)


def _table(what: str, unit: str, report: dict[str, Any], most: dict[str, float]) -> list[str]:
    first = report["rounds"][0]["engines"]
    sizes = list(next(iter(first.values()))[what])
    lines = ["", f"| {what.removesuffix('_ms')} | " + " | ".join(f"{size} {unit}" for size in sizes) + " |"]
    lines.append("| --- |" + " --- |" * len(sizes))
    for name in first:
        work = work_of(resolve_model(report["model"]), name) if name in OURS else None
        cells = [_cell(times(report, name, what, size), int(size), what, work, report, most) for size in sizes]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _cell(every: list[float], size: int, what: str, work: Work | None, report: dict[str, Any], most: dict[str, float]) -> str:
    """`fastest / median ms = tokens/s of both`, and how many times the floor the median is."""
    if not every:
        return ""
    best, middle = min(every), statistics.median(every)
    cell = f"{best:.1f} / {middle:.1f} ms = {size / best * 1000:,.0f} / {size / middle * 1000:,.0f}"
    if work is None:
        return cell
    if what == "decode_ms":
        floor = floor_ms(work, most, tokens=size, sampled=size, context=size * report["context"])
    else:
        floor = floor_ms(work, most, tokens=size, sampled=1, context=0)
    return f"{cell}; floor {floor:.1f} ms, {best / floor:.2f}x / {middle / floor:.2f}x"


def picture(report: dict[str, Any], path: Path) -> None:
    """Tokens a second, medians."""
    panels = []
    first = report["rounds"][0]["engines"]
    for what, title in (("decode_ms", "decode, {} rows: tokens/s"), ("prefill_ms", "prefill of {}: tokens/s")):
        for size in next(iter(first.values()))[what]:
            every = {name: times(report, name, what, size) for name in first}
            values = {name: int(size) / statistics.median(ms) * 1000 for name, ms in every.items() if ms}
            panels.append(Panel(title.format(size), values))
    draw(path, f"Executors alone, {report['threads']} threads, median of {len(report['rounds'])} rounds", panels)
