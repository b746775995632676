"""A process is killed while 32 streams are open: each client gets one end, the process comes back, nothing stays."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from millstream.checkpoint.locate import configured_source
from millstream.config import ServerConfig
from millstream.text.tokenizer import load_configured_tokenizer
from tests.support.faults import (
    NUM_STREAMS,
    assert_at_rest,
    assert_whole,
    body,
    expected,
    open_streams,
    pids_of,
    running,
    status,
    wait_ready,
    wait_replaced,
)
from tests.support.server import Server
from tests.support.streams import Stream


def test_a_killed_scheduler_ends_its_requests_with_a_typed_error_and_comes_back(tmp_path: Path) -> None:
    with running(tmp_path) as (server, url):
        streams = open_streams(url, 100_000)
        pid = pids_of(url)["scheduler"]
        os.kill(pid, signal.SIGKILL)
        for stream in streams:
            assert stream.wait_end() == "error"
            assert stream.error is not None
            assert stream.error["code"] == "engine_error"
            assert stream.finish_reasons == []
        assert status(url, "/health") == 200
        wait_ready(url)
        pids = wait_replaced(url, "scheduler", pid)
        assert not Path(f"/proc/{pid}").exists()  # reaped
        assert set(pids) == {"entry-0", "scheduler", "detokenizer"}
        again = Stream(url, body(50))
        assert again.wait_end() == "done"
        assert again.text() == expected(50)
        assert_at_rest(url)
        assert "the scheduler process ended (killed by SIGKILL); it is restarted at once" in server.log()


def test_a_killed_detokenizer_costs_no_client_a_character(tmp_path: Path) -> None:
    with running(tmp_path) as (_, url):
        streams = open_streams(url, 400)
        pid = pids_of(url)["detokenizer"]
        os.kill(pid, signal.SIGKILL)
        assert_whole(streams, 400)
        assert all(stream.finish_reasons == ["length"] for stream in streams)
        wait_replaced(url, "detokenizer", pid)
        assert not Path(f"/proc/{pid}").exists()
        assert_at_rest(url)


@pytest.mark.long
def test_a_killed_detokenizer_loses_and_repeats_no_log_probability(tmp_path: Path) -> None:
    with running(tmp_path) as (_, url):
        streams = [Stream(url, body(300, logprobs=True, top_logprobs=2)) for _ in range(8)]
        for stream in streams:
            stream.wait(lambda s: s.num_content > 2)
        pid = pids_of(url)["detokenizer"]
        os.kill(pid, signal.SIGKILL)
        assert_whole(streams, 300)
        for stream in streams:
            tables = [choice.get("logprobs") for event in stream.events for choice in event["choices"]]
            entries = [entry for table in tables if table for entry in table["content"]]
            assert len(entries) == 300
            assert bytes(byte for entry in entries for byte in entry["bytes"]).decode(errors="replace") == expected(300)
            assert all(entry["logprob"] == entry["top_logprobs"][0]["logprob"] < 0 for entry in entries)
            assert {len(entry["top_logprobs"]) for entry in entries} == {2}
        wait_replaced(url, "detokenizer", pid)
        assert_at_rest(url)


@pytest.mark.long
def test_a_detokenizer_that_is_killed_again_and_again_costs_no_client_a_character(tmp_path: Path) -> None:
    with running(tmp_path) as (_, url):
        streams = open_streams(url, 1500)
        pid = pids_of(url)["detokenizer"]
        for _ in range(3):
            os.kill(pid, signal.SIGKILL)
            pid = wait_replaced(url, "detokenizer", pid)["detokenizer"]
        assert_whole(streams, 1500)
        assert_at_rest(url)


def test_requests_that_end_while_there_is_no_detokenizer_are_delivered_by_the_next(tmp_path: Path) -> None:
    with running(tmp_path) as (_, url):
        pid = pids_of(url)["detokenizer"]
        streams = [Stream(url, body(20 + number)) for number in range(NUM_STREAMS)]
        for stream in streams:
            stream.wait(lambda s: s.num_content > 0)
        os.kill(pid, signal.SIGKILL)  # a new one takes far longer to come than these take to end
        for number, stream in enumerate(streams):
            assert stream.wait_end() == "done", stream.error
            assert stream.text() == expected(20 + number)
        wait_replaced(url, "detokenizer", pid)
        assert_at_rest(url)


def test_clients_that_leave_while_there_is_no_detokenizer_leave_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as (_, url):
        streams = open_streams(url, 100_000)
        pid = pids_of(url)["detokenizer"]
        os.kill(pid, signal.SIGKILL)
        for stream in streams:
            stream.leave()
        wait_replaced(url, "detokenizer", pid)
        assert_at_rest(url)


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
def test_a_process_that_dies_too_often_ends_the_server_and_every_request(tmp_path: Path, victim: str) -> None:
    with running(tmp_path, "--max-restarts", "1") as (server, url):
        pid = pids_of(url)[victim]
        os.kill(pid, signal.SIGKILL)
        pid = wait_replaced(url, victim, pid)[victim]
        stream = Stream(url, body(100_000))
        stream.wait(lambda s: s.num_content > 0)
        os.kill(pid, signal.SIGKILL)
        assert stream.wait_end() == "error"
        assert stream.error is not None
        assert (stream.error["type"], stream.error["code"]) == ("service_unavailable_error", "engine_error")
        assert server.wait() == 1
        assert " cause=engine_error " in server.log()
        assert f"the {victim} process ended (killed by SIGKILL); it was restarted 1 times" in server.log()


@pytest.mark.parametrize("victim", ["entry-0", "scheduler", "detokenizer"])
def test_a_server_that_is_told_to_stop_while_it_restarts_a_process_stops(tmp_path: Path, victim: str) -> None:
    with running(tmp_path, "--drain-timeout-s", "0.5") as (server, url):
        stream = Stream(url, body(100_000))
        stream.wait(lambda s: s.num_content > 0)
        os.kill(pids_of(url)[victim], signal.SIGKILL)
        assert server.stop() == 0
        assert stream.wait_end() in ("cut", "error")


def test_a_detokenizer_that_dies_while_the_server_drains_is_replaced_and_costs_no_client_a_character(tmp_path: Path) -> None:
    with running(tmp_path) as (server, url):
        streams = open_streams(url, 600)
        pid = pids_of(url)["detokenizer"]
        server.process.send_signal(signal.SIGTERM)
        os.kill(pid, signal.SIGKILL)
        assert_whole(streams, 600)
        assert server.wait() == 0


def test_a_killed_detokenizer_costs_no_client_of_the_real_model_a_character(tmp_path: Path) -> None:
    """Odd bytes at a high temperature, text held back for a stop string, two choices a call: all as their token ids say."""
    with Server(directory=tmp_path) as server:
        url = server.wait_ready()
        stops = [[" zq"], ["ing ", "水"], []]
        streams = [
            Stream(url, {"prompt": "水 🦕 ñ", "max_tokens": 40, "n": 2, "seed": number, "temperature": 2.0, "stop": stop,
                         "return_token_ids": True}, "/v1/completions")
            for number, stop in enumerate(stops * 2)
        ]  # fmt: skip
        for stream in streams:
            stream.wait(lambda s: s.num_content > 3 or s.end is not None)
        os.kill(pids_of(url)["detokenizer"], signal.SIGKILL)
        tokenizer = load_configured_tokenizer(ServerConfig(), configured_source(ServerConfig()))
        for stream in streams:
            assert stream.wait_end() == "done", stream.error
            assert len(stream.finish_reasons) == 2
            for index in range(2):
                choices = [c for event in stream.events for c in event["choices"] if c["index"] == index]
                ids = [token_id for choice in choices for token_id in choice.get("token_ids") or ()]
                matched = choices[-1].get("matched_stop")
                if isinstance(matched, int):
                    ids.pop()
                text = tokenizer.decode(ids)
                if isinstance(matched, str):
                    text = text[: text.index(matched)]
                assert "".join(choice["text"] for choice in choices) == text
        wait_ready(url)
        assert_at_rest(url)
        assert server.stop() == 0
