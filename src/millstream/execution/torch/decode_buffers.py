"""DecodeBuffers: the tensors at fixed addresses that a captured step of decodes reads. Filled before each replay.

A step of n rows runs at the next larger size of a few. The rows that fill it up belong to nobody: they compute token 0 at
position 0 of a scratch page, which lies behind those the scheduler knows, and read what they have written there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from millstream.execution.interface import ForwardRow
from millstream.execution.torch.paged_attention import PagedRows

_COLUMNS = 6  # token id, position, slot, length, offset, index


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """What a step of one size reads: views of the buffers, int64 but for the tables."""

    token_ids: Tensor  # [size]
    positions: Tensor  # [size]
    slots: Tensor  # [size]
    rows: PagedRows
    indices: Tensor  # [size]: 0, 1, ...


class DecodeBuffers:
    """One set for all sizes up to `max_rows`; a smaller size uses the front of it.

    Args:
        max_pages: pages that one row may have.
        scratch_page: a page of the KV store that is never lent to a request.
    """

    def __init__(self, *, max_rows: int, max_pages: int, page_size: int, scratch_page: int, device: torch.device) -> None:
        self._page_size = page_size
        self._scratch_page = scratch_page
        self._device = device
        is_pinned = device.type != "cpu"
        # the host's side; it is written again only after the step that read it, for every step ends with a wait for its tokens
        self._host_numbers = torch.zeros(_COLUMNS * max_rows, dtype=torch.int64, pin_memory=is_pinned)
        self._host_tables = torch.full((max_rows, max_pages), scratch_page, dtype=torch.int32, pin_memory=is_pinned)
        self._numbers = self._host_numbers.to(device, copy=True)
        self._tables = self._host_tables.to(device, copy=True)
        self._tabled: list[list[int]] = [[] for _ in range(max_rows)]  # the pages that row i of the tables begins with

    def inputs(self, size: int) -> DecodeInputs:
        """The views that a step of `size` rows reads."""
        token_ids, positions, slots, lengths, offsets, indices = self._numbers[: _COLUMNS * size].view(_COLUMNS, size).unbind(0)
        return DecodeInputs(token_ids, positions, slots, PagedRows(self._tables[:size], lengths, offsets), indices)

    def fill(self, rows: Sequence[ForwardRow], size: int) -> None:
        """Put rows with one position each, and padding up to `size`, where `inputs(size)` finds them. Waits for nobody."""
        count, page_size = len(rows), self._page_size
        numbers = self._host_numbers.numpy()[: _COLUMNS * size].reshape(_COLUMNS, size)
        starts = [row.start for row in rows]
        numbers[0, :count] = [row.token_ids[start] for row, start in zip(rows, starts, strict=True)]
        numbers[1, :count] = starts
        numbers[2, :count] = [
            row.pages[start // page_size] * page_size + start % page_size for row, start in zip(rows, starts, strict=True)
        ]
        numbers[:2, count:] = 0
        numbers[2, count:] = self._scratch_page * page_size
        numbers[3] = numbers[1] + 1
        numbers[5] = np.arange(size)
        numbers[4] = numbers[5] - numbers[1]
        used = _COLUMNS * size
        self._numbers[:used].copy_(self._host_numbers[:used], non_blocking=True)
        if self._fill_tables(rows, size):
            self._tables[:size].copy_(self._host_tables[:size], non_blocking=True)

    def _fill_tables(self, rows: Sequence[ForwardRow], size: int) -> bool:
        """Bring the host's tables up to date; return whether anything changed. Most steps change nothing: a page lasts."""
        tables = self._host_tables.numpy()
        changed = False
        for index in range(size):
            pages = [self._scratch_page] if index >= len(rows) else list(rows[index].pages[: self._num_pages(rows[index])])
            known = self._tabled[index]
            if pages == known:
                continue
            kept = len(known) if pages[: len(known)] == known else 0
            tables[index, kept : len(pages)] = pages[kept:]
            self._tabled[index] = pages
            changed = True
        return changed

    def _num_pages(self, row: ForwardRow) -> int:
        return row.start // self._page_size + 1
