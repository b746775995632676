"""How a step is cut into runs of the model, and what is asked of the outputs of each. Called by the executor; pure.

Rows that ask for log probabilities of their prompts need logits at many positions. What the step itself has no room for runs
before it. To cut a row changes no bit of what it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.execution.interface import ForwardRow
from millstream.execution.logprobs import prompt_positions, prompt_tokens
from millstream.messages.details import LogprobParams

Floats = NDArray[np.float32]
NO_EMBEDS: Floats = np.empty((0, 0), np.float32)


class RowPart(NamedTuple):
    """Positions `start`..`end - 1` of a row, the draft's included where they reach as far, with logits for the last of them."""

    row: ForwardRow
    start: int
    end: int
    num_outputs: int

    @property
    def token_ids(self) -> list[int]:
        """The tokens at those positions."""
        row = self.row
        known = list(row.token_ids[self.start : min(self.end, row.end)])
        return known + list(row.draft[: self.end - row.end]) if self.end > row.end else known

    @property
    def embeds(self) -> Floats:
        """What stands in for the embeddings of the first of those tokens, `[tokens, hidden]`; none where nothing does."""
        return NO_EMBEDS if self.row.input_embeds is None else self.row.input_embeds[self.start : self.end]

    @property
    def gives_hidden(self) -> bool:
        """Whether the state that the row wants is that of the last position here."""
        return self.row.gives_hidden and self.end == self.row.end


class LogprobQuery(NamedTuple):
    """What is asked of consecutive outputs of a run from `output` on: about the tokens that stand behind them."""

    output: int
    token_ids: Sequence[int]
    params: LogprobParams


def cut(rows: Sequence[ForwardRow], most: int) -> tuple[list[tuple[int, RowPart]], list[RowPart]]:
    """Cut a step so that no run has logits of more than `most` prompt positions, one a row more at the most.

    Returns:
        What runs before the step, one part a run, with the index of its row; and the step itself, at least the last position of
        each row.
    """
    before: list[tuple[int, RowPart]] = []
    step: list[RowPart] = []
    left = most
    for index, row in enumerate(rows):
        start = row.start
        num_drawn = 1 + len(row.draft) if row.sample else 0
        if not (positions := prompt_positions(row)):
            step.append(RowPart(row, start, row.reach, num_drawn))
            continue
        first, last = positions.start - 1, positions.stop - 2  # the logits that are looked at
        goes_on_at = min(max(start, last + 1 - left), row.end - 1)
        while start < goes_on_at:
            end = min(goes_on_at, max(start, first) + most)
            before.append((index, RowPart(row, start, end, max(0, end - max(start, first)))))
            start = end
        left -= max(0, last + 1 - max(start, first))
        step.append(RowPart(row, start, row.reach, max(num_drawn, row.reach - max(start, first))))
    return before, step


def prompt_query(part: RowPart, output: int) -> LogprobQuery | None:
    """What a part, whose outputs begin at `output`, is asked about its row's prompt; None: nothing."""
    params = part.row.logprobs
    if params is None:
        return None
    positions = prompt_positions(part.row)
    first = part.end - part.num_outputs + 1  # whose logits its first output has
    here = range(max(positions.start, first), min(positions.stop, part.end + 1))
    return LogprobQuery(output + here.start - first, prompt_tokens(part.row, here), params) if here else None
