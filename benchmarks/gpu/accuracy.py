"""How far logits are from a reference, and whether decode steps say what the whole sequence's logits say."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.gpu.steps import make_row, pages_for
from millstream.execution.interface import ForwardBatch
from millstream.execution.torch.runner import TorchExecutor

REPLAYED = 64  # tokens that are decoded one by one


def compare(reference: Tensor, logits: Tensor) -> dict[str, float]:
    """Compare `[tokens, vocab]` logits: how often the best token is the same, and the divergence of the distributions.

    The divergence is Kullback and Leibler's, of `logits` from `reference`, in nats.
    """
    true = torch.log_softmax(reference.double(), 1)
    ours = torch.log_softmax(logits.double(), 1)
    divergence = (true.exp() * (true - ours)).sum(1)
    best = reference.argmax(1)
    return {
        "tokens": len(reference),
        "argmax_agreement": float((best == logits.argmax(1)).double().mean()),
        "mean_kl": float(divergence.mean()),
        "max_kl": float(divergence.max()),
        "mean_best_logprob_error": float((true - ours).gather(1, best[:, None]).abs().mean()),
    }


def greedy_agreement(executor: TorchExecutor, token_ids: list[int], logits: Tensor) -> dict[str, float]:
    """How often a decode step, captured where the executor does that, draws the best of `logits` after the same tokens."""
    count = min(REPLAYED, len(token_ids) // 2)
    (pages,) = pages_for(executor, [len(token_ids)])
    begin = len(token_ids) - count
    executor.forward(ForwardBatch([make_row(token_ids[:begin], pages, 0)]))
    best = logits.argmax(1).tolist()
    agreeing = 0
    for end in range(begin + 1, len(token_ids) + 1):
        output = executor.forward(ForwardBatch([make_row(token_ids[:end], pages, end - 1)]))
        agreeing += output.token_ids == [[best[end - 1]]]
    return {"decode_agreement": agreeing / count}
