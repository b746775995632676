"""Log probabilities of tokens, from logits, in numpy; and which positions of a step have any. Called by executors.

Pure. The values of a position depend on its own logits and on what its request asks for, and on nothing else. Logits are
float32; the sum of their exponentials and every value that comes of it are float64, so that the sum's error stays far below
what a float32 logit can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.execution.interface import ForwardOutput, ForwardRow
from millstream.execution.sampling import NOT_FINITE, largest
from millstream.messages.details import LogprobParams, Logprobs

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.integer[Any]]


class Summary(NamedTuple):
    """What is to be known of the logits `[n, vocab]` of some positions."""

    log_sums: Doubles  # [n], of their exponentials
    top_ids: Ids  # [n, top], the most likely first, equal ones by id


def prompt_positions(row: ForwardRow) -> range:
    """The prompt positions that a step of `row` tells about: the logits of each are those of the position before it."""
    params = row.logprobs
    if params is None or params.prompt_start is None:
        return range(0)
    return range(max(row.start + 1, params.prompt_start, 1), min(row.end + 1, row.num_prompt_tokens))


def prompt_tokens(row: ForwardRow, positions: range) -> Sequence[int]:
    """The tokens that stand at `positions` of a row's prompt."""
    return row.token_ids[positions.start : positions.stop]


def summarize(logits: Floats, top: int) -> Summary:
    """Look at logits `[n, vocab]`, row by row: what comes of one does not depend on how many there are."""
    count = min(top, logits.shape[1])
    log_sums = np.empty(len(logits))
    top_ids = np.empty((len(logits), count), dtype=np.intp)
    for index, row in enumerate(logits):
        log_sums[index] = log_sum_exp(row)
        top_ids[index] = largest(row, count) if count and math.isfinite(log_sums[index]) else 0
    return Summary(log_sums, top_ids)


def log_sum_exp(logits: Floats) -> float:
    """The logarithm of the sum of exponentials of `[vocab]`; not finite where a logit is NaN or infinite to above."""
    values = logits.astype(np.float64)
    peak = values.max()
    with np.errstate(invalid="ignore"):  # infinity less itself
        values -= peak
    np.exp(values, out=values)
    return float(peak + np.log(values.sum()))


def compute_logprobs(logits: Floats, token_ids: Sequence[int], params: LogprobParams) -> Logprobs:
    """The log probabilities that a request asks for at positions with logits `[n, vocab]`, where `token_ids` stand.

    They are finite where the logits are: an infinite one gives an infinite value or NaN, which `is_finite` finds.
    """
    log_sums, top_ids = summarize(logits, params.top)
    places = np.arange(len(logits))[:, None]

    def values(ids: Ids) -> list[list[float]]:
        with np.errstate(invalid="ignore"):
            found: list[list[float]] = (logits[places, ids] - log_sums[:, None]).tolist()
        return found

    chosen = np.asarray(token_ids, dtype=np.intp)[:, None]
    asked = np.asarray(params.token_ids, dtype=np.intp)[None, :]
    return Logprobs([value for (value,) in values(chosen)], top_ids.tolist(), values(top_ids), values(asked))


def is_finite(table: Logprobs) -> bool:
    """Whether every value is a number."""
    return all(map(math.isfinite, chain(table.chosen, *table.top, *table.asked)))


def add_prompt_logprobs(output: ForwardOutput, index: int, table: Logprobs) -> bool:
    """Put the values of the prompt of row `index` into `output`; False, and the row fails, where it is not finite."""
    if is_finite(table):
        output.prompt_logprobs[index] = table
        return True
    output.errors[index] = NOT_FINITE
    return False
