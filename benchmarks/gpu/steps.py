"""Steps of an executor without a server: whole sequences, timed decodes, timed prefills.

A step ends with its tokens on the host, so the clock on the wall is the right one, and Python's share is in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from torch import Tensor

from millstream.execution.interface import ForwardBatch, ForwardRow
from millstream.execution.torch.runner import TorchExecutor
from millstream.messages.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
WARM_UP = 3  # steps that are not timed
PREFILLS = 7  # that are timed
TOKEN = 11  # stands for any


def make_row(token_ids: list[int], pages: Sequence[int], start: int) -> ForwardRow:
    """A greedy row that computes from `start` on, and draws."""
    return ForwardRow("", token_ids, len(token_ids), start, len(token_ids), pages, GREEDY, 0, True)


def pages_for(executor: TorchExecutor, lengths: Sequence[int]) -> list[list[int]]:
    """Disjoint pages for sequences of these lengths."""
    pages = iter(range(executor.capabilities.num_pages))
    return [[next(pages) for _ in range(-(-length // executor.capabilities.page_size))] for length in lengths]


def sequence_logits(executor: TorchExecutor, token_ids: list[int]) -> Tensor:
    """Logits `[tokens, vocab]` after each token, on the CPU."""
    (pages,) = pages_for(executor, [len(token_ids)])
    (logits,) = executor.forward_logits(ForwardBatch([make_row(token_ids, pages, 0)]))
    return logits


def decode_ms(executor: TorchExecutor, *, rows: int, context: int, steps: int) -> float:
    """Median milliseconds of a decode step of `rows` rows that begin with `context` tokens each."""
    tables = pages_for(executor, [context + WARM_UP + steps + 1] * rows)
    sequences = [[TOKEN] * context for _ in range(rows)]
    for sequence, pages in zip(sequences, tables, strict=True):
        executor.forward(ForwardBatch([make_row(sequence, pages, 0)]))
    seconds: list[float] = []
    for _ in range(WARM_UP + steps):
        for sequence in sequences:
            sequence.append(TOKEN)
        batch = ForwardBatch(
            [make_row(sequence, pages, len(sequence) - 1) for sequence, pages in zip(sequences, tables, strict=True)]
        )
        began = time.perf_counter()
        executor.forward(batch)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM_UP:]) * 1000


def prefill_ms(executor: TorchExecutor, *, tokens: int) -> float:
    """Median milliseconds of a prefill of `tokens` tokens in one step."""
    (pages,) = pages_for(executor, [tokens])
    seconds: list[float] = []
    for _ in range(WARM_UP + PREFILLS):
        began = time.perf_counter()
        executor.forward(ForwardBatch([make_row([TOKEN] * tokens, pages, 0)]))
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM_UP:]) * 1000
