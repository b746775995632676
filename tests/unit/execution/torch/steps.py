"""Rows and runs for executor tests: pages in shuffled order, prompts cut into chunks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import torch

from millstream.checkpoint.locate import ModelSource
from millstream.config import ServerConfig
from millstream.execution.interface import ForwardBatch, ForwardRow
from millstream.execution.torch.build import load_torch_executor
from millstream.execution.torch.runner import TorchExecutor
from millstream.messages.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def load(source: ModelSource, **options: object) -> TorchExecutor:
    """Load with one thread: small models gain nothing from more."""
    return load_torch_executor(ServerConfig(**{"threads": 1, "max_total_tokens": 2048, **options}), source)


def shuffled_pages(executor: TorchExecutor, *lengths: int, seed: int = 0) -> list[list[int]]:
    """Deal disjoint pages, in no order, to sequences of these lengths."""
    pages = list(range(executor.capabilities.num_pages))
    random.Random(seed).shuffle(pages)
    return [[pages.pop() for _ in range(-(-length // executor.capabilities.page_size))] for length in lengths]


def row(
    token_ids: Sequence[int],
    pages: Sequence[int],
    start: int = 0,
    end: int | None = None,
    *,
    sampling: SamplingParams = GREEDY,
    seed: int = 0,
    num_prompt_tokens: int | None = None,
) -> ForwardRow:
    """Make a row that samples where it reaches the end."""
    end = len(token_ids) if end is None else end
    prompt = len(token_ids) if num_prompt_tokens is None else num_prompt_tokens
    return ForwardRow("r", token_ids, prompt, start, end, pages, sampling, seed, end == len(token_ids))


def logits_of(executor: TorchExecutor, token_ids: Sequence[int], pages: Sequence[int], ends: Iterable[int]) -> torch.Tensor:
    """Run a sequence in chunks that stop at each of `ends`; return the logits of all positions."""
    parts, start = [], 0
    for end in ends:
        parts += executor.forward_logits(ForwardBatch([row(token_ids, pages, start, end)]))
        start = end
    return torch.cat(parts)


def cuts(length: int, size: int) -> list[int]:
    """Ends of chunks of `size`."""
    return [*range(size, length, size), length]


def greedy(executor: TorchExecutor, prompt: Sequence[int], pages: Sequence[int], count: int) -> list[int]:
    """Generate `count` tokens one by one."""
    ids = list(prompt)
    start = 0
    for _ in range(count):
        output = executor.forward(ForwardBatch([row(ids, pages, start, num_prompt_tokens=len(prompt))]))
        assert not output.errors
        start = len(ids)
        ids += output.token_ids[0]
    return ids[len(prompt) :]
