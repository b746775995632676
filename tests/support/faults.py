"""What tests that break a running server share: the server, what its streams must say, and what must be left of it."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import httpx

from millstream.text.tokenizer import load_scripted_tokenizer, scripted_text
from tests.support.server import Server, server_info
from tests.support.streams import Stream

NUM_STREAMS = 32
STEP_MS = 5
SCRIPTED = ("--executor", "scripted", "--scripted-step-ms", str(STEP_MS), "--max-running-requests", "64")
DEADLINE_S = 60.0


def body(max_tokens: int, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "go"}], "max_tokens": max_tokens, **more}


def expected(max_tokens: int) -> str:
    """What the scripted executor says in so many tokens."""
    tokenizer = load_scripted_tokenizer()
    return tokenizer.decode(list(islice(cycle(tokenizer.encode(scripted_text(), add_special_tokens=False)), max_tokens)))


def open_streams(url: str, max_tokens: int) -> list[Stream]:
    """Streams that are all under way."""
    streams = [Stream(url, body(max_tokens)) for _ in range(NUM_STREAMS)]
    for stream in streams:
        stream.wait(lambda s: s.num_content > 2)
    return streams


def assert_whole(streams: Iterable[Stream], max_tokens: int) -> None:
    """Every one ends as if nothing had happened."""
    for stream in streams:
        assert stream.wait_end() == "done", stream.error
        assert stream.text() == expected(max_tokens)


def status(url: str, path: str) -> int:
    return httpx.get(url + path, timeout=30).status_code


def wait_ready(url: str) -> None:
    """Wait until the server takes requests again; each look is a round trip."""
    deadline = time.monotonic() + DEADLINE_S
    while status(url, "/ready") != 200:
        assert time.monotonic() < deadline


def wait_replaced(url: str, name: str, pid: int) -> dict[str, int]:
    """Wait until another process is at the post of `name`; returns all pids."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        response = httpx.get(f"{url}/server_info", timeout=30)
        if response.status_code == 200:
            processes = response.json()["processes"]
            kinds = {key.partition("-")[0] for key in processes}
            found = {key: process["pid"] for key, process in processes.items()}
            if pid not in found.values() and name in kinds and all(p["state"] == "READY" for p in processes.values()):
                return found
        assert time.monotonic() < deadline, response.text


def assert_at_rest(url: str) -> None:
    """No process holds anything."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        info = server_info(url)
        pages_held = info["pages_total"] - info["pages_free"]
        if (info["live_requests"], info["undelivered"], info["waiting"], info["running"], pages_held) == (0, 0, 0, 0, 0):
            assert info["stream_mismatch_total"] == 0
            return
        assert time.monotonic() < deadline, info


@contextmanager
def running(tmp_path: Path, *arguments: str) -> Iterator[tuple[Server, str]]:
    """A server; at its end no process it ever had, and no file, may be left."""
    with Server(*SCRIPTED, *arguments, directory=tmp_path) as server:
        url = server.wait_ready()
        pids = set(pids_of(url).values())
        yield server, url
        if server.process.poll() is None:
            pids |= set(pids_of(url).values())
            assert server.stop() == 0, server.log()
        assert "Traceback" not in server.log(), server.log()
        assert not any(map(alive, pids))
    assert list(tmp_path.iterdir()) == []


def pids_of(url: str) -> dict[str, int]:
    return {name: process["pid"] for name, process in server_info(url)["processes"].items()}


def wait_gone(pid: int, *, timeout: float = 60.0) -> None:
    """Wait for the end of a process that is not our child."""
    descriptor = os.pidfd_open(pid)
    try:
        assert select.select([descriptor], [], [], timeout)[0], f"process {pid} is still there"
    finally:
        os.close(descriptor)


def kill_supervisor(server: Server, pids: Iterable[int]) -> None:
    """Kill it and wait until its processes are gone with it."""
    server.process.kill()
    for pid in pids:
        if alive(pid):
            wait_gone(pid)
    server.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
