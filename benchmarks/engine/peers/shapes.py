"""What is measured of an executor, as options, and the memory of a process: the same for ours and for every peer.

Beside the peers' scripts, which run in a foreign Python and import it by its bare name: standard library only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

WARM_UP_STEPS = 8


def resident_mib() -> dict[str, int]:
    """Resident MiB now, by kind: `anon` is what only this process has, `file` is mapped and may be dropped at any time."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {kind: int(fields[f"Rss{kind.capitalize()}"].split()[0]) >> 10 for kind in ("anon", "file")}


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is measured."""
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--repeats", type=int, default=2, help="of each prefill")
    parser.add_argument("--chunk", type=int, default=512, help="positions a step, in prefill")


def peer_options(description: str | None) -> argparse.Namespace:
    """Parse the command line of a peer's script: a file, threads, and the shapes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, required=True)
    add_shapes(parser)
    return parser.parse_args()
