"""How the rows of a step attend: the interface of the two attention backends. Called by the runner and the decoder.

`gather_attention` copies the KV of a row together and calls torch; it runs everywhere. `paged_attention` reads the pages where
they are, with a kernel of ours for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from millstream.execution.interface import ForwardRow
from millstream.execution.torch.kv_store import KVStore


class AttentionPlan(Protocol):
    """How one step's rows attend, in layers that all see as far."""

    def attend(self, queries: Tensor, store: KVStore, layer: int, scale: float) -> Tensor:
        """Attend `[tokens, heads, head_dim]` queries over the stored keys and values; the step's own are stored already."""
        ...


class AttentionBackend(Protocol):
    """Plans once a step, for every layer."""

    def plan(self, rows: Sequence[ForwardRow], windows: Iterable[int | None]) -> Mapping[int | None, AttentionPlan]:
        """Plan for rows that lie behind one another in the step, and for each window in tokens (None: all before)."""
        ...
