"""The engine on the embedded model: what it makes is what the server makes, token for token and number for number."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from millstream import Engine

PROMPTS = ["The capital of France is", "写一句关于春天的话。", "Repeat: 😀👩‍👩‍👧 naïve café"]
CALLS: list[dict[str, Any]] = [
    {
        "prompt": PROMPTS,
        "sampling_params": {"temperature": 0, "max_new_tokens": 24},
        "return_logprob": True,
        "top_logprobs_num": 3,
    },
    {"prompt": PROMPTS, "sampling_params": {"seed": 7, "temperature": 1.2, "top_p": 0.9, "max_new_tokens": 24, "n": 2}},
    {"prompt": PROMPTS[0], "sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0},
]
CHANCE = ("id", "e2e_latency", "cached_tokens", "cached_tokens_details")


def made(answer: Any) -> list[dict[str, Any]]:
    """The answers, without what depends on chance or on what was asked before."""
    answers = answer if isinstance(answer, list) else [answer]
    for each in answers:
        for name in CHANCE:
            each["meta_info"].pop(name)
    return answers


@pytest.mark.long
def test_the_engine_makes_of_the_embedded_model_what_the_server_makes(model_server: str) -> None:
    with Engine(strict_ledger=True) as engine:

        async def at_once() -> list[Any]:
            return await asyncio.gather(*(engine.async_generate(**call) for call in CALLS))

        answers = asyncio.run(at_once())
    for call, answer in zip(CALLS, answers, strict=True):
        body = {"text" if name == "prompt" else name: value for name, value in call.items()}
        served = httpx.post(f"{model_server}/generate", json=body, timeout=120)
        assert served.status_code == 200, served.text
        assert made(answer) == made(served.json())
