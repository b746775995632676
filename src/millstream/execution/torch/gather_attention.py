"""GatherAttention: a row's KV is copied together, then torch attends. The attention backend that runs everywhere.

Decodes of like length, with drafts of the same size, share one padded gather and one attention call; a prefill chunk is a call
of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from millstream.execution.interface import ForwardRow
from millstream.execution.torch.kv_store import KVStore

MAX_PADDING = 2  # a decode group's longest row is at most this many times its shortest
SHORT = 64  # tokens: below this, rows share a group whatever their ratio

_Member = tuple[int, int, ForwardRow]  # tokens seen by the row's last query, place of its first in the step, row


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend in one call, each with as many queries as the others; keys are those of `pages[i]`, cut to `length`."""

    tokens: Tensor | slice  # places of the queries in the step, row by row: [rows * queries], or a run
    pages: Tensor  # [rows, n]
    length: int  # longest, in tokens
    mask: Tensor | None  # added to scores; decode [rows, queries, 1, length], prefill [1, 1, queries, length]
    is_decode: bool  # one query a row, and one for each token of its draft
    is_causal: bool = False  # the queries' own keys are all there are


class GatherAttention:
    """An `AttentionBackend` for any device."""

    def __init__(self, *, page_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self._page_size = page_size
        self._device = device
        self._dtype = dtype

    def plan(self, rows: Sequence[ForwardRow], windows: Iterable[int | None]) -> Mapping[int | None, GatherPlan]:
        """Plan for rows that lie behind one another in the step, for each window."""
        return {
            window: GatherPlan(rows, window=window, page_size=self._page_size, device=self._device, dtype=self._dtype)
            for window in windows
        }


class GatherPlan:
    """The groups of one step for layers that see `window` tokens (None: all)."""

    def __init__(
        self, rows: Sequence[ForwardRow], *, window: int | None, page_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._window = window
        self._page_size = page_size
        self._device = device
        self._dtype = dtype
        self._decodes: list[_Group] = []
        self._prefills: list[_Group] = []
        decodes: dict[int, list[_Member]] = {}  # by queries a row
        place = 0
        for row in rows:
            count = row.reach - row.start
            if row.end - row.start == 1:
                first = self._first_page(row)
                decodes.setdefault(count, []).append((row.reach - first * page_size, place, row))
            else:
                self._prefills.append(self._prefill(row, place))
            place += count
        for count, alike in decodes.items():
            self._decodes += [self._decode(members, count) for members in _by_length(alike)]

    def attend(self, queries: Tensor, store: KVStore, layer: int, scale: float) -> Tensor:
        """Attend `[tokens, heads, head_dim]` queries over the stored keys and values; the step's own are stored already."""
        only = self._only_group()
        if only is not None:
            return _attend(only, queries, store, layer, scale)
        out = torch.empty_like(queries)
        for group in (*self._decodes, *self._prefills):
            out[group.tokens] = _attend(group, queries[group.tokens], store, layer, scale)
        return out

    def _only_group(self) -> _Group | None:
        groups = (*self._decodes, *self._prefills)
        return groups[0] if len(groups) == 1 and isinstance(groups[0].tokens, slice) else None

    def _first_page(self, row: ForwardRow) -> int:
        """The first page that the row's first query sees any of."""
        return 0 if self._window is None else max(0, row.start - self._window + 1) // self._page_size

    def _decode(self, members: list[_Member], count: int) -> _Group:
        length = members[0][0]  # the longest comes first
        num_pages = -(-length // self._page_size)
        tables: list[list[int]] = []
        for _, _, row in members:
            first = self._first_page(row)
            table = list(row.pages[first : -(-row.reach // self._page_size)])
            tables.append(table + table[-1:] * (num_pages - len(table)))  # padding repeats a page of the row's own
        places = [place + query for _, place, _ in members for query in range(count)]
        in_order = places == list(range(places[0], places[0] + len(places)))
        tokens = slice(places[0], places[0] + len(places)) if in_order else torch.tensor(places, device=self._device)
        ends = torch.tensor([seen for seen, _, _ in members], device=self._device)
        seen = ends[:, None, None] - torch.arange(count - 1, -1, -1, device=self._device)[:, None]  # [rows, queries, 1]
        keys = torch.arange(length, device=self._device)
        visible = keys < seen
        if self._window is not None:
            visible &= keys >= seen - self._window
        mask = None if bool(visible.all()) else self._additive(visible).unsqueeze(2)
        return _Group(tokens, torch.tensor(tables, device=self._device), length, mask, True)

    def _prefill(self, row: ForwardRow, place: int) -> _Group:
        first = self._first_page(row)
        offset = first * self._page_size
        count, length = row.reach - row.start, row.reach - offset
        pages = torch.tensor([list(row.pages[first : -(-row.reach // self._page_size)])], device=self._device)
        tokens = slice(place, place + count)
        if row.start == 0 and (self._window is None or length <= self._window):
            return _Group(tokens, pages, length, None, False, True)
        queries = torch.arange(row.start - offset, length, device=self._device).unsqueeze(1)
        keys = torch.arange(length, device=self._device)
        visible = keys <= queries
        if self._window is not None:
            visible &= keys > queries - self._window
        return _Group(tokens, pages, length, self._additive(visible)[None, None], False)

    def _additive(self, visible: Tensor) -> Tensor:
        return torch.zeros(visible.shape, device=self._device, dtype=self._dtype).masked_fill_(~visible, float("-inf"))


def _by_length(decodes: list[_Member]) -> list[list[_Member]]:
    """Cut rows, longest first, into groups in which padding at most doubles the work."""
    groups: list[list[_Member]] = []
    for member in sorted(decodes, key=lambda item: (-item[0], item[1])):
        if groups and groups[-1][0][0] <= max(MAX_PADDING * member[0], SHORT):
            groups[-1].append(member)
        else:
            groups.append([member])
    return groups


def _attend(group: _Group, queries: Tensor, store: KVStore, layer: int, scale: float) -> Tensor:
    keys_values = store.read(layer, group.pages)[:, : group.length]  # [rows, length, 2, kv_heads, head_dim]
    keys, values = keys_values.permute(2, 0, 3, 1, 4).unbind(0)  # [rows, kv_heads, length, head_dim]
    if group.is_decode:
        # a decode's query heads that share a key head stand as queries of one head: no key is copied
        split = queries.view(len(keys), -1, keys.shape[1], queries.shape[1] // keys.shape[1], queries.shape[2])
        rows, num_queries, kv_heads, num_sharing, _ = split.shape
        grouped = split.transpose(1, 2).flatten(2, 3)  # [rows, kv_heads, queries * sharing, head_dim]
        mask = group.mask
        if mask is not None:
            mask = mask.expand(rows, num_queries, num_sharing, group.length).flatten(1, 2).unsqueeze(1)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
        return out.view(rows, kv_heads, num_queries, num_sharing, -1).transpose(1, 2).reshape(queries.shape)
    heads_first = queries.transpose(0, 1).unsqueeze(0)
    out = F.scaled_dot_product_attention(
        heads_first, keys, values, attn_mask=group.mask, is_causal=group.is_causal, scale=scale, enable_gqa=True
    )
    return out.squeeze(0).transpose(0, 1)
