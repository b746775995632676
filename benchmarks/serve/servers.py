"""Servers under measurement: ours, started here; peers, started from a JSON file or already running. One at a time.

The file gives each peer a command, with `{port}` where the port belongs, and perhaps variables and the model to ask for:

    {"llama-server": {"command": ["llama-server", "-m", "FILE", "--port", "{port}"], "env": {"X": "1"}, "model": "any"}}

`refuses` names fields of a request that a peer does not take.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.server import ready_url

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Server:
    """A server that answers. `pid` is its first process, where we know it; `ready_s` how long it took to answer."""

    name: str
    url: str
    model: str
    pid: int | None = None
    ready_s: float | None = None
    refuses: tuple[str, ...] = ()

    def memory_mib(self) -> int | None:
        """Resident MiB of all its processes; what they share counts once."""
        if self.pid is None:
            return None
        total = 0
        for pid in _tree(self.pid):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
        return total >> 10


@contextmanager
def ours(executor: str, threads: int, more: list[str]) -> Iterator[Server]:
    """Our own server with an executor."""
    command = [sys.executable, "-m", "millstream", "serve", "--executor", executor, "--port", "0", "--log-level", "error"]
    started = time.perf_counter()
    with _process([*command, "--threads", str(threads), *more], {}, stdout=subprocess.PIPE) as process:
        url = ready_url(process)
        yield Server(f"millstream {executor}", url, "", process.pid, time.perf_counter() - started)


@contextmanager
def peer(name: str, spec: Mapping[str, Any]) -> Iterator[Server]:
    """A peer as its entry in the file says; ready when it has answered a request."""
    if "url" in spec:
        yield Server(name, spec["url"], spec.get("model", ""))
        return
    port = _free_port()
    started = time.perf_counter()
    command = [part.replace("{port}", str(port)) for part in spec["command"]]
    with _process(command, spec.get("env", {}), stdout=subprocess.DEVNULL) as process:
        url, model = f"http://127.0.0.1:{port}", spec.get("model", name)
        while not _answers(url, model):
            if process.poll() is not None or time.perf_counter() - started > START_TIMEOUT_S:
                raise SystemExit(f"{name} did not start")
            time.sleep(0.2)
        yield Server(name, url, model, process.pid, time.perf_counter() - started, tuple(spec.get("refuses", ())))


@contextmanager
def _process(command: list[str], env: Mapping[str, str], *, stdout: int) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, ended with all that it started."""
    variables = {**os.environ, **env}  # noqa: TID251  a peer is configured by its environment
    with subprocess.Popen(
        command, env=variables, stdout=stdout, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _answers(url: str, model: str) -> bool:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "stream": True}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return b"data:" in answer.read()
    except (OSError, urllib.error.URLError):  # not there yet, or still loading
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    children = [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]
    return [pid, *(each for child in children for each in _tree(child))]
