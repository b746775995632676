"""Whole servers under load, ours and others', in turns: tokens a second, times to the first token and between tokens.

    python -m benchmarks.serve
    python -m benchmarks.serve --executors native torch --peers peers.json --rounds 3

In each round every server is started, warmed up, measured and stopped, one after the other; rounds differ in who comes first.
For ours the round also measures the executor without a server, under the same load, so that the report can say what share of it
HTTP leaves. Writes all of it to a JSON file, prints tables, and draws a picture. With `--append` the rounds are added to those
in the file, and `--servers` picks some: on a machine that others use, short runs at quiet moments make one table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import by_name, in_turn, machine, output_of
from benchmarks.serve.report import picture, tables
from benchmarks.serve.servers import Server, ours, peer
from benchmarks.serve.workloads import WORKLOADS, warm_up
from millstream.config import ServerConfig

MEASURE = [sys.executable, "-m", "benchmarks.engine.measure"]


def contestants(options: argparse.Namespace) -> dict[str, Any]:
    """How to start each of them."""
    starts: dict[str, Any] = {}
    for executor in options.executors:
        starts[f"millstream {executor}"] = partial(ours, executor, options.threads, options.server_option)
    specs = json.loads(options.peers.read_text()) if options.peers else {}
    specs |= {name: {"url": url} for name, url in by_name(options.peer).items()}
    starts |= {name: partial(peer, name, spec) for name, spec in specs.items()}
    return {name: start for name, start in starts.items() if not options.servers or name in options.servers}


def run_server(start: AbstractContextManager[Server], names: list[str]) -> dict[str, Any]:
    """Start a server, put it through the workloads, stop it."""
    with start as server:
        asyncio.run(warm_up(server))
        figures: dict[str, Any] = {}
        for name in names:
            figures[name] = asyncio.run(WORKLOADS[name](server))  # type: ignore[arg-type]
            print(f"  {server.name}: {name} {figures[name]['tokens_per_s']} tokens/s", file=sys.stderr, flush=True)
        return {"ready_s": server.ready_s, "memory_mib": server.memory_mib(), "workloads": figures}


def run_executor(executor: str, threads: int, figures: dict[str, Any]) -> dict[str, float]:
    """Tokens a second of the executor alone, under the loads that its server was just measured with."""
    loads = {name: each for name, each in figures.items() if name.startswith("load-")}
    if not loads:
        return {}
    some = next(iter(loads.values()))
    shared = int(some["prompt_tokens"] * (some["hit_share"] or 0))
    shape = ["--loop-prompt", round(some["prompt_tokens"]), "--loop-shared", shared, "--threads", threads]
    shape += ["--chunk", ServerConfig().chunked_prefill_size, "--loop-clients", *(name.split("-")[1] for name in loads)]
    rates: dict[str, float] = output_of([*MEASURE, "--executor", executor, *map(str, shape)])["loop_tokens_per_s"]
    return {f"load-{clients}": rate for clients, rate in rates.items()}


def run_round(options: argparse.Namespace, number: int) -> Iterator[dict[str, Any]]:
    """Everybody once, each as soon as it is measured."""
    starts = contestants(options)
    for name in in_turn(starts, number):
        run = {"server": name, "round": number, "when": time.strftime("%F %T"), "load_average": os.getloadavg()[0]}
        run |= run_server(starts[name](), options.workloads)
        if name.startswith("millstream "):
            run["executor_alone"] = run_executor(name.split()[1], options.threads, run["workloads"])
        yield run


def main() -> None:
    """Parse the command line, run the rounds, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", nargs="*", default=["native"], help="ours, a server each")
    parser.add_argument(
        "--server-option", action="append", default=[], help="passed to `millstream serve`, as --server-option=--x=1"
    )
    parser.add_argument("--peers", type=Path, help="a JSON file of commands: see servers.py")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL", help="one that is running")
    parser.add_argument("--servers", nargs="*", help="only these")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--append", action="store_true", help="add to the rounds in --out")
    parser.add_argument("--out", type=Path, default=Path("serve.json"))
    parser.add_argument("--picture", type=Path, default=Path("serve.svg"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server under measurement is stopped, too
    runs = json.loads(options.out.read_text())["runs"] if options.append and options.out.exists() else []
    first = max((run["round"] + 1 for run in runs), default=0)
    for number in range(first, first + options.rounds):
        for run in run_round(options, number):
            runs.append(run)
            options.out.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1) + "\n")
    print(tables(runs))
    picture(runs, options.picture)


if __name__ == "__main__":
    main()
