"""KVStore: the KV tensors, one a layer, in pages. Written and read by attention; the scheduler decides whose a page is."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from millstream.checkpoint.config import ModelConfig


class KVStore:
    """Keys and values of `num_pages * page_size` tokens, for every layer.

    A token's keys and values lie beside each other: a step writes them with one copy and reads a page with one gather.
    """

    def __init__(
        self, config: ModelConfig, *, num_pages: int, page_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        shape = (num_pages, page_size, 2, config.num_kv_heads, config.head_dim)
        # zeros, not empty: padding is masked by a weight of 0, and 0 times a stray NaN would be NaN
        self.layers: list[Tensor] = [_zeros(shape, device, dtype) for _ in range(config.num_layers)]

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Store `[tokens, 2, kv_heads, head_dim]` at the token slots `page * page_size + offset`."""
        self.layers[layer].flatten(0, 1).index_copy_(0, slots, keys_values)

    def read(self, layer: int, pages: Tensor) -> Tensor:
        """Gather pages `[rows, n]` into `[rows, n * page_size, 2, kv_heads, head_dim]`."""
        stored = self.layers[layer]
        return stored.index_select(0, pages.flatten()).view(len(pages), -1, *stored.shape[2:])

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole pages, (from, to), in all layers. No page is both."""
        sources, targets = torch.tensor(pairs, device=self.layers[0].device).unbind(1)
        for layer in self.layers:
            layer.index_copy_(0, targets, layer.index_select(0, sources))

    def heal(self, pages: list[int]) -> None:
        """Make the pages finite again, after a row that made NaN or infinity: whoever gets them next must not meet it."""
        index = torch.tensor(pages, device=self.layers[0].device)
        for layer in self.layers:
            layer[index] = torch.nan_to_num(layer[index], nan=0.0, posinf=0.0, neginf=0.0)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    if device.type == "cpu":
        # numpy asks for zeroed memory, which the kernel hands out as it is touched; torch would write all of it
        flat: Tensor = torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype)
        return flat.view(shape)
    return torch.zeros(shape, device=device, dtype=dtype)
