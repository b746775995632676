"""NativeExecutor: the real model on CPU through our own kernels. Built by `load_native_executor`, called by the scheduler.

Quantised weights, 8-bit activations in groups of 32: not token-identical to float32, and measured against it
(`benchmarks/accuracy`). What a request gets does not depend on what shares its steps, bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from millstream.checkpoint.config import ModelConfig
from millstream.checkpoint.locate import ModelSource
from millstream.checkpoint.weights import open_checkpoint
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput, ForwardRow
from millstream.execution.machine import capabilities_of, context_limit, machine_memory, num_cores, pool_pages
from millstream.execution.native.availability import find_native, native_module
from millstream.execution.native.loader import kv_bytes_per_token, load_native_model
from millstream.execution.native.sampler import StepSampler
from millstream.execution.sampling import NOT_FINITE
from millstream.execution.verify import draw_with_drafts, note_drawn

log = logging.getLogger(__name__)

TOKENS_TOGETHER = 16  # the floats that a kernel takes at once, of a head or of a page

Floats = NDArray[np.float32]


class NativeExecutor:
    """An `Executor` over a `_native.Model`. Called from one thread; a step runs on all of the model's threads."""

    def __init__(self, model: Any, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._model = model

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Run one step and sample the rows that ask for it."""
        rows = batch.rows
        output = ForwardOutput([[] for _ in rows])
        if not rows:
            return output
        self._run(rows, [1 + len(row.draft) if row.sample else 0 for row in rows])
        self._note_kept(rows, output)
        self._check_states(rows, output)
        sampled = [index for index, row in enumerate(rows) if row.sample]
        if sampled:
            sampler = StepSampler(self._model, self.capabilities.vocab_size)
            drawn, errors = draw_with_drafts([rows[index] for index in sampled], sampler)
            for index in note_drawn(output, sampled, drawn, errors):
                self._heal(rows[index])
        return output

    def forward_logits(self, batch: ForwardBatch) -> list[Floats]:
        """Run one step without sampling; return each row's float32 logits at all its positions, `[reach - start, vocab]`."""
        counts = [row.reach - row.start for row in batch.rows]
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
            start = row.start
            token_ids += row.token_ids[start : row.end]
            token_ids += row.draft
            parts.append((row.reach - start, start, row.pages, outputs))
            for source, target in row.copies:
                self._model.copy_page(source, target)
        embedded = {
            index: row.input_embeds[row.start : row.end]
            for index, row in enumerate(rows)
            if row.input_embeds is not None and row.start < len(row.input_embeds)
        }
        kept = [index for index, row in enumerate(rows) if row.gives_hidden]
        self._model.forward(np.array(token_ids, dtype=np.int32), parts, embedded, kept)

    def _note_kept(self, rows: Sequence[ForwardRow], output: ForwardOutput) -> None:
        kept = [index for index, row in enumerate(rows) if row.gives_hidden]
        if kept:
            output.hidden = dict(zip(kept, self._model.kept_states().copy(), strict=True))

    def _check_states(self, rows: Sequence[ForwardRow], output: ForwardOutput) -> None:
        """Find rows whose last state is NaN or infinite.

        Nobody samples from a chunk, and KV that is not finite must not become a prefix that others share. A draft that was
        guessed wrong is no fault of its row's, but what it left in the page must not stay.
        """
        for index in self._model.rows_not_finite():
            row = rows[index]
            if not row.sample:
                output.errors[index] = NOT_FINITE
            self._heal(row)

    def _heal(self, row: ForwardRow) -> None:
        for page in row.pages[: -(-row.reach // self.capabilities.page_size)]:
            self._model.heal_page(page)


def load_native_executor(config: ServerConfig, source: ModelSource) -> NativeExecutor:
    """Load the model of `source` and make room for its KV.

    Raises:
        StartupError: the model is broken or not supported, or the options do not fit it.
    """
    checkpoint = open_checkpoint(source)
    model = checkpoint.config
    check_native(config, model)
    context_length = context_limit(config, model)
    kv_type = "fp16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    num_pages = pool_pages(
        config, context_length=context_length, bytes_per_token=kv_bytes_per_token(model, kv_type), memory=machine_memory()
    )
    threads = config.threads or num_cores()
    native = load_native_model(
        checkpoint,
        source,
        cache_dir=Path(config.cache_dir).expanduser() if config.cache_dir else user_cache_path("millstream"),
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
        capabilities_of(config, model, context_length=context_length, num_pages=num_pages, executor="native"),
    )


def check_native(config: ServerConfig, model: ModelConfig) -> None:
    """Refuse what cannot run.

    Raises:
        StartupError: the native executor cannot serve this model here.
    """
    if (reason := why_not_native(config, model)) is not None:
        raise StartupError(f"the native executor cannot run: {reason}.", hint="pass --executor torch")


def describe_native(config: ServerConfig) -> str:
    """What would compute, in a few words, where it can run."""
    return f"native kernels ({native_module().instruction_set()}, {config.threads or num_cores()} threads)"


def why_not_native(config: ServerConfig, model: ModelConfig) -> str | None:
    """Say, in a clause, what keeps the native executor from serving this model here; None where nothing does."""
    if isinstance(found := find_native(), str):
        return found
    if config.page_size % TOKENS_TOGETHER:
        return f"page_size is {config.page_size}, and it needs a multiple of {TOKENS_TOGETHER}"
    if model.head_dim % TOKENS_TOGETHER:
        return f"the model's heads have {model.head_dim} dimensions, and it needs a multiple of {TOKENS_TOGETHER}"
    return None
