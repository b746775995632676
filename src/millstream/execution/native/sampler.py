"""StepSampler: draws from the logits of a step where the kernels left them. The same draws as `execution.sampling` makes.

Greedy rows were decided as the step ended; rows that sample are drawn all at once on the model's threads. What only few
requests ask for, penalties, bias and bans, is done in numpy; what a grammar does not allow, the kernel leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.execution.interface import ForwardRow
from millstream.execution.sampling import (
    ALL_BANNED,
    NOT_FINITE,
    SEED_MASK,
    biased,
    is_biased,
    is_greedy,
    output_index,
)


class StepSampler:
    """A `Draw` for one step of `model`.

    Args:
        outputs: for each place at which a row may draw, which of the step's outputs has its logits.
    """

    def __init__(self, model: Any, vocab_size: int, outputs: Sequence[int]) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._outputs = outputs
        self._best: list[tuple[int, bool]] = model.best()
        self._changed: list[tuple[int, NDArray[np.float32]]] = []  # outputs, and their logits as the model made them

    def __call__(
        self, places: Sequence[int], rows: Sequence[ForwardRow], made: Sequence[Sequence[int]]
    ) -> tuple[list[int], dict[int, str]]:
        """Draw the next token of each row from the logits at its place. Changes those where a row has penalties or bias."""
        token_ids: list[int] = []
        errors: dict[int, str] = {}
        drawing: list[int] = []
        outputs = [self._outputs[place] for place in places]
        for index, (at, row) in enumerate(zip(outputs, rows, strict=True)):
            token_id, is_finite = self._best[at]
            if not is_finite:
                errors[index] = NOT_FINITE
            elif is_biased(row):
                self._adjust(at, row, made[index])
                drawing.append(index)
            elif row.allowed is not None or not is_greedy(row.sampling):
                drawing.append(index)
            token_ids.append(token_id if is_finite else 0)
        if drawing:
            drawn = self._model.draw([_draw(outputs[index], rows[index], made[index]) for index in drawing])
            for index, token_id in zip(drawing, drawn, strict=True):
                token_ids[index] = max(token_id, 0)
                if token_id < 0:
                    errors[index] = ALL_BANNED
        return token_ids, errors

    def restore(self) -> None:
        """Put back the logits that were changed and of which log probabilities are asked."""
        logits = self._model.logits()
        for at, own in self._changed:
            logits[at, : self._vocab_size] = own

    def _adjust(self, at: int, row: ForwardRow, made: Sequence[int]) -> None:
        """Apply penalties, bias and bans."""
        logits = self._model.logits()[at, : self._vocab_size]
        if row.logprobs is not None:
            self._changed.append((at, logits.copy()))
        logits[:] = biased(logits, row, made)


def _draw(
    at: int, row: ForwardRow, made: Sequence[int]
) -> tuple[int, float, int, float, float, int, int, NDArray[np.uint32] | None]:
    params = row.sampling
    temperature = 0.0 if is_greedy(params) else params.temperature
    index = output_index(row, made)
    return at, temperature, max(params.top_k, 0), params.top_p, params.min_p, row.seed & SEED_MASK, index, row.allowed
