"""Two hundred clients that read, leave, stall, abort and send garbage; afterwards the server must be as it was before.

    python -m benchmarks.soak.run                       # ten minutes on a scripted server
    python -m benchmarks.soak.run --seconds 60 --model  # a minute on the embedded model

It starts a server of its own. Before the load and after it, with nothing to do, it compares: requests known to any process, KV
pages, what the ledger holds, file descriptors and memory of each process. Exit status 1 where something is left, or was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.server import millstream
from benchmarks.soak.clients import CLIENTS, Place, Wrong

REST_TIMEOUT_S = 60.0
CLIENT_TIMEOUT_S = 60.0  # a client that has not ended by then has found a server that hangs
SAMPLE_S = 5.0
# what clients that stall, drip and crowd are met with, so that each limit is reached within a minute
LIMITS = ("--write-timeout-s", "2", "--read-timeout-s", "2", "--max-unsent-bytes", "65536", "--max-queued-requests", "64")


def server(options: argparse.Namespace) -> AbstractContextManager[tuple[str, int]]:
    """URL of a server, and the process id of its supervisor."""
    scripted = () if options.model else ("--executor", "scripted", "--scripted-step-ms", "2")
    return millstream(["--log-level", "error", *LIMITS, *scripted, *options.server_options])


def get(url: str) -> dict[str, Any]:
    """A JSON document of the server."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


def processes(pid: int) -> dict[str, int]:
    """Name and id of each process of the server."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    names = {Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0].decode(): int(child) for child in children}
    return {"millstream": pid, **names}


def usage(pid: int) -> dict[str, dict[str, int]]:
    """Open files and resident MiB of each process."""
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        name: {
            "files": len(os.listdir(f"/proc/{each}/fd")),
            "mib": int(Path(f"/proc/{each}/statm").read_text().split()[1]) * page >> 20,
        }
        for name, each in processes(pid).items()
    }


def at_rest(url: str, pid: int, files: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Wait until nothing is held and no process has more than `files` open, and say what the server is like.

    After a while, say it all the same. Connections of clients that have just left are still being closed.
    """
    deadline = time.monotonic() + REST_TIMEOUT_S
    while True:
        info, ledger = get(f"{url}/server_info"), get(f"{url}/debug/ledger")
        is_at_rest = (
            info["live_requests"] == info["undelivered"] == 0
            and not ledger["held"]
            and info["pages_free"] == info["pages_total"]
        )
        used = usage(pid)
        if files is not None:
            is_at_rest = is_at_rest and all(each["files"] <= files.get(name, 0) for name, each in used.items())
        if is_at_rest or time.monotonic() >= deadline:
            break
        time.sleep(0.2)
    facts = ("live_requests", "live_requests_by_process", "undelivered", "pages_free", "stream_mismatch_total")
    return {
        **{name: info[name] for name in facts},
        "held": ledger["held"],
        "ledger_mismatches": ledger["mismatches"],
        "processes": used,
    }


class Load:
    """`count` clients at a time until `end`, each replaced by another when it is done."""

    def __init__(self, url: str, count: int, seed: int, end: float) -> None:
        self._address = urlsplit(url)
        self._count = count
        self._seed = seed
        self._end = end
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.lost: Counter[str] = Counter()  # connections that ended early: their clients' business, and the limits'

    async def run(self) -> None:
        """The whole load."""
        await asyncio.gather(*(self._one_after_the_other(number) for number in range(self._count)))

    async def _one_after_the_other(self, number: int) -> None:
        dice = random.Random(self._seed * 1_000_003 + number)
        weights, kinds = zip(*CLIENTS, strict=True)
        assert self._address.hostname is not None
        assert self._address.port is not None
        while time.monotonic() < self._end:
            (kind,) = dice.choices(kinds, weights)
            try:
                async with asyncio.timeout(CLIENT_TIMEOUT_S):
                    await kind(Place(self._address.hostname, self._address.port, dice))
            except Wrong as error:
                self.wrong.append(f"{kind.__name__}: {error}")
            except TimeoutError:
                self.wrong.append(f"{kind.__name__}: no end after {CLIENT_TIMEOUT_S:g} s")
            except (OSError, asyncio.IncompleteReadError) as error:
                self.lost[f"{kind.__name__}: {type(error).__name__}"] += 1
            self.done[kind.__name__] += 1


async def sample(pid: int, samples: list[dict[str, Any]]) -> None:
    """Note memory and files now and then."""
    start = time.monotonic()
    while True:
        samples.append({"second": round(time.monotonic() - start), **usage(pid)})
        await asyncio.sleep(SAMPLE_S)


async def soak(url: str, pid: int, options: argparse.Namespace, seconds: float, samples: list[dict[str, Any]]) -> Load:
    """Run the load for `seconds`."""
    load = Load(url, options.clients, options.seed, time.monotonic() + seconds)
    sampling = asyncio.create_task(sample(pid, samples))
    await load.run()
    sampling.cancel()
    return load


def faults(before: dict[str, Any], after: dict[str, Any], load: Load, max_growth_mib: int) -> list[str]:
    """What is not as it must be."""
    found = load.wrong[:20]
    for name in ("live_requests", "undelivered", "stream_mismatch_total", "ledger_mismatches"):
        if after[name] != 0:
            found.append(f"{name} is {after[name]}")
    found += [f"held: {entry}" for entry in after["held"][:20]]
    if after["pages_free"] != before["pages_free"]:
        found.append(f"{after['pages_free']} pages are free, {before['pages_free']} were")
    for name, was in before["processes"].items():
        now = after["processes"].get(name)
        if now is None:
            found.append(f"{name} is gone")
            continue
        if now["files"] > was["files"]:
            found.append(f"{name} has {now['files']} files open, {was['files']} before")
        if now["mib"] > was["mib"] + max_growth_mib:
            found.append(f"{name} has {now['mib']} MiB, {was['mib']} before")
    return found


def main() -> int:
    """Warm up, load, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument(
        "--warm-up-s", type=float, default=20, help="load before the baseline is taken: caches fill and heaps grow"
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", action="store_true", help="the embedded model in place of the scripted executor")
    parser.add_argument("--max-growth-mib", type=int, default=24, help="what a process may have grown by")
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    parser.add_argument("server_options", nargs="*", help="more options of the server, after --")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    samples: list[dict[str, Any]] = []
    with server(options) as (url, pid):
        asyncio.run(soak(url, pid, options, options.warm_up_s, []))
        before = at_rest(url, pid)
        load = asyncio.run(soak(url, pid, options, options.seconds, samples))
        after = at_rest(url, pid, {name: each["files"] for name, each in before["processes"].items()})
    found = faults(before, after, load, options.max_growth_mib)
    report = {
        "seconds": options.seconds,
        "clients": options.clients,
        "seed": options.seed,
        "done": load.done,
        "lost": load.lost,
    }
    report |= {"before": before, "after": after, "faults": found, "samples": samples}
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{sum(load.done.values())} clients in {options.seconds:g} s: {dict(load.done)}")
    for name, was in before["processes"].items():
        print(f"  {name:28} {was} -> {after['processes'].get(name)}")
    print("\n".join(["FAULTS", *found]) if found else "nothing is left, nothing was wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
