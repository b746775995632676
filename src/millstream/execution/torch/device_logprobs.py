"""Log probabilities where the logits are: only what is asked for comes to the host. Called by the runner.

The values of `execution.logprobs`, as far as sums of float64 made in another order are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from millstream.execution.torch.race import LOW_32
from millstream.execution.torch.transfer import fetch, upload
from millstream.messages.details import LogprobParams, Logprobs, no_logprobs

MAX_ELEMENTS = 1 << 21  # of logits looked at together: a few temporaries of twice their size are alive at once


class LogprobQuery(NamedTuple):
    """What is asked of the logits at consecutive places from `place` on: about the tokens that stand there."""

    place: int
    token_ids: Sequence[int]
    params: LogprobParams


def compute_logprobs(logits: Tensor, queries: Sequence[LogprobQuery]) -> list[Logprobs]:
    """Answer all queries about float32 logits `[positions, vocab]`, which are not changed, with one wait for the device."""
    flat = [(q.place + i, token_id, q.params) for q in queries for i, token_id in enumerate(q.token_ids)]
    if not flat:
        return [no_logprobs() for _ in queries]
    top = min(max(q.params.top for q in queries), logits.shape[1])
    width = 1 + max(len(q.params.token_ids) for q in queries)
    numbers = np.zeros((len(flat), 1 + width), dtype=np.int64)  # place, the token itself, those asked for
    for index, (place, token_id, params) in enumerate(flat):
        numbers[index, : 2 + len(params.token_ids)] = (place, token_id, *params.token_ids)
    asked = upload(numbers, logits.device)
    step = max(1, MAX_ELEMENTS // logits.shape[1])
    values = fetch(torch.cat([_look(logits, part[:, 0], part[:, 1:], top) for part in torch.split(asked, step)]))
    answers = []
    at = 0
    for query in queries:
        count, num_asked = len(query.token_ids), len(query.params.token_ids)
        most = min(query.params.top, top)
        part = values[at : at + count]
        at += count
        answers.append(
            Logprobs(
                part[:, 0].tolist(),
                part[:, width : width + most].astype(np.int64).tolist(),
                part[:, width + top : width + top + most].tolist(),
                part[:, 1 : 1 + num_asked].tolist(),
            )
        )
    return answers


def _look(logits: Tensor, places: Tensor, ids: Tensor, top: int) -> Tensor:
    """Return float64 `[n, ids + 2 top]`: the values of `ids`, the most likely ids (doubles hold them exactly), and theirs."""
    logits = logits.index_select(0, places)
    best = _largest(logits, top)
    found = torch.cat([ids, best], dim=1)
    values = logits.gather(1, found).double() - logits.double().logsumexp(dim=1, keepdim=True)
    split = ids.shape[1]
    return torch.cat([values[:, :split], best.double(), values[:, split:]], dim=1)


def _largest(logits: Tensor, count: int) -> Tensor:
    """The ids `[n, count]` of the largest, equal ones by id, which topk alone does not promise.

    The bits of a float, with those below the sign turned where it is set, order as the floats do; an id below them makes each
    one of a kind.
    """
    bits = (logits + 0.0).view(torch.int32).long()  # -0.0 becomes 0.0, which it equals
    bits ^= (bits >> 63) & 0x7FFFFFFF
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = (bits << 32) | (LOW_32 - ids)
    return LOW_32 - (keys.topk(count, dim=1).values & LOW_32)
