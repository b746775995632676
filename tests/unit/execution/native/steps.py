"""Runs for tests of the native executor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from millstream.checkpoint.locate import ModelSource
from millstream.config import ServerConfig
from millstream.execution.interface import ForwardBatch
from millstream.execution.native.executor import NativeExecutor, load_native_executor
from tests.unit.execution.torch.steps import row

Floats = NDArray[np.float32]


def load_native(source: ModelSource, **options: object) -> NativeExecutor:
    """Load with a small pool."""
    return load_native_executor(ServerConfig(**{"threads": 1, "max_total_tokens": 2048, **options}), source)


def native_logits(executor: NativeExecutor, token_ids: Sequence[int], pages: Sequence[int], ends: Iterable[int]) -> Floats:
    """Run a sequence in chunks that stop at each of `ends`; return the logits of all positions."""
    parts: list[Floats] = []
    start = 0
    for end in ends:
        parts += executor.forward_logits(ForwardBatch([row(token_ids, list(pages), start, end)]))
        start = end
    return np.concatenate(parts)
