"""A closed-loop load client for /v1/chat/completions of any OpenAI-compatible server on this machine. Standard library only.

    python benchmarks/load.py --url http://127.0.0.1:30000 --clients 8 --requests 24

Each client is one keep-alive connection that sends its next request when the last has ended. Prints one JSON object: output
tokens a second, TTFT (request written to first content) and inter-token latency, and a hash of all texts, which at
temperature 0 tells whether two servers, or two runs, said the same. With `--pid` also the CPU time that the server's processes
used for it, in microseconds an output token: unlike times and rates, that stays true on a machine that does other work, too.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WORDS = ("river", "stone", "winter", "garden", "letter", "window", "market", "bridge", "copper", "harbour", "lantern",
         "engine", "paper", "cloud", "violin", "forest", "island", "mirror", "candle", "anchor", "orchard")  # fmt: skip
TIMEOUT_S = 300.0


@dataclass
class Reply:
    """An answer: `usage` as the server sent it, `times` of the pieces that had text."""

    sent: float
    times: list[float] = field(default_factory=list)
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft(self) -> float:
        """Seconds from the request to the first text."""
        return self.times[0] - self.sent if self.times else float("nan")

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def words(count: int, seed: int | str) -> str:
    """So many words, the same for the same seed. A word is a little more than a token."""
    dice = random.Random(seed)
    return " ".join(dice.choice(WORDS) for _ in range(count))


def prompt(index: int, count: int, seed: int) -> str:
    """Prompt number `index`: the same for the same seed, with a beginning of its own."""
    return words(count, seed * 1_000_003 + index) + f"\nWrite a long story, number {index}, with these words."


async def stream_events(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, body: dict[str, Any]
) -> AsyncIterator[str]:
    """Send one request over an open connection; yield the data of each event."""
    data = json.dumps(body).encode()
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
    if " 200 " not in head.split("\r\n", 1)[0]:
        raise RuntimeError(head.split("\r\n", 1)[0])
    buffer = b""
    while (size := int((await reader.readline()).split(b";")[0], 16)) > 0:
        buffer += (await reader.readexactly(size + 2))[:-2]
        *events, buffer = buffer.split(b"\n\n")
        for event in events:
            if event.startswith(b"data: "):
                yield event.removeprefix(b"data: ").decode()
    await reader.readline()


async def receive(
    reply: Reply,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    host: str,
    body: dict[str, Any],
    on_text: Callable[[], None] | None = None,
) -> None:
    """Send one chat request over an open connection and note in `reply` what comes. `on_text` is called at each piece.

    Raises:
        RuntimeError: the server answered with an error.
    """
    async for event in stream_events(reader, writer, host, body):
        if event == "[DONE]":
            continue
        chunk = json.loads(event)
        if "error" in chunk:
            raise RuntimeError(chunk["error"])
        reply.usage = chunk.get("usage") or reply.usage
        for choice in chunk.get("choices", ()):
            if content := choice["delta"].get("content"):
                reply.times.append(time.perf_counter())
                reply.text += content
                if on_text:
                    on_text()


async def client(options: argparse.Namespace, indices: Iterator[int], replies: dict[int, Reply]) -> None:
    """One connection, one request after the other."""
    address = urlsplit(options.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    for index in indices:
        reply = replies[index] = Reply(time.perf_counter())
        body = {
            "model": options.model,
            "messages": [{"role": "user", "content": prompt(index, options.prompt_words, options.seed)}],
            "max_tokens": options.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if options.ignore_eos else {}),
        }
        await receive(reply, reader, writer, address.netloc, body)
    writer.close()


def cpu_seconds(pid: int) -> dict[str, float]:
    """CPU time so far of process `pid` and all below it, by process name."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
        each = int(path.parent.name)
        parents[each] = int(fields[1])
        used[each] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    result: dict[str, float] = {}
    for each, seconds in used.items():
        above = each
        while above not in (0, pid):
            above = parents.get(above, 0)
        if above == pid:
            name = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")[0].decode()
            name = name if name.startswith("millstream::") else Path(f"/proc/{each}/comm").read_text().strip()
            result[name] = result.get(name, 0.0) + seconds
    return result


def percentiles(values: list[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds."""
    if len(values) < 2:
        return {"p50": round(sum(values) * 1000, 2)}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49] * 1000, 2), "p99": round(cuts[98] * 1000, 2)}


def texts_hash(replies: Iterable[Reply]) -> str:
    """A hash of all texts, in order."""
    return hashlib.sha256("\0".join(reply.text for reply in replies).encode()).hexdigest()[:16]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the load and sum it up."""
    replies: dict[int, Reply] = {}
    indices = iter(range(options.requests))
    cpu_before = cpu_seconds(options.pid) if options.pid else {}
    started = time.perf_counter()
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(client(options, indices, replies) for _ in range(options.clients)))
    seconds = time.perf_counter() - started
    cpu_after = cpu_seconds(options.pid) if options.pid else {}
    done = [replies[index] for index in sorted(replies)]
    tokens = sum(reply.usage["completion_tokens"] for reply in done)
    return {
        "clients": options.clients,
        "requests": len(done),
        "prompt_tokens_mean": round(statistics.fmean(reply.usage["prompt_tokens"] for reply in done), 1),
        "output_tokens_per_s": round(tokens / seconds, 1),
        "events_per_token": round(sum(len(reply.times) for reply in done) / tokens, 3),
        "ttft_ms": percentiles([reply.ttft for reply in done if reply.times]),
        "itl_ms": percentiles([gap for reply in done for gap in reply.gaps]),
        "cpu_us_per_token": {
            name: round((used - cpu_before.get(name, 0.0)) * 1e6 / tokens, 2) for name, used in cpu_after.items()
        },
        "text_sha256": texts_hash(done),
    }


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--model", default="", help="what to ask for; empty: whatever is served")
    parser.add_argument("--pid", type=int, help="the server's first process: also report CPU time")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--prompt-words", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ignore-eos", action="store_true")
    options = parser.parse_args()
    if urlsplit(options.url).hostname not in ("127.0.0.1", "localhost", "::1"):
        parser.error("--url must be on this machine")
    print(json.dumps(asyncio.run(measure(options)), indent=1))


if __name__ == "__main__":
    main()
