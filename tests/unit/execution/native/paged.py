"""Paged keys and values for kernel tests, and attention over them in float64 numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
PARTITION = 256  # tokens


@dataclass
class PagedRequest:
    """The keys and values `[tokens, kv_heads, head_dim]` of one request, stored over shuffled pages amid NaN."""

    native: ModuleType
    keys: Floats
    values: Floats
    kv_type: str = "fp16"
    page_size: int = 16
    isa: str = "avx2"
    seed: int = 0
    stored: Any = field(init=False)
    pages: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        length, kv_heads, head_dim = self.keys.shape
        num_pages = -(-length // self.page_size)
        self.stored = self.native.KVPages(self.kv_type, num_pages + 2, self.page_size, kv_heads, head_dim)
        self.stored.memory[:] = 0xFF  # NaN as halves and as floats: what another request left, at its worst
        self.pages = np.random.default_rng(self.seed).permutation(num_pages + 2)[:num_pages].astype(np.int32)
        for position in range(length):
            for head in range(kv_heads):
                self.store(position, head, self.keys[position, head], self.values[position, head])

    def store(self, position: int, head: int, key: Floats, value: Floats) -> None:
        self.stored.store(self.isa, self.pages, position, head, key, value)

    def as_read(self) -> tuple[Doubles, Doubles]:
        """What the kernels read back of keys and values."""
        return read_back(self.keys, self.kv_type), read_back(self.values, self.kv_type)


@dataclass(frozen=True)
class Look:
    """How queries look at the context."""

    scale: float = 0.125
    window: int = 0
    softcap: float = 0.0


def read_back(stored: Floats, kv_type: str) -> Doubles:
    """Return values as a KV type keeps them; int8 with a scale for each token and head."""
    if kv_type == "fp16":
        return stored.astype(np.float16).astype(np.float64)
    if kv_type == "fp32":
        return stored.astype(np.float64)
    scale = (np.abs(stored).max(axis=-1, keepdims=True) / np.float32(127)).astype(np.float32)
    divisor = np.where(scale == 0, np.float32(1), scale)
    return np.rint(stored / divisor).astype(np.float64) * scale


def attend(
    request: PagedRequest, q: Floats, position: int, head: int, look: Look, *, isa: str = "", by_part: bool = False
) -> Floats:
    """Attend with `q` `[tokens, group, head_dim]` from `position` on; return `[tokens, group, head_dim]`."""
    native, isa = request.native, isa or request.isa
    parts = -(-(position + len(q)) // PARTITION)

    def looked_at(begin: int, end: int) -> tuple[Floats, Floats, Floats]:
        args = (position, head, look.window, look.scale, look.softcap, begin, end)
        found: tuple[Floats, Floats, Floats] = native.attend(isa, request.stored, q, request.pages, *args)
        return found

    if by_part:
        pieces = [looked_at(part, part + 1) for part in range(parts)]
        largest, total, out = (np.concatenate([piece[i] for piece in pieces], axis=2) for i in range(3))
    else:
        largest, total, out = looked_at(0, parts)
    merged = [[native.merge(isa, largest[t, g], total[t, g], out[t, g]) for g in range(q.shape[1])] for t in range(len(q))]
    return np.array(merged, dtype=np.float32)


def reference(request: PagedRequest, q: Floats, position: int, head: int, look: Look) -> Doubles:
    """The same in float64."""
    keys, values = request.as_read()
    out = np.empty(q.shape, dtype=np.float64)
    for token in range(len(q)):
        last = position + token
        first = max(0, last - look.window + 1) if look.window else 0
        scores = q[token].astype(np.float64) @ keys[first : last + 1, head].T * look.scale
        if look.softcap:
            scores = look.softcap * np.tanh(scores / look.softcap)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[token] = weights @ values[first : last + 1, head] / weights.sum(axis=-1, keepdims=True)
    return out
