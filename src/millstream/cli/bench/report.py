"""The report for people: a table, and sentences where a figure needs one."""

from __future__ import annotations

from typing import Any

from millstream.cli.bench.figures import POINTS, TIMES

LATE_MS = 20.0  # a client that lags by more measures itself


def report_text(report: dict[str, Any]) -> str:
    """The report, in lines."""
    found = report["figures"]
    requests, tokens = found["requests"], found["tokens"]
    lines = [
        headline(report),
        "",
        f"requests   {requests['succeeded']:,} succeeded, {requests['failed']:,} failed, in {found['seconds']:,.2f} s: "
        f"{found['requests_per_s']:,.2f} a second",
        f"tokens     {_tokens(tokens)}: {found['output_tokens_per_s']:,.1f} output tokens a second",
        "",
        f"{'milliseconds'.ljust(30)}" + "".join(name.rjust(10) for name in _columns()),
    ]
    for name, what in TIMES.items():
        if (spread := found[name]) is not None:
            label = f"{name.removesuffix('_ms').upper()} {what}"
            lines.append(label.ljust(30) + "".join(_number(spread[each]) for each in _columns()))
    if found["errors"]:
        lines += ["", "failures"]
        for kind, each in sorted(found["errors"].items()):
            lines.append(f"  {each['count']:,} x {kind}: {' '.join(each['first'].split())[:200]}")
    lines += _remarks(found)
    return "\n".join(lines) + "\n"


def headline(report: dict[str, Any]) -> str:
    """What was done to whom."""
    load, kind = _load(report["load"]), report["workload"]["kind"]
    return f"{report['model']} at {report['url']}: {load}, {kind}, seed {report['seed']}"


def _columns() -> list[str]:
    return ["mean", *(f"p{point}" for point in POINTS), "max"]


def _number(value: float) -> str:
    return f"{value:,.2f}".rjust(10)


def _load(load: dict[str, Any]) -> str:
    if load["rate"] is not None:
        return f"{load['rate']:g} sessions a second, at random times"
    return f"{load['concurrency']:,} at a time"


def _tokens(tokens: dict[str, Any]) -> str:
    prompt = "" if tokens["prompt"] is None else f"{tokens['prompt']:,} of prompts, "
    cached = "" if not tokens["cached"] else f"{tokens['cached']:,} of them cached, "
    return f"{prompt}{cached}{tokens['output']:,} of answers"


def _remarks(found: dict[str, Any]) -> list[str]:
    lines = []
    if found["tokens"]["counted_by"] == "events" and found["requests"]["succeeded"]:
        lines.append("The server does not count tokens: events with text stand in for them.")
    late = found["sent_late_ms"]
    if late is not None and late["p99"] > LATE_MS:
        lines.append(
            f"The client lagged: 1 % of requests left {late['p99']:,.0f} ms late or more. Times include its own delays."
        )
    return ["", *lines] if lines else []
