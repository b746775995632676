"""Progress on a real server: a client in the queue, and one whose long prompt is being read, see how far they are."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.lifecycle.test_abort import ENDLESS, abort, wait_for
from tests.support.chat import ask
from tests.support.server import running_server

ASKED = {"stream": True, "stream_options": {"include_progress": True}}


def test_a_queued_request_hears_its_place() -> None:
    options = ("--max-running-requests", "1", "--sse-keep-alive-s", "0.05")
    with running_server("--executor", "scripted", "--script", "inline", *options) as url, ThreadPoolExecutor() as pool:
        holder = pool.submit(ask, url, {**ENDLESS, "rid": "holder"})
        wait_for(url, running=1)
        with httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "hi", "max_tokens": 2, **ASKED}) as answer:
            lines = answer.iter_lines()
            assert next(lines) == ": queued 1"
            while next(lines) != ": keep-alive":  # alive from its admission on
                pass
            abort(url, rid="holder")
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert holder.result().status == 499


def test_a_stream_goes_on_while_a_long_prompt_is_read_beside_it(model_server: str) -> None:
    order: list[str] = []  # what came when, of both
    url = f"{model_server}/v1/completions"

    def decode() -> None:
        body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True, "rid": "beside"}
        with httpx.stream("POST", url, json=body, timeout=60) as answer:
            order.extend("token" for line in answer.iter_lines() if line.startswith("data: "))

    with ThreadPoolExecutor() as pool:
        decoding = pool.submit(decode)
        while not order:
            pass
        body = {"prompt": " ".join(f"item{i}" for i in range(300)), "max_tokens": 1, **ASKED}
        with httpx.stream("POST", url, json=body, timeout=60) as answer:
            order.extend(line for line in answer.iter_lines() if line)
        abort(model_server, rid="beside")
        decoding.result()
    prefill = [index for index, each in enumerate(order) if each.startswith(": prefill")]
    first_token = next(index for index, each in enumerate(order) if each.startswith("data: "))
    assert order[prefill[0] : first_token].count("token") >= 2


def test_a_long_prompt_of_the_real_model_is_counted(model_server: str) -> None:
    words = " ".join(f"item{i}" for i in range(200))
    body = {"messages": [{"role": "user", "content": words}], "max_tokens": 2, **ASKED}
    answer = httpx.post(f"{model_server}/v1/chat/completions", json=body, timeout=60)
    counts = [tuple(map(int, each)) for each in re.findall(r": prefill (\d+)/(\d+)\n\n", answer.text)]
    assert counts
    assert counts == sorted(counts)
    assert all(0 < done < total for done, total in counts)
    assert answer.text.endswith("data: [DONE]\n\n")
