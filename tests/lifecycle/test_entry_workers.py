"""Several entry workers on one port: answers find their way, any worker aborts, one that dies takes no other along."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from millstream.ipc.address import entry_number
from tests.support.faults import (
    DEADLINE_S,
    NUM_STREAMS,
    assert_at_rest,
    assert_whole,
    body,
    expected,
    kill_supervisor,
    pids_of,
    running,
)
from tests.support.server import Server, assert_ledger_comes_to_rest, ledger, server_info
from tests.support.streams import Stream

pytestmark = pytest.mark.long

WORKERS = ("--entry-workers", "3")


def info_of_each(url: str) -> dict[int, dict[str, Any]]:
    """What every worker says, by its number. A connection goes to any of them, so we ask until all have answered."""
    seen: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + DEADLINE_S
    while len(seen) < 3:
        assert time.monotonic() < deadline, seen.keys()
        info = server_info(url)
        seen[info["entry_worker"]] = info
    return seen


def live_by_worker(url: str) -> dict[Any, int]:
    workers = server_info(url)["entry_workers"]
    return {entry_number(name): worker["live_requests"] for name, worker in workers.items()}


def spread_streams(url: str, max_tokens: int) -> tuple[list[Stream], dict[Any, int]]:
    """Open streams until there are many of them and two workers have some; returns them, and how many each worker has."""
    streams: list[Stream] = []
    for _ in range(10):
        streams += [Stream(url, body(max_tokens)) for _ in range(NUM_STREAMS - len(streams) or 8)]
        for stream in streams:
            stream.wait(lambda s: s.num_content > 0)
        live = live_by_worker(url)
        if sum(count > 0 for count in live.values()) > 1:
            return streams, live
    raise AssertionError(live)


def test_a_killed_worker_takes_only_its_own_requests_with_it(tmp_path: Path) -> None:
    with running(tmp_path, *WORKERS) as (server, url):
        streams, live = spread_streams(url, 700)
        victim = min((number for number in live if live[number]), key=lambda number: live[number])
        pid = pids_of(url)[f"entry-{victim}"]
        os.kill(pid, signal.SIGKILL)
        ends = [stream.wait_end() for stream in streams]
        assert (ends.count("cut"), ends.count("done")) == (live[victim], len(streams) - live[victim])
        for stream in streams:
            if stream.end == "done":
                assert stream.text() == expected(700)
        successor = info_of_each(url)
        assert set(successor) == {0, 1, 2} - {victim} | {3}  # a number is never used again
        assert not Path(f"/proc/{pid}").exists()
        assert_at_rest(url)
        assert f"entry-{victim} is gone; its {live[victim]} requests are aborted" in server.log()


def test_the_port_answers_though_its_only_worker_was_killed(tmp_path: Path) -> None:
    with running(tmp_path) as (_, url):
        stream = Stream(url, body(100_000))
        stream.wait(lambda s: s.num_content > 0)
        os.kill(pids_of(url)["entry-0"], signal.SIGKILL)
        again = Stream(url, body(20))  # waits in the socket that the supervisor keeps open
        assert stream.wait_end() == "cut"
        assert again.wait_end() == "done"
        assert again.text() == expected(20)
        assert_at_rest(url)
        assert set(pids_of(url)) == {"entry-1", "scheduler", "detokenizer"}


def test_workers_that_died_leave_no_open_files_in_the_other_processes(tmp_path: Path) -> None:
    with running(tmp_path) as (_, url):
        before = {}
        for number in range(4):
            assert Stream(url, body(20)).wait_end() == "done"
            pids = pids_of(url)
            entry = pids.pop(f"entry-{number}")
            files = {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()}
            before = before or files
            assert files == before
            os.kill(entry, signal.SIGKILL)
        assert_at_rest(url)


def test_any_worker_aborts_the_requests_of_all(tmp_path: Path) -> None:
    with running(tmp_path, *WORKERS) as (_, url):
        streams, live = spread_streams(url, 100_000)
        named = Stream(url, body(100_000, rid="named", n=2))
        named.wait(lambda s: s.num_content > 0)
        response = httpx.post(f"{url}/abort_request", json={"rid": "name"}, timeout=30)
        assert response.status_code == 404
        response = httpx.post(f"{url}/abort_request", json={"rid": "named"}, timeout=30)
        assert response.json() == {"aborted": ["named-0", "named-1"]}
        assert named.wait_end() == "error"
        assert named.error is not None
        assert named.error["code"] == "aborted"
        response = httpx.post(f"{url}/abort_request", json={"abort_all": True}, timeout=30)
        assert len(response.json()["aborted"]) == sum(live.values())
        assert {stream.wait_end() for stream in streams} == {"error"}
        assert_at_rest(url)


def test_every_worker_tells_of_the_whole_server(tmp_path: Path) -> None:
    with running(tmp_path, *WORKERS) as (_, url):
        streams, live = spread_streams(url, 100_000)
        for info in info_of_each(url).values():
            assert info["live_requests_by_process"]["entry"] == len(streams) == info["running"] + info["waiting"]
            assert {entry_number(name): worker["live_requests"] for name, worker in info["entry_workers"].items()} == live
        states = Counter(each["process"] for each in ledger(url)["held"] if each["kind"] == "state")
        assert states == {f"entry-{number}": count for number, count in live.items() if count}
        doctor = subprocess.run(
            [sys.executable, "-m", "millstream", "doctor", "--url", url], capture_output=True, text=True, check=False
        )
        assert doctor.returncode == 0, doctor.stdout  # what the engine holds for others' requests is not held for nobody
        for stream in streams:
            stream.leave()
        assert_at_rest(url)
        assert_ledger_comes_to_rest(url)


def test_a_worker_that_stands_still_is_shown_as_such_by_the_others(tmp_path: Path) -> None:
    with running(tmp_path, "--entry-workers", "2", "--wedge-timeout-s", "600") as (_, url):
        address = httpx.URL(url)
        pids = pids_of(url)
        os.kill(pids["entry-0"], signal.SIGSTOP)
        try:
            while True:  # a connection to the one that is stopped gets no answer
                with contextlib.suppress(httpx.ReadTimeout):
                    info = httpx.get(address.join("/server_info"), timeout=3).json()
                    break
            assert info["entry_workers"]["entry-0"] is None
            assert info["entry_workers"]["entry-1"]["live_requests"] == 0
        finally:
            os.kill(pids["entry-0"], signal.SIGCONT)
        assert_ledger_comes_to_rest(url)


def test_a_rid_is_one_request_among_all_workers(tmp_path: Path) -> None:
    with running(tmp_path, *WORKERS) as (_, url):
        first = Stream(url, body(100_000, rid="same"))
        first.wait(lambda s: s.num_content > 0)
        for _ in range(12):
            response = httpx.post(f"{url}/v1/chat/completions", json=body(5, rid="same"), timeout=30)
            assert (response.status_code, response.json()["error"]["code"]) == (409, "duplicate_rid")
        num_before = first.num_content
        first.wait(lambda s: s.num_content > num_before)
        first.leave()
        assert_at_rest(url)


def test_a_killed_detokenizer_costs_no_client_of_any_worker_a_character(tmp_path: Path) -> None:
    with running(tmp_path, *WORKERS) as (_, url):
        streams, _ = spread_streams(url, 600)
        os.kill(pids_of(url)["detokenizer"], signal.SIGKILL)
        assert_whole(streams, 600)
        assert_at_rest(url)
        assert [info["stream_mismatch_total"] for info in info_of_each(url).values()] == [0, 0, 0]


def test_workers_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    with Server("--executor", "scripted", *WORKERS, directory=tmp_path) as server:
        pids = pids_of(server.wait_ready())
        assert set(pids) == {"entry-0", "entry-1", "entry-2", "scheduler", "detokenizer"}
        kill_supervisor(server, pids.values())
    assert list(tmp_path.iterdir()) == []
