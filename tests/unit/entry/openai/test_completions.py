"""POST /v1/completions: the forms of a prompt, defaults, and the shape of what comes out."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import Completion

from millstream.config import ServerConfig
from millstream.messages import Length
from tests.support.asgi import post, run
from tests.support.engine import CONTEXT_LENGTH, TOKENIZER, Entry

PATH = "/v1/completions"


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a", 1), (["a", "b"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2)],
    ids=["text", "texts", "ids", "lists-of-ids"],
)
@pytest.mark.parametrize("n", [1, 2])
def test_every_form_of_prompt_makes_its_choices(prompt: Any, count: int, n: int) -> None:
    async def scenario() -> None:
        entry = Entry()
        body = {"prompt": prompt, "n": n, "return_token_ids": True}
        response = await post(entry.app, PATH, body)
        Completion.model_validate(response.body, strict=True)
        assert response.body["id"].startswith("cmpl-")
        assert response.body["object"] == "text_completion"
        assert [c["index"] for c in response.body["choices"]] == list(range(count * n))
        assert {c["text"] for c in response.body["choices"]} == {"Hello"}
        several = isinstance(prompt, list) and not isinstance(prompt[0], int)
        lists = prompt if several else [prompt]
        expected = [TOKENIZER.encode(p) if isinstance(p, str) else p for p in lists]
        assert [sent.input_ids for sent in entry.engine.requests] == [ids for ids in expected for _ in range(n)]
        assert response.body["prompt_token_ids"] == (expected if several else expected[0])
        assert response.body["usage"]["prompt_tokens"] == sum(map(len, expected))
        assert response.body["usage"]["completion_tokens"] == 2 * count * n
        assert response.body["usage"]["prompt_tokens_details"]["cached_tokens"] == count

        stream = await post(entry.app, PATH, {**body, "stream": True, "stream_options": {"include_usage": True}})
        for chunk in stream.chunks:
            assert chunk["object"] == "text_completion"
        for index in range(count * n):
            mine = [c for chunk in stream.chunks for c in chunk["choices"] if c["index"] == index]
            assert "".join(c["text"] for c in mine) == "Hello"
            assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert stream.chunks[0]["prompt_token_ids"] == response.body["prompt_token_ids"]
        assert stream.chunks[-1]["usage"] == response.body["usage"]

    run(scenario())


@pytest.mark.parametrize(
    "prompt",
    [[], [[]], ["a", 1], [1, "a"], [1, [2]], [[1], ["a"]], [1.5], [True], {"a": 1}, 7, "", ["a", ""], ["x"] * 129, [10**30]],
)
def test_empty_mixed_and_too_many_prompts_are_refused(prompt: Any) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await post(entry.app, PATH, {"prompt": prompt})
        assert response.status == 400
        assert (response.error["param"] or "").startswith("prompt")
        assert (entry.engine.sent, entry.manager.live_requests) == ([], 0)

    run(scenario())


def test_one_bad_prompt_of_a_list_leaves_nothing_of_the_others() -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await post(entry.app, PATH, {"prompt": [[5], [6] * (CONTEXT_LENGTH + 1)], "max_tokens": 1})
        assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
        assert str(CONTEXT_LENGTH + 1) in response.error["message"]
        assert (entry.engine.sent, entry.manager.live_requests) == ([], 0)

    run(scenario())


@pytest.mark.parametrize(
    ("body", "limit"),
    [({}, 16), ({"max_tokens": None}, 16), ({"max_tokens": 5}, 5), ({"max_tokens": 5, "max_completion_tokens": 50}, 50)],
)
def test_the_token_limit_is_sixteen_unless_given(body: dict[str, Any], limit: int) -> None:
    async def scenario() -> None:
        entry = Entry()
        assert (await post(entry.app, PATH, {"prompt": "a", **body})).status == 200
        assert entry.engine.requests[0].max_new_tokens == limit

    run(scenario())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "x"), ("best_of", 1_000_000),
        ("max_tokens", -1), ("n", 129), ("messages", []), ("prompt_embeds", "AAAA"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name(field: str, value: Any) -> None:
    async def scenario() -> None:
        response = await post(Entry().app, PATH, {"prompt": "a", field: value})
        assert response.status == 400
        assert field in response.error["param"]

    run(scenario())


def test_best_of_that_asks_for_nothing_and_neutral_values_pass() -> None:
    async def scenario() -> None:
        body = {"prompt": "a", "best_of": 2, "n": 2, "echo": False, "suffix": "", "logprobs": None}
        assert (await post(Entry().app, PATH, body)).status == 200

    run(scenario())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "n": 4}, "n"), ({"prompt": ["x"] * 2, "n": 2}, "n"),
        ({"prompt": ["x"] * 4}, "prompt"), ({"prompt": "x", "n": 3}, None),
    ],
)  # fmt: skip
def test_more_choices_than_the_server_has_places_are_the_clients_error(body: dict[str, Any], param: str | None) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_queued_requests=1), max_running_requests=2)
        response = await post(entry.app, PATH, body)
        assert response.status == (200 if param is None else 400)
        if param is not None:
            assert response.error["param"] == param
            assert "at most 3" in response.error["message"]

    run(scenario())


def test_a_limit_below_none_is_refused_by_the_name_it_was_sent_with() -> None:
    async def scenario() -> None:
        for name, value in (("max_tokens", -1), ("max_completion_tokens", -1)):
            response = await post(Entry().app, PATH, {"prompt": "x", name: value})
            assert (response.status, response.error["param"]) == (400, name)
            assert name in response.error["message"]

    run(scenario())


def test_max_tokens_0_computes_the_prompt_alone_which_may_fill_the_context() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.row(sent.rid, "", ids=[], finish=Length(0))
        response = await post(entry.app, PATH, {"prompt": [5] * CONTEXT_LENGTH, "max_tokens": 0})
        (choice,) = response.body["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "length")
        assert response.body["usage"]["prompt_tokens"] == response.body["usage"]["total_tokens"] == CONTEXT_LENGTH
        assert entry.engine.requests[0].max_new_tokens == 0
        refused = await post(entry.app, PATH, {"prompt": [5] * (CONTEXT_LENGTH + 1), "max_tokens": 0})
        assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
        assert refused.error["message"].endswith(f"the prompt has {CONTEXT_LENGTH + 1} tokens.")
        refused = await post(entry.app, PATH, {"prompt": [5], "max_tokens": 0, "min_tokens": 1})
        assert (refused.status, refused.error["param"]) == (400, "min_tokens")

    run(scenario())
