"""The embedded model's logits against transformers' (see scripts/make_logit_reference.py), however the work is cut up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from millstream.execution.interface import ForwardBatch
from millstream.execution.torch.runner import TorchExecutor
from tests.unit.execution.torch.steps import cuts, greedy, logits_of, row, shuffled_pages

REFERENCE = np.load(Path(__file__).parents[3] / "data" / "logits_embedded.npz")
PROMPTS = [REFERENCE[f"ids_{index}"].tolist() for index in range(3)]
TOLERANCE = 1e-3  # of a log-probability


def assert_agrees(logits: torch.Tensor, prompt: int) -> None:
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    tokens = torch.from_numpy(REFERENCE[f"tokens_{prompt}"]).long()
    expected = torch.from_numpy(REFERENCE[f"logprobs_{prompt}"]).double()
    torch.testing.assert_close(logprobs.gather(1, tokens), expected, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(logprobs.topk(tokens.shape[1]).values, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("prompt", range(3))
def test_a_whole_prompt_has_the_reference_log_probabilities(embedded: TorchExecutor, prompt: int) -> None:
    ids = PROMPTS[prompt]
    (pages,) = shuffled_pages(embedded, len(ids), seed=prompt)
    assert_agrees(logits_of(embedded, ids, pages, [len(ids)]), prompt)


@pytest.mark.parametrize("size", [1, 5, 16, 17], ids=lambda size: f"chunks-of-{size}")
@pytest.mark.parametrize("prompt", range(3))
def test_a_prompt_in_chunks_has_the_reference_log_probabilities(embedded: TorchExecutor, prompt: int, size: int) -> None:
    ids = PROMPTS[prompt]
    (pages,) = shuffled_pages(embedded, len(ids), seed=10 + prompt)
    assert_agrees(logits_of(embedded, ids, pages, cuts(len(ids), size)), prompt)


def test_rows_of_one_batch_do_not_disturb_one_another(embedded: TorchExecutor) -> None:
    first, second, third = PROMPTS
    pages = shuffled_pages(embedded, len(first), len(second), len(third))
    logits_of(embedded, first, pages[0], [len(first) - 1])
    logits_of(embedded, third, pages[2], [20])
    batch = ForwardBatch([row(first, pages[0], len(first) - 1), row(second, pages[1]), row(third, pages[2], 20)])
    for prompt, logits in enumerate(embedded.forward_logits(batch)):
        expected = REFERENCE[f"logprobs_{prompt}"][-len(logits) :]
        tokens = torch.from_numpy(REFERENCE[f"tokens_{prompt}"][-len(logits) :]).long()
        logprobs = torch.log_softmax(logits.double(), dim=-1).gather(1, tokens)
        np.testing.assert_allclose(logprobs.numpy(), expected, rtol=0, atol=TOLERANCE)


def test_greedy_tokens_are_the_same_after_a_retraction(embedded: TorchExecutor) -> None:
    prompt = PROMPTS[1]
    pages, others = shuffled_pages(embedded, len(prompt) + 12, len(prompt) + 12)
    made = greedy(embedded, prompt, pages, 12)
    # the request lost its pages after 6 tokens and is computed again, prompt and output together
    again = greedy(embedded, [*prompt, *made[:6]], others, 6)
    assert again == made[6:]


def test_capabilities_describe_the_embedded_model(embedded: TorchExecutor) -> None:
    capabilities = embedded.capabilities
    assert (capabilities.vocab_size, capabilities.context_length) == (49152, 8192)
    assert (capabilities.num_pages, capabilities.page_size) == (256, 16)
    assert capabilities.eos_token_ids == {2}
