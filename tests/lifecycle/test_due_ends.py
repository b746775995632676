"""A process stands still and nobody has noticed yet: deadlines and aborts hold all the same, and nothing is left of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.faults import NUM_STREAMS, assert_at_rest, assert_whole, body, expected, pids_of, running
from tests.support.server import assert_ledger_comes_to_rest, ledger, server_info
from tests.support.streams import Stream

STOPPED = ("detokenizer", "scheduler")
PATIENT = ("--wedge-timeout-s", "600")  # nobody is killed here


@contextmanager
def standing_still(url: str, name: str) -> Iterator[None]:
    """Stop a process of the server at `url` and let it go on afterwards."""
    pid = pids_of(url)[name]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.parametrize("victim", STOPPED)
def test_a_deadline_holds_while_a_process_stands_still(tmp_path: Path, victim: str) -> None:
    with running(tmp_path, *PATIENT) as (server, url):
        timed = [Stream(url, body(100_000, timeout=2.0)) for _ in range(NUM_STREAMS)]
        others = [Stream(url, body(900)) for _ in range(4)]
        for stream in (*timed, *others):
            stream.wait(lambda s: s.num_content > 2)
        with standing_still(url, victim):
            plain = httpx.post(f"{url}/generate", json={"text": "go", "timeout": 0.2}, timeout=60)
            assert (plain.status_code, plain.json()["error"]["code"]) == (504, "deadline")
            for stream in timed:
                assert stream.wait_end() == "error"
                assert stream.error is not None
                assert (stream.error["type"], stream.error["code"]) == ("timeout_error", "deadline")
                assert expected(2000).startswith(stream.text())
        assert_whole(others, 900)
        assert_at_rest(url)
        assert_ledger_comes_to_rest(url)
        assert ledger(url)["released"]["state"]["deadline"] == NUM_STREAMS + 1
        assert server_info(url)["late_rows_dropped"] > 0
        assert server.log().count(" cause=deadline ") == NUM_STREAMS + 1


@pytest.mark.parametrize("victim", STOPPED)
def test_an_abort_is_answered_while_a_process_stands_still_and_the_rid_is_free(tmp_path: Path, victim: str) -> None:
    with running(tmp_path, *PATIENT) as (server, url):
        stream = Stream(url, body(100_000, rid="r"))
        stream.wait(lambda s: s.num_content > 2)
        with standing_still(url, victim):
            assert httpx.post(f"{url}/abort_request", json={"rid": "r"}, timeout=30).json() == {"aborted": ["r"]}
            assert stream.wait_end() == "error"
            assert stream.error is not None
            assert stream.error["code"] == "aborted"
            again = Stream(url, body(50, rid="r"))
        assert again.wait_end() == "done", again.error
        assert again.text() == expected(50)
        assert_ledger_comes_to_rest(url)
        assert server.log().count("request r api=chat model=scripted cause=aborted ") == 1


@pytest.mark.long
def test_what_ended_so_is_not_replayed_to_the_next_detokenizer(tmp_path: Path) -> None:
    with running(tmp_path, "--wedge-timeout-s", "4") as (server, url):
        timed = [Stream(url, body(100_000, timeout=1.0)) for _ in range(NUM_STREAMS)]
        others = [Stream(url, body(1200)) for _ in range(4)]
        for stream in (*timed, *others):
            stream.wait(lambda s: s.num_content > 2)
        os.kill(pids_of(url)["detokenizer"], signal.SIGSTOP)
        for stream in timed:
            assert stream.wait_end() == "error"
            assert stream.error is not None
            assert stream.error["code"] == "deadline"
        assert "detokenizer: no sign of life" not in server.log()  # it was not that which ended them
        assert_whole(others, 1200)
        assert_at_rest(url)  # also nothing that the scheduler keeps for a replay
        assert_ledger_comes_to_rest(url)
