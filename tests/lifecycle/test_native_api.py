"""The native API on a real server: batches with log probabilities, flushes from any worker, and probes that want a token."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.faults import assert_at_rest, open_streams, pids_of, running
from tests.support.native import join
from tests.support.server import assert_ledger_comes_to_rest, ledger, server_info
from tests.support.sse import parse_events

pytestmark = pytest.mark.long

BATCHES: dict[str, dict[str, Any]] = {
    "one": {"text": "one prompt of several words", "sampling_params": {"max_new_tokens": 20}},
    "choices": {"text": "several answers", "sampling_params": {"max_new_tokens": 9, "n": 3}},
    "batch": {
        "text": ["a first prompt", "a second one, which is longer than the first by far"],
        "sampling_params": [{"max_new_tokens": 7, "n": 2}, {"max_new_tokens": 12, "n": 2, "stop": "the "}],
        "logprob_start_len": [0, 2],
        "top_logprobs_num": [3, 0],
    },
    "prompt alone": {"input_ids": [[5, 6, 7, 8], [9]], "sampling_params": {"max_new_tokens": 0}, "logprob_start_len": 0},
}


def settled(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what tells one run from the other."""
    answer.pop("index", None)
    for name in ("e2e_latency", "cached_tokens", "cached_tokens_details"):
        answer["meta_info"].pop(name)
    return answer


def test_plain_and_both_kinds_of_stream_say_the_same(tmp_path: Path) -> None:
    with running(tmp_path) as (_, url):
        for name, batch in BATCHES.items():
            body = {"rid": "r", "return_logprob": True, "token_ids_logprob": [5, 6], "return_text_in_logprobs": True, **batch}
            plain = httpx.post(f"{url}/generate", json=body, timeout=60).raise_for_status().json()
            answers = [settled(each) for each in (plain if isinstance(plain, list) else [plain])]
            for each in answers:
                meta = each["meta_info"]
                assert len(meta["output_token_logprobs"]) == meta["completion_tokens"] == len(each["output_ids"]), name
                start = meta["prompt_tokens"] - len(meta["input_token_logprobs"])
                assert start == {"one": meta["prompt_tokens"], "choices": meta["prompt_tokens"]}.get(name, start), name
                assert all(text is not None for _, _, text in meta["output_token_logprobs"])
            for incremental in (False, True):
                fields = {**body, "stream": True, "incremental_streaming_output": incremental}
                content = httpx.post(f"{url}/generate", json=fields, timeout=60).raise_for_status().content
                chunks = [event.data for event in parse_events(content) if event.data != "[DONE]"]
                for index, answer in enumerate(answers):
                    own = [chunk for chunk in chunks if chunk.get("index", 0) == index]
                    assert settled(join(own) if incremental else own[-1]) == answer, (name, incremental)
        assert_at_rest(url)


def test_any_worker_empties_the_prefix_cache_once_nothing_runs(tmp_path: Path) -> None:
    with running(tmp_path, "--entry-workers", "2") as (_, url):
        prompt = {"text": "a prompt of a good many words " * 10, "sampling_params": {"max_new_tokens": 4}}
        for _ in range(4):  # a connection each: they go to any of the workers
            assert httpx.post(f"{url}/generate", json=prompt, timeout=60).json()["text"]
            before = server_info(url)
            assert before["pages_cached"] > 0
            flushed = httpx.get(f"{url}/flush_cache", params={"timeout": "30"}, timeout=60).raise_for_status().json()
            assert flushed["pages_freed"] == before["pages_cached"]
            after = server_info(url)
            assert (after["pages_cached"], after["pages_free"]) == (0, after["pages_total"])
        streams = open_streams(url, 100_000)
        refused = httpx.post(f"{url}/flush_cache", timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "requests_live")
        for stream in streams:
            stream.leave()
        assert httpx.post(f"{url}/flush_cache", params={"timeout": "30"}, timeout=60).status_code == 200
        assert_at_rest(url)
        assert ledger(url)["mismatches"] == 0


def test_a_busy_server_is_alive_and_one_whose_scheduler_stands_still_is_not(tmp_path: Path) -> None:
    with running(tmp_path, "--wedge-timeout-s", "120", "--max-queued-requests", "0") as (server, url):
        probe = f"{url}/health_generate"
        assert httpx.get(probe, timeout=60).status_code == 200
        assert "health" not in server.log().lower()
        streams = open_streams(url, 100_000)
        for _ in range(5):
            assert httpx.get(probe, timeout=60).status_code == 200
        scheduler = pids_of(url)["scheduler"]
        os.kill(scheduler, signal.SIGSTOP)
        try:
            while (answer := httpx.get(probe, params={"timeout": "2"}, timeout=60)).status_code == 200:
                pass  # tokens that were made before are still fresh
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_sign_of_life")
            assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        finally:
            os.kill(scheduler, signal.SIGCONT)
        assert httpx.get(probe, timeout=60).status_code == 200
        for stream in streams:
            stream.leave()
        assert_ledger_comes_to_rest(url)
