"""`input_embeds` of /generate: one prompt or a batch, refused by name, and never a prefix of anything else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.asgi import post, run
from tests.support.engine import CONTEXT_LENGTH, HIDDEN_SIZE, Entry

PATH = "/generate"
ROW = [0.5] * HIDDEN_SIZE


def test_one_prompt_and_a_batch_come_to_the_scheduler_as_bytes_with_namespaces_of_their_own() -> None:
    async def scenario() -> None:
        entry = Entry()
        one = await post(entry.app, PATH, {"input_embeds": [ROW, ROW], "cache_salt": "mine"})
        assert (one.body["text"], one.body["meta_info"]["prompt_tokens"]) == ("Hello", 2)
        body = {"input_embeds": [[ROW, ROW], [ROW], [ROW, ROW]], "cache_salt": ["mine", "", "x"], "sampling_params": {"n": 2}}
        batch = await post(entry.app, PATH, body)
        assert len(batch.body) == 6
        sent = entry.engine.requests
        assert [len(each.input_ids) for each in sent] == [2, 2, 2, 1, 1, 2, 2]
        assert {each.input_embeds for each in sent} == {np.array(rows, np.float32).tobytes() for rows in ([ROW], [ROW, ROW])}
        names = [each.cache_namespace for each in sent]
        assert names[0] == names[1] == names[2]
        assert len({*names}) == 3
        assert all(name.startswith("embeds:") for name in names)
        assert entry.manager.ledger.totals() == {}

    run(scenario())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_embeds": [ROW], "text": "a"}, "text"),
        ({"input_embeds": [ROW], "input_ids": [1]}, "text"),
        ({"input_embeds": []}, "input_embeds"),
        ({"input_embeds": "x"}, "input_embeds"),
        ({"input_embeds": [ROW[1:]]}, "input_embeds[0]"),
        ({"input_embeds": [[ROW], [ROW[1:]]]}, "input_embeds[1][0]"),
        ({"input_embeds": [[ROW]] * 521}, "input_embeds"),
        ({"input_embeds": [[ROW], [ROW] * CONTEXT_LENGTH]}, "input_embeds[1]"),
        ({"input_embeds": [ROW], "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ({"input_embeds": [[ROW]], "return_logprob": True, "logprob_start_len": [0]}, "logprob_start_len"),
        ({"input_embeds": [ROW], "return_prompt_token_ids": True}, "return_prompt_token_ids"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await post(entry.app, PATH, body)
        assert (response.status, response.error["param"]) == (400, param)
        assert entry.engine.requests == []

    run(scenario())


def test_a_number_that_is_none_in_json_is_refused_as_json() -> None:
    async def scenario() -> None:
        text = json.dumps({"input_embeds": [[float("nan")] * HIDDEN_SIZE]})
        response = await post(Entry().app, PATH, text.encode())
        assert (response.status, response.error["code"]) == (400, "invalid_json")

    run(scenario())
