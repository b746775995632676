"""The paged attention kernel in plain torch: program by program over the same grid, tables and shares of keys."""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.execution.torch.paged_attention import Launch, PagedRows

KEYS = 16  # a program's step along the keys


def attend(
    out: Tensor, queries: Tensor, pages: Tensor, rows: PagedRows, launch: Launch, *, window: int | None, scale: float
) -> None:
    """A `PagedKernel`."""
    kv_heads = pages.shape[3]
    heads_a_key = queries.shape[1] // kv_heads
    for index, start in zip(launch.rows.tolist(), launch.starts.tolist(), strict=True):
        length, offset = int(rows.lengths[index]), int(rows.offsets[index])
        lanes = torch.arange(launch.lanes // heads_a_key * heads_a_key)
        lanes = lanes[start + lanes // heads_a_key < length]
        positions = start + lanes // heads_a_key
        for kv_head in range(kv_heads):
            heads = kv_head * heads_a_key + lanes % heads_a_key
            query = queries[offset + positions, heads].float()
            last = min(length, start + launch.lanes // heads_a_key)
            shares = [
                _share(query, positions, keys, pages[:, :, :, kv_head], rows.tables[index], window, scale)
                for keys in _shares(start, last, launch.splits, window)
            ]
            scores = torch.cat([share[0] for share in shares], 1)
            values = torch.cat([share[1] for share in shares])
            out[offset + positions, heads] = (scores.softmax(1) @ values).to(out.dtype)


def _shares(start: int, last: int, splits: int, window: int | None) -> list[Tensor]:
    """The keys of each split."""
    first = 0 if window is None else max(start - window + 1, 0) // KEYS * KEYS
    steps = -((first - last) // KEYS)
    share = -(-steps // splits) * KEYS
    begins = [first + split * share for split in range(splits)]
    return [torch.arange(begin, max(begin, min(begin + share, last))) for begin in begins]


def _share(
    query: Tensor, positions: Tensor, keys: Tensor, pages: Tensor, table: Tensor, window: int | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Scores `[lanes, keys]` and values `[keys, head_dim]` of one program."""
    page_size = pages.shape[1]
    stored = pages[table[keys // page_size].long(), keys % page_size].float()
    is_seen = keys <= positions[:, None]
    if window is not None:
        is_seen &= keys > positions[:, None] - window
    return (query @ stored[:, 0].T * scale).masked_fill(~is_seen, float("-inf")), stored[:, 1]
