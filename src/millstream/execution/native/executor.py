"""NativeExecutor: the real model on CPU through our own kernels. Built by `load_native_executor`, called by the scheduler's loop.

Quantised weights, 8-bit activations in groups of 32: not token-identical to float32, and measured against it
(`benchmarks/accuracy`). What a request gets does not depend on what shares its steps, bit for bit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.checkpoint.locate import ModelSource
from millstream.checkpoint.weights import open_checkpoint
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput, ForwardRow
from millstream.execution.kv_size import context_limit, machine_memory, pool_pages
from millstream.execution.native.loader import kv_bytes_per_token, load_native_model
from millstream.execution.sampling import NOT_FINITE

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]


class NativeExecutor:
    """An `Executor` over a `_native.Model`. Called from one thread; a step runs on all of the model's threads."""

    def __init__(self, model: Any, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._model = model

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Run one step and sample the rows that ask for it."""
        output = ForwardOutput([[] for _ in batch.rows])
        if not batch.rows:
            return output
        self._run(batch.rows, [int(row.sample) for row in batch.rows])
        self._check_chunks(batch.rows, output)
        self._sample(batch.rows, output)
        return output

    def forward_logits(self, batch: ForwardBatch) -> list[Floats]:
        """Run one step without sampling; return each row's float32 logits at all its positions, `[end - start, vocab]`."""
        counts = [row.end - row.start for row in batch.rows]
        self._run(batch.rows, counts)
        logits = self._model.logits()[:, : self.capabilities.vocab_size].copy()
        return np.split(logits, np.cumsum(counts)[:-1])

    def close(self) -> None:
        """Free weights and KV; the executor cannot be used after."""
        self._model = None

    def _run(self, rows: Sequence[ForwardRow], num_outputs: Sequence[int]) -> None:
        token_ids: list[int] = []
        parts: list[tuple[int, int, Sequence[int], int]] = []
        for row, outputs in zip(rows, num_outputs, strict=True):
            start, end = row.start, row.end
            token_ids += row.token_ids[start:end]
            parts.append((end - start, start, row.pages, outputs))
        self._model.forward(np.array(token_ids, dtype=np.int32), parts)

    def _check_chunks(self, rows: Sequence[ForwardRow], output: ForwardOutput) -> None:
        """Nobody samples from a chunk; KV that is not finite must not become a prefix that others share."""
        for index, is_finite in enumerate(self._model.rows_finite()):
            if not is_finite and not rows[index].sample:
                self._fail(rows[index], index, NOT_FINITE, output)

    def _fail(self, row: ForwardRow, index: int, message: str, output: ForwardOutput) -> None:
        output.errors[index] = message
        for page in row.pages[: -(-row.end // self.capabilities.page_size)]:
            self._model.heal_page(page)


def load_native_executor(config: ServerConfig, source: ModelSource) -> NativeExecutor:
    """Load the model of `source` and make room for its KV.

    Raises:
        StartupError: the model is broken or not supported, or the options do not fit it.
    """
    if config.page_size % 16:
        raise StartupError(f"page_size is {config.page_size}; the native executor needs a multiple of 16.")
    checkpoint = open_checkpoint(source)
    model = checkpoint.config
    if model.head_dim % 16:
        raise StartupError(f"the head size is {model.head_dim}; the native executor needs a multiple of 16.", hint="pass --executor torch")
    context_length = context_limit(config, model)
    kv_type = "fp16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    num_pages = pool_pages(
        config, context_length=context_length, bytes_per_token=kv_bytes_per_token(model, kv_type), memory=machine_memory()
    )
    threads = config.threads or num_cores()
    native = load_native_model(
        checkpoint,
        source,
        cache_dir=Path(config.cache_dir).expanduser() if config.cache_dir else None,
        kv_type=kv_type,
        num_pages=num_pages,
        page_size=config.page_size,
        threads=threads,
    )
    log.info(
        "loaded %s (%d layers, %s kernels, %d threads, %d KV pages of %d tokens, %s)",
        source.names[0], model.num_layers, native.isa, threads, num_pages, config.page_size, kv_type,
    )  # fmt: skip
    return NativeExecutor(
        native,
        Capabilities(
            vocab_size=model.vocab_size,
            context_length=context_length,
            num_pages=num_pages,
            page_size=config.page_size,
            eos_token_ids=model.eos_token_ids,
        ),
    )


def num_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
