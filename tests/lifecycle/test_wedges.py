"""A process that stands still is noticed and replaced; one that is only slow is not, nor for its supervisor's own pause."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.chat import script
from tests.support.faults import assert_at_rest, body, expected, open_streams, pids_of, running, status, wait_replaced
from tests.support.server import server_info
from tests.support.streams import Stream


@pytest.mark.long
@pytest.mark.parametrize("victim", ["entry-0", "scheduler", "detokenizer"])
def test_a_stopped_process_is_killed_and_replaced(tmp_path: Path, victim: str) -> None:
    with running(tmp_path, "--wedge-timeout-s", "3") as (server, url):
        streams = open_streams(url, 100_000 if victim == "scheduler" else 1200)
        pid = pids_of(url)[victim]
        os.kill(pid, signal.SIGSTOP)
        ends = {stream.wait_end() for stream in streams}
        assert ends == {{"entry-0": "cut", "scheduler": "error", "detokenizer": "done"}[victim]}
        if victim == "detokenizer":
            assert {stream.text() for stream in streams} == {expected(1200)}
        wait_replaced(url, victim.partition("-")[0], pid)
        assert not Path(f"/proc/{pid}").exists()
        assert_at_rest(url)
        assert f"{victim}: no sign of life for 3 s; it was killed; it is restarted at once" in server.log()


@pytest.mark.long
def test_a_scheduler_that_gets_nothing_done_is_killed_and_replaced(tmp_path: Path) -> None:
    with running(tmp_path, "--script", "inline", "--step-timeout-s", "3") as (server, url):
        pid = pids_of(url)["scheduler"]
        hang = {"messages": script("a", "b", fault={"kind": "hang", "after": 1, "seconds": 600})}
        stream = Stream(url, hang)
        assert stream.wait_end() == "error"
        assert stream.error is not None
        assert stream.error["code"] == "engine_error"
        assert status(url, "/health") == 200
        wait_replaced(url, "scheduler", pid)
        assert_at_rest(url)
        assert "scheduler: it has work and got nothing done for 3 s; it was killed" in server.log()


@pytest.mark.long
def test_a_step_that_takes_longer_than_the_time_without_a_sign_of_life_is_no_wedge(tmp_path: Path) -> None:
    with running(tmp_path, "--script", "inline", "--wedge-timeout-s", "3") as (_, url):
        pids = pids_of(url)
        slow = {"messages": script("a", "b", fault={"kind": "hang", "after": 1, "seconds": 5})}
        stream = Stream(url, slow)
        assert stream.wait_end() == "done"
        assert stream.text() == "ab"
        assert pids_of(url) == pids


@pytest.mark.long
def test_nobody_is_judged_for_the_time_in_which_the_supervisor_stood_still(tmp_path: Path) -> None:
    with running(tmp_path, "--wedge-timeout-s", "3") as (server, url):
        pids = pids_of(url)
        stream = Stream(url, body(1600))  # 8 seconds
        stream.wait(lambda s: s.num_content > 2)
        server.process.send_signal(signal.SIGSTOP)
        stream.wait(lambda s: s.num_content >= 800)
        server.process.send_signal(signal.SIGCONT)
        assert stream.wait_end() == "done"
        assert pids_of(url) == pids
        assert server_info(url)["live_requests"] == 0
