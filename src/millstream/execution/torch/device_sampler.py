"""DeviceSampler: draws where the logits are, and brings ids to the host instead of logits. Called by the runner.

The same tokens as `execution.sampling` draws. Greedy rows, and those with temperature, top_k, top_p and min_p are decided on
the device, all positions of their drafts at once; rows with penalties, bias or bans bring their logits to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from millstream.execution.interface import ForwardRow
from millstream.execution.sampling import NOT_FINITE, draw_key, is_adjusted, is_greedy, output_index, sample
from millstream.execution.torch.race import LOW_32, DrawParams, race
from millstream.execution.torch.transfer import fetch, upload
from millstream.messages.sampling import SamplingParams


class Judged(NamedTuple):
    """Logits, and what everybody asks of them."""

    logits: Tensor  # float32 [positions, vocab]
    best: Tensor  # int64 [positions], the first of the largest
    is_finite: Tensor  # bool [positions]


def judge(logits: Tensor) -> Judged:
    """Find the best token of each position, and whether all of its logits are finite."""
    lowest, highest = torch.aminmax(logits, dim=1)  # either is NaN where anything is
    return Judged(logits, logits.argmax(1), torch.isfinite(lowest) & torch.isfinite(highest))


class DeviceSampler:
    """A `Draw` over one step's logits.

    `draw_with_drafts` asks for a draft's later positions only where all before agreed. So each of them can be drawn, before
    anybody asks, as if they had: one wait for the device a step, however long the drafts.
    """

    def __init__(self, judged: Judged, rows: Sequence[ForwardRow]) -> None:
        """Draw at all positions of `judged`, the last 1 + len(draft) of each row, rows behind one another."""
        self._positions = [(row, row.draft[:depth]) for row in rows for depth in range(1 + len(row.draft))]
        groups: dict[bool, list[int]] = {False: [], True: []}  # by whether they are ranked
        adjusting: list[int] = []
        for place, (row, _) in enumerate(self._positions):
            if is_adjusted(row):
                adjusting.append(place)
            elif not is_greedy(row.sampling):
                groups[_is_ranked(row.sampling)].append(place)
        parts = [judged.best, judged.is_finite.long()]
        parts += [self._race(judged.logits, places, is_ranked) for is_ranked, places in groups.items() if places]
        values = fetch(torch.cat(parts)).tolist()
        count = len(self._positions)
        self._token_ids: list[int] = values[:count]
        self._errors = {place: NOT_FINITE for place in range(count) if not values[count + place]}
        for place, token_id in zip([*groups[False], *groups[True]], values[2 * count :], strict=True):
            self._token_ids[place] = token_id
        if adjusting := [place for place in adjusting if place not in self._errors]:
            self._adjust(judged.logits, adjusting)

    def __call__(
        self, places: Sequence[int], rows: Sequence[ForwardRow], made: Sequence[Sequence[int]]
    ) -> tuple[list[int], dict[int, str]]:
        """Return the ids and errors at some places, whose rows have made what their drafts said."""
        errors = {index: self._errors[place] for index, place in enumerate(places) if place in self._errors}
        return [self._token_ids[place] for place in places], errors

    def _race(self, logits: Tensor, places: list[int], is_ranked: bool) -> Tensor:
        vocab_size = logits.shape[1]
        numbers = np.empty((6, len(places), 1))  # float64 holds the halves of a key exactly
        for column, place in enumerate(places):
            row, made = self._positions[place]
            params = row.sampling
            key = draw_key(row.seed, output_index(row, made))
            most = params.top_k if params.top_k > 0 else vocab_size
            numbers[:, column, 0] = (key & LOW_32, key >> 32, params.temperature, most, params.top_p, params.min_p)
        low, high, temperature, top_k, top_p, min_p = upload(numbers, logits.device).unbind(0)
        if len(places) < len(logits):
            logits = logits.index_select(0, upload(np.asarray(places), logits.device))
        return race(logits, DrawParams(low.long(), high.long(), temperature, top_k.long(), top_p, min_p), is_ranked=is_ranked)

    def _adjust(self, logits: Tensor, places: list[int]) -> None:
        rows = [self._positions[place][0] for place in places]
        made = [self._positions[place][1] for place in places]
        chosen = fetch(logits.index_select(0, upload(np.asarray(places), logits.device)))
        drawn, errors = sample(chosen, rows, made)
        for index, place in enumerate(places):
            self._token_ids[place] = drawn[index]
            if index in errors:
                self._errors[place] = errors[index]


def _is_ranked(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0
