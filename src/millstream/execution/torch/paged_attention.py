"""PagedAttention: queries meet the KV pages where they lie, in one or two launches of a kernel a layer. For GPUs.

A launch is a list of blocks. A block is some neighbouring queries of one row, with all their query heads that share a key head:
these are the lanes of one program, so that each key is read once for all of them. Blocks go to programs by (block, key head,
split); a split is a share of the keys, for launches that have too few blocks to fill the GPU.

The kernel is passed in: `paged_kernel.attend` on a GPU, and an emulation in the tests, which follows the same tables block by
block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from millstream.checkpoint.config import ModelConfig
from millstream.execution.interface import ForwardRow
from millstream.execution.torch.kv_store import KVStore
from millstream.execution.torch.transfer import upload

MIN_LANES = 16  # the least that tensor cores multiply at once
CHUNK_LANES = 64
MAX_SPLITS = 32
MIN_SPLIT_TOKENS = 256  # a split of fewer keys costs more to combine than it gains


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Where the rows of a step have their keys and their queries. All int64 but `tables`, which is int32."""

    tables: Tensor  # [rows, n]: page of positions i * page_size .. (i + 1) * page_size - 1
    lengths: Tensor  # [rows]: keys, which are positions 0 .. length - 1; the queries are the last of them
    offsets: Tensor  # [rows]: a query's place in the step less its position in the row


@dataclass(frozen=True, slots=True)
class Launch:
    """Blocks of queries for one launch. Block i has `lanes` // (query heads a key head) queries, or as many as its row has."""

    rows: Tensor  # [blocks], int64: index into `PagedRows`
    starts: Tensor  # [blocks], int64: position of the block's first query
    lanes: int  # a power of two, MIN_LANES at least
    splits: int


class PagedKernel(Protocol):
    """Attends for the queries of a launch."""

    def __call__(
        self, out: Tensor, queries: Tensor, pages: Tensor, rows: PagedRows, launch: Launch, *, window: int | None, scale: float
    ) -> None:
        """Write `out` `[tokens, heads, head_dim]` at the places of the launch's queries.

        Args:
            queries: `[tokens, heads, head_dim]`; only the first stride is free.
            pages: one layer's `[pages, page_size, 2, kv_heads, head_dim]`.
            window: a query sees so many positions, its own included. None: all before it.
        """
        ...


class PagedPlan:
    """An `AttentionPlan`: the launches of one step, for layers that see `window` tokens."""

    def __init__(self, kernel: PagedKernel, rows: PagedRows, launches: Sequence[Launch], window: int | None) -> None:
        self._kernel = kernel
        self._rows = rows
        self._launches = launches
        self._window = window

    def attend(self, queries: Tensor, store: KVStore, layer: int, scale: float) -> Tensor:
        """Attend `[tokens, heads, head_dim]` queries over the stored keys and values."""
        out = torch.empty(queries.shape, device=queries.device, dtype=queries.dtype)
        for launch in self._launches:
            self._kernel(out, queries, store.layers[layer], self._rows, launch, window=self._window, scale=scale)
        return out


class PagedAttention:
    """An `AttentionBackend` over a kernel that reads pages in place.

    Args:
        programs: how many programs keep the device busy; launches with fewer are split along the keys.
        context_length: tokens that a row may have. The splits of a launch follow from its size and this, and never from the
            lengths of its rows, so that a captured launch is the same as any other.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        kernel: PagedKernel,
        page_size: int,
        programs: int,
        context_length: int,
        device: torch.device,
    ) -> None:
        self._kernel = kernel
        self._kv_heads = config.num_kv_heads
        self._heads_a_key = config.num_heads // config.num_kv_heads
        self._page_size = page_size
        self._programs = programs
        self._context_length = context_length
        self._device = device

    def plan(self, rows: Sequence[ForwardRow], windows: Iterable[int | None]) -> Mapping[int | None, PagedPlan]:
        """Plan for rows that lie behind one another in the step, for each window. Nothing but tables goes to the device."""
        counts = [row.reach - row.start for row in rows]
        places = np.cumsum([0, *counts[:-1]])
        decodes = [(index, row.start) for index, row in enumerate(rows) if counts[index] == 1]
        step = self._queries_a_block(self._chunk_lanes)
        chunks = [
            (index, start) for index, row in enumerate(rows) if counts[index] > 1 for start in range(row.start, row.reach, step)
        ]
        numbers = [
            [row.reach for row in rows],
            [int(place) - row.start for place, row in zip(places, rows, strict=True)],
            *(list(column) for blocks in (decodes, chunks) if blocks for column in zip(*blocks, strict=True)),
        ]
        lengths, offsets, *columns = torch.split(
            upload(np.concatenate([np.asarray(part, dtype=np.int64) for part in numbers]), self._device),
            [len(part) for part in numbers],
        )
        launches = [
            Launch(columns.pop(0), columns.pop(0), lanes, self._splits(len(blocks)))
            for blocks, lanes in ((decodes, self._decode_lanes), (chunks, self._chunk_lanes))
            if blocks
        ]
        return self._plans(PagedRows(self._tables(rows), lengths, offsets), launches, windows)

    def plan_decodes(
        self, rows: PagedRows, positions: Tensor, indices: Tensor, windows: Iterable[int | None]
    ) -> Mapping[int | None, PagedPlan]:
        """Plan for tensors that are filled later: row i has its one query at `positions[i]`; `indices` are 0, 1, ..."""
        return self._plans(rows, [Launch(indices, positions, self._decode_lanes, self._splits(len(indices)))], windows)

    def _plans(
        self, rows: PagedRows, launches: Sequence[Launch], windows: Iterable[int | None]
    ) -> Mapping[int | None, PagedPlan]:
        return {window: PagedPlan(self._kernel, rows, launches, window) for window in windows}

    def _tables(self, rows: Sequence[ForwardRow]) -> Tensor:
        used = [-(-row.reach // self._page_size) for row in rows]
        tables = np.zeros((len(rows), max(used)), dtype=np.int32)
        for index, (row, count) in enumerate(zip(rows, used, strict=True)):
            tables[index, :count] = row.pages[:count]
        return upload(tables, self._device)

    @property
    def _decode_lanes(self) -> int:
        return max(MIN_LANES, _power_of_two(self._heads_a_key))

    @property
    def _chunk_lanes(self) -> int:
        return max(CHUNK_LANES, _power_of_two(self._heads_a_key))

    def _queries_a_block(self, lanes: int) -> int:
        return lanes // self._heads_a_key

    def _splits(self, blocks: int) -> int:
        wanted = self._programs // (blocks * self._kv_heads)
        return max(1, min(wanted, MAX_SPLITS, self._context_length // MIN_SPLIT_TOKENS))


def _power_of_two(value: int) -> int:
    """The least power of two that is not below `value`."""
    return 1 << (value - 1).bit_length()
