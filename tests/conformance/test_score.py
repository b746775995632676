"""/v1/score against the real model: its numbers are the model's probabilities, and a query is computed once."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

QUERY = "The capital of France is the city of"
LABELS = 1024

pytestmark = pytest.mark.long


def post(url: str, path: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(url + path, json=body, timeout=60).raise_for_status().json()
    return answer


def test_the_probabilities_of_all_tokens_add_up_to_one(model_server: str) -> None:
    outside = {"query": QUERY, "items": "", "label_token_ids": [2**40]}
    refusal = httpx.post(f"{model_server}/v1/score", json=outside).json()["error"]["message"]
    vocab_size = int(refusal.removesuffix(".").rpartition(" ")[2]) + 1
    assert vocab_size > LABELS
    scores: list[float] = []
    for start in range(0, vocab_size, LABELS):
        labels = list(range(start, min(start + LABELS, vocab_size)))
        scores += post(model_server, "/v1/score", query=QUERY, items="", label_token_ids=labels)["scores"][0]
    assert math.fsum(scores) == pytest.approx(1.0, abs=1e-4)
    sampling = {"max_new_tokens": 1, "temperature": 0}
    (likeliest,) = post(model_server, "/generate", text=QUERY, sampling_params=sampling)["output_ids"]
    assert max(range(vocab_size), key=scores.__getitem__) == likeliest


def test_items_are_scored_alone_as_together_and_share_their_query(model_server: str) -> None:
    items = [" Paris.", " London.", " Rome, which is far away."]
    query = QUERY + " light, of love and of the long river, and there are those who say that it is"
    labels = [post(model_server, "/tokenize", prompt=word, add_special_tokens=False)["tokens"][0] for word in (" It", " The")]
    body = {"query": query, "label_token_ids": labels, "cache_salt": "of this test"}
    together = post(model_server, "/v1/score", items=items, **body)
    assert together["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    for item, scores in zip(items, together["scores"], strict=True):
        alone = post(model_server, "/v1/score", items=item, **body)
        assert scores == pytest.approx(alone["scores"][0], rel=1e-3)
        shares = post(model_server, "/v1/score", items=item, apply_softmax=True, **body)["scores"][0]
        assert shares == pytest.approx([each / sum(scores) for each in scores], rel=1e-3)


def test_ids_and_order_make_the_same_prompt(model_server: str) -> None:
    def ids(text: str) -> list[int]:
        tokens: list[int] = post(model_server, "/tokenize", prompt=text, add_special_tokens=False)["tokens"]
        return tokens

    first, second = ids("One two three"), ids(" four five")
    ahead = post(model_server, "/v1/score", query=first, items=[second], label_token_ids=[5])
    behind = post(model_server, "/v1/score", query=second, items=[first], label_token_ids=[5], item_first=True)
    assert ahead["scores"] == [pytest.approx(behind["scores"][0], rel=1e-3)]
