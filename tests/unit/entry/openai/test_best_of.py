"""best_of: more answers are made than given, and the best by mean log probability a token are."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.messages import Abort, Length, Logprobs, RowDetails, Stop, TokenizedGenerateReqInput
from tests.support.asgi import Call, post, run
from tests.support.engine import Entry, hold

PATH = "/v1/completions"


def told(*values: float) -> RowDetails:
    return RowDetails(Logprobs(list(values), [[]] * len(values), [[]] * len(values), [[]] * len(values)))


def entry_that_says(values: dict[int, tuple[float, ...]]) -> Entry:
    """Choice number i of each prompt says its number, with the log probabilities `values[i]`."""
    entry = Entry()

    def answer(sent: Any) -> None:
        number = int(sent.rid.rpartition("-")[2]) % len(values)
        ids = list(range(40, 40 + len(values[number])))
        entry.engine.accept(sent.rid)
        entry.engine.row(sent.rid, str(number), ids=ids, finish=Length(len(ids)), details=told(*values[number]))

    entry.engine.answer = answer
    return entry


def test_the_best_by_mean_are_given_the_best_first_and_all_tokens_are_counted() -> None:
    async def scenario() -> None:
        entry = entry_that_says({0: (-1.0, -1.0), 1: (-0.5, -2.0, -0.1), 2: (-0.2,), 3: (-1.0,)})
        body = {"prompt": ["x", "y"], "n": 3, "best_of": 4, "rid": "r", "seed": 5, "return_token_ids": True}
        response = await post(entry.app, PATH, body)
        choices = response.body["choices"]
        assert [choice["text"] for choice in choices] == ["2", "1", "0"] * 2
        assert [choice["index"] for choice in choices] == list(range(6))
        assert [choice["token_ids"] for choice in choices[:2]] == [[40], [40, 41, 42]]
        assert all(choice["logprobs"] is None for choice in choices)
        assert response.body["usage"]["completion_tokens"] == 2 * (2 + 3 + 1 + 1)
        assert response.body["usage"]["prompt_tokens"] == sum(map(len, response.body["prompt_token_ids"]))
        assert [sent.sampling.seed for sent in entry.engine.requests] == [5, 6, 7, 8] * 2
        assert [sent.rid for sent in entry.engine.requests] == [f"r-{number}" for number in range(8)]

    run(scenario())


def test_best_of_n_keeps_the_order_and_needs_no_log_probabilities() -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await post(entry.app, PATH, {"prompt": "x", "n": 2, "best_of": 2, "stream": True})
        assert response.status == 200
        assert [sent.logprobs for sent in entry.engine.requests] == [None, None]

    run(scenario())


def test_the_best_keep_their_log_probabilities() -> None:
    async def scenario() -> None:
        entry = entry_that_says({0: (-3.0,), 1: (-0.5,)})
        response = await post(entry.app, PATH, {"prompt": "x", "best_of": 2, "logprobs": 0})
        (choice,) = response.body["choices"]
        assert (choice["text"], choice["logprobs"]["token_logprobs"]) == ("1", [-0.5])

    run(scenario())


def test_a_choice_that_was_aborted_is_the_last_to_be_given() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, PATH, {"prompt": "x", "best_of": 2, "rid": "r"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 2)
        entry.engine.accept("r-0", "r-1")
        entry.engine.row("r-0", "", ids=[], finish=Abort("aborted", "by its client"))
        entry.engine.row("r-1", "ok", ids=[40], finish=Stop(), details=told(-9.0))
        response = await call.response()
        assert [choice["text"] for choice in response.body["choices"]] == ["ok"]

    run(scenario())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": 10**30}, "best_of"),
        ({"best_of": 2.0}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 4}, "best_of"),
        ({"best_of": 2, "prompt": ["x", "y"]}, "best_of"),
    ],
)
def test_more_than_may_be_made_fewer_than_are_given_and_streams_of_more_are_refused(body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_queued_requests=1), max_running_requests=2)
        response = await post(entry.app, PATH, {"prompt": "x", **body})
        assert (response.status, response.error["param"]) == (400, param)
        assert (entry.engine.sent, entry.manager.live_requests) == ([], 0)
        assert (await post(entry.app, PATH, {"prompt": "x"})).status == 200

    run(scenario())
