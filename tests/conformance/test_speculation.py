"""A server that guesses tokens says, over HTTP, what one that does not says; and tells how many of its guesses were right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import running_server, server_info

TEXT = "The old mill stands where the river bends, and the miller counts every sack of grain that leaves it."
CODE = "def area(width, height):\n    if width < 0:\n        raise ValueError(width)\n    return width * height\n"
PROMPTS = [
    f"{TEXT}\n{TEXT}\n{TEXT}\n",
    f"# one\n{CODE}\n# two\n{CODE}\n# three\n",
    "a b c d a b c d a b c d a b",
    "One sentence about the sea:",
]
GUESSES = ("--speculative-algorithm", "ngram", "--speculative-num-draft-tokens", "6")


@pytest.fixture(scope="module")
def guessing_server() -> Iterator[str]:
    with running_server(*GUESSES) as url:
        yield url


def generate(url: str, text: str, **sampling: Any) -> dict[str, Any]:
    body = {"text": text, "sampling_params": {"max_new_tokens": 48, "temperature": 0, **sampling}}
    return httpx.post(f"{url}/generate", json=body, timeout=120).raise_for_status().json()


@pytest.mark.long
@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param({"ignore_eos": True}, id="greedy"),
        pytest.param({"temperature": 0.7, "top_p": 0.9, "seed": 11}, id="sampled"),
        pytest.param({"frequency_penalty": 0.05, "min_new_tokens": 40}, id="penalised"),
        pytest.param({"stop": ["mill", "width *", "c d"], "min_new_tokens": 3}, id="stopped"),
    ],
)
def test_the_real_model_says_the_same_with_guesses(model_server: str, guessing_server: str, sampling: dict[str, Any]) -> None:
    for prompt in PROMPTS:
        plain, guessed = (generate(url, prompt, **sampling) for url in (model_server, guessing_server))
        assert (guessed["text"], guessed["output_ids"]) == (plain["text"], plain["output_ids"])
        assert guessed["meta_info"]["finish_reason"] == plain["meta_info"]["finish_reason"]
        assert "spec_verify_ct" not in plain["meta_info"]


@pytest.mark.long
def test_a_text_that_repeats_itself_comes_in_fewer_steps(guessing_server: str) -> None:
    before = server_info(guessing_server)
    meta = generate(guessing_server, PROMPTS[0], ignore_eos=True)["meta_info"]
    after = server_info(guessing_server)
    drafted, accepted = (after[name] - before[name] for name in ("spec_draft_tokens", "spec_accepted_draft_tokens"))
    assert 0 < accepted <= drafted
    assert meta["spec_verify_ct"] == meta["completion_tokens"] - 1 - accepted
    assert meta["spec_verify_ct"] < meta["completion_tokens"] / 2


def test_the_scripted_executor_says_the_same_in_fewer_steps(scripted_server: str) -> None:
    script = f"<script>{json.dumps({'pieces': ['so ', 'and ', 'so ', 'on, '] * 10})}</script>"
    with running_server("--executor", "scripted", "--script", "inline", *GUESSES) as url:
        plain, guessed = (generate(each, script, max_new_tokens=200) for each in (scripted_server, url))
        assert guessed["text"] == plain["text"] == "so and so on, " * 10
        assert guessed["meta_info"]["finish_reason"] == plain["meta_info"]["finish_reason"]
        assert guessed["meta_info"]["spec_verify_ct"] < plain["meta_info"]["completion_tokens"] / 2
        assert server_info(url)["spec_accepted_draft_tokens"] > 0
        assert server_info(scripted_server)["spec_draft_tokens"] == 0
