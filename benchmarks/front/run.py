"""What the front path costs: entry, scheduler and detokenizer over the scripted executor, paced, under 1 to 1,024 streams.

    python -m benchmarks.front.run
    python -m benchmarks.front.run --streams 64 256 --peer sglang=http://127.0.0.1:31000,4711

Starts a server for each scenario and runs `benchmarks/load.py` against it. Prints a line a run: inter-token latency, time to
the first token, the CPU time that each process used for a token, and the floor: what the bare `send` of an event costs just
then. Writes everything to a JSON file. A peer is a server that somebody started, with an engine of the same pace: name, URL
and process id. It is measured in turn with ours, for only figures of one session compare.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.front.floor import send_floor_us
from benchmarks.harness import machine
from benchmarks.server import millstream

LOAD = Path(__file__).parent.parent / "load.py"


@dataclass(frozen=True)
class Scenario:
    """So many streams of so many tokens; each gets `tokens_per_step` every `step_ms`."""

    streams: int
    step_ms: int
    tokens: int
    tokens_per_step: int = 1

    @property
    def name(self) -> str:
        """How it is called in the report."""
        return f"{self.streams} streams, {self.tokens_per_step} tokens each {self.step_ms} ms"


SCENARIOS = (
    Scenario(1, 10, 1000),
    Scenario(64, 10, 256),
    Scenario(64, 10, 1024, tokens_per_step=4),
    Scenario(256, 10, 256),
    Scenario(1024, 50, 128),
)


def our_server(scenario: Scenario, directory: Path) -> AbstractContextManager[tuple[str, int]]:
    """URL and process id of a scripted server for `scenario`."""
    options = ["--executor", "scripted", "--log-level", "warning"]
    options += ["--scripted-step-ms", str(scenario.step_ms), "--max-running-requests", str(scenario.streams + 8)]
    options += ["--max-queued-requests", "4096", "--chunked-prefill-size", "8192"]
    if scenario.tokens_per_step > 1:
        script = directory / "script.json"
        steps = scenario.tokens // scenario.tokens_per_step
        piece = {"ids": list(range(40, 40 + scenario.tokens_per_step))}
        script.write_text(json.dumps({"rules": [{"pieces": [piece] * steps, "finish": "length"}]}))
        options += ["--script", str(script)]
    return millstream(options)


def load(url: str, pid: int, clients: int, tokens: int, model: str) -> dict[str, Any]:
    """One run of the load client, in a process of its own."""
    command = [sys.executable, str(LOAD), "--url", url, "--pid", str(pid), "--model", model, "--ignore-eos"]
    command += ["--clients", str(clients), "--requests", str(clients), "--max-tokens", str(tokens)]
    report: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return report


def measure(name: str, url: str, pid: int, scenario: Scenario, model: str = "") -> dict[str, Any]:
    """Warm up, run, print a line."""
    load(url, pid, min(scenario.streams, 8), 16, model)
    report = load(url, pid, scenario.streams, scenario.tokens, model)
    floor = send_floor_us(scenario.streams, scenario.step_ms)
    report |= {"server": name, "scenario": scenario.name, "step_ms": scenario.step_ms}
    report |= {"send_floor_us": floor, "load_average": os.getloadavg()[0]}
    cpu = " ".join(f"{process.removeprefix('millstream::')} {used}" for process, used in report["cpu_us_per_token"].items())
    print(
        f"{name:12} {scenario.name:36} itl {report['itl_ms']['p50']}/{report['itl_ms']['p99']} ms, "
        f"ttft {report['ttft_ms']['p50']} ms, events/token {report['events_per_token']}, "
        f"us/token: {cpu}; floor {floor} us/event",
        flush=True,
    )
    return report


def peer(text: str) -> tuple[str, str, int]:
    """`NAME=URL,PID`."""
    name, _, rest = text.partition("=")
    url, _, pid = rest.rpartition(",")
    return name, url, int(pid)


def main() -> None:
    """Parse the command line and run the scenarios that it leaves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="*", help="only scenarios with this many streams")
    parser.add_argument("--tokens", type=int, help="tokens a request, in place of the scenario's")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--peer", type=peer, action="append", default=[], metavar="NAME=URL,PID")
    parser.add_argument("--peer-model", default="", help="what to ask peers for")
    parser.add_argument("--out", type=Path, default=Path("front.json"))
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a socket a stream, on both sides
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for scenario in (each for each in SCENARIOS if not options.streams or each.streams in options.streams):
            scenario = replace(scenario, tokens=options.tokens or scenario.tokens)
            for _ in range(options.repeats):
                with our_server(scenario, Path(directory)) as (url, pid):
                    runs.append(measure("millstream", url, pid, scenario))
                if scenario.tokens_per_step == 1:  # a peer's pace and tokens a step are its own business
                    runs += [measure(name, url, pid, scenario, options.peer_model) for name, url, pid in options.peer]
    options.out.write_text(json.dumps({"when": time.strftime("%F %T"), "machine": machine(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
