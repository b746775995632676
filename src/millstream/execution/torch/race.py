"""race: the draws of `execution.sampling` in torch, many rows at once, on whatever device the logits are.

The numbers of the race are the same bit for bit, and so are the filters but for the order in which float64 sums are made.
Called by the device sampler; never waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOW_32 = 0xFFFFFFFF
MAX_ELEMENTS = 1 << 23  # of a temporary: a few of 64 MiB each are alive at once


@dataclass(frozen=True, slots=True)
class DrawParams:
    """What rows draw with, each `[rows, 1]`. Keys are the two halves of `sampling.draw_key`."""

    key_low: Tensor  # int64
    key_high: Tensor  # int64
    temperature: Tensor  # float64
    top_k: Tensor  # int64, the vocabulary's size where there is none
    top_p: Tensor  # float64
    min_p: Tensor  # float64

    def part(self, begin: int, end: int) -> DrawParams:
        """Return the parameters of some rows."""
        return DrawParams(
            self.key_low[begin:end], self.key_high[begin:end], self.temperature[begin:end],
            self.top_k[begin:end], self.top_p[begin:end], self.min_p[begin:end],
        )  # fmt: skip


def race(logits: Tensor, params: DrawParams, *, is_ranked: bool) -> Tensor:
    """Draw a token for each row.

    Args:
        logits: float32 `[rows, vocab]`, finite.
        is_ranked: whether a row has top_k or top_p, for which the vocabulary is sorted. Without, both are ignored.

    Returns:
        int64 `[rows]`.
    """
    rows = max(1, MAX_ELEMENTS // logits.shape[1])
    return torch.cat(
        [
            _race(logits[begin : begin + rows], params.part(begin, begin + rows), is_ranked)
            for begin in range(0, len(logits), rows)
        ]
    )


def uniforms(key_low: Tensor, key_high: Tensor, token_ids: Tensor) -> Tensor:
    """Return float64 numbers in (0, 1): those of `sampling.uniforms`. Keys are `[rows, 1]`, ids `[rows or 1, n]`, all int64."""
    # 32-bit arithmetic in 64: a product that overflows keeps its low half
    values = (token_ids * 0x9E3779B1 + key_low) & LOW_32
    values ^= values >> 16
    values = values.mul_(0x7FEB352D).bitwise_and_(LOW_32)
    values ^= key_high
    values ^= values >> 15
    values = values.mul_(0x846CA68B).bitwise_and_(LOW_32)
    values ^= values >> 16
    return values.double().add_(0.5).mul_(2.0**-32)


def _race(logits: Tensor, params: DrawParams, is_ranked: bool) -> Tensor:
    ids: Tensor | None = None
    if is_ranked:
        logits, ids = logits.sort(dim=1, descending=True, stable=True)  # equal logits rank by id
    weights = logits.double()
    weights = weights.sub_(weights.amax(1, keepdim=True)).div_(params.temperature).exp_()
    if is_ranked:
        _narrow_(weights, params)
    weights.masked_fill_(weights < params.min_p, 0.0)
    everyone = torch.arange(logits.shape[1], device=logits.device).unsqueeze(0)
    arrivals = uniforms(params.key_low, params.key_high, everyone if ids is None else ids).log_()
    winners = arrivals.div_(weights).argmax(1, keepdim=True)  # negative: the largest arrives first, a weight of 0 never
    return (winners if ids is None else ids.gather(1, winners)).squeeze(1)


def _narrow_(weights: Tensor, params: DrawParams) -> None:
    """Set to 0 what top_k and then top_p leave out of ranked weights."""
    ranks = torch.arange(weights.shape[1], device=weights.device)
    weights.masked_fill_(ranks >= params.top_k, 0.0)
    above = weights.cumsum(1)
    reached = above >= params.top_p * weights.sum(1, keepdim=True)
    # the one with which top_p is reached stays in
    weights[:, 1:].masked_fill_(reached[:, :-1] & (params.top_p < 1.0), 0.0)
