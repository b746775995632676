"""Executors without a server, ours and others', in turns: decode steps, prefills, memory, and how far from the floor.

    python -m benchmarks.engine
    python -m benchmarks.engine --rounds 5 --peer 'llama.cpp=PYTHON benchmarks/engine/peers/llama_cpp_steps.py FILE'

A round measures the machine's ceilings, then each executor in a process of its own; rounds differ in who comes first. A peer is
a command that takes our options (`benchmarks/engine/measure.py`) and prints the same JSON. Writes all of it to a JSON file,
prints tables, and draws a picture. With `--append` the rounds are added to those in the file: on a machine that others use, a
few short runs at quiet moments make one table.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.engine.measure import add_options
from benchmarks.engine.report import picture, tables
from benchmarks.harness import by_name, in_turn, machine, output_of

MEASURE = [sys.executable, "-m", "benchmarks.engine.measure"]
CEILINGS = [sys.executable, "-W", "ignore", "-m", "benchmarks.engine.ceilings"]


def shape_arguments(options: argparse.Namespace) -> list[str]:
    """The options that every contestant gets."""
    arguments = ["--threads", options.threads, "--context", options.context, "--steps", options.steps]
    arguments += ["--batch", *options.batch, "--prefill", *options.prefill, "--repeats", options.repeats]
    return [str(each) for each in [*arguments, "--chunk", options.chunk]]


def run_round(options: argparse.Namespace, number: int) -> dict[str, Any]:
    """Measure the ceilings and everybody once."""
    contestants = {name: [*MEASURE, "--model", options.model, "--executor", name] for name in options.executors}
    contestants |= {name: shlex.split(command) for name, command in by_name(options.peer).items()}
    report: dict[str, Any] = {"ceilings": output_of([*CEILINGS, "--threads", str(options.threads)]), "engines": {}}
    for name in in_turn(contestants, number):
        report["engines"][name] = output_of([*contestants[name], *shape_arguments(options)])
        print(f"round {number}: {name} done", file=sys.stderr, flush=True)
    report |= {"when": time.strftime("%F %T"), "load_average": os.getloadavg()[0]}
    return report


def main() -> None:
    """Parse the command line, run the rounds, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--executors", nargs="+", default=["native", "torch"])
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--append", action="store_true", help="add to the rounds in --out")
    parser.add_argument("--out", type=Path, default=Path("engine.json"))
    parser.add_argument("--picture", type=Path, default=Path("engine.svg"))
    options = parser.parse_args()
    options.threads = options.threads or len(os.sched_getaffinity(0))
    rounds = json.loads(options.out.read_text())["rounds"] if options.append and options.out.exists() else []
    for number in range(len(rounds), len(rounds) + options.rounds):
        rounds.append(run_round(options, number))
        shape = {name: getattr(options, name) for name in ("model", "threads", "context", "steps", "chunk")}
        options.out.write_text(json.dumps({"machine": machine(), **shape, "rounds": rounds}) + "\n")
    report = json.loads(options.out.read_text())
    print(tables(report))
    picture(report, options.picture)


if __name__ == "__main__":
    main()
