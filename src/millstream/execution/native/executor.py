"""NativeExecutor: the real model on CPU through our own kernels. Built by `load_native_executor`, called by the scheduler.

Quantised weights, 8-bit activations in groups of 32: not token-identical to float32, and measured against it
(`benchmarks/accuracy`). What a request gets does not depend on what shares its steps, bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from millstream.checkpoint.config import ModelConfig
from millstream.checkpoint.locate import ModelSource
from millstream.checkpoint.weights import Checkpoint, open_checkpoint
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput, ForwardRow
from millstream.execution.logprobs import add_prompt_logprobs, prompt_positions
from millstream.execution.machine import capabilities_of, context_limit, machine_memory, num_cores, pool_pages
from millstream.execution.native.availability import find_native, native_module
from millstream.execution.native.loader import kv_bytes_per_token, load_native_model
from millstream.execution.native.packing import plan_matrices, total_bytes
from millstream.execution.native.row_parts import LogprobQuery, RowPart, cut, prompt_query
from millstream.execution.native.sampler import StepSampler
from millstream.execution.plan import ExecutorPlan
from millstream.execution.sampling import NOT_FINITE
from millstream.execution.verify import draw_with_drafts, note_drawn
from millstream.messages.details import Logprobs, no_logprobs

log = logging.getLogger(__name__)

TOKENS_TOGETHER = 16  # the floats that a kernel takes at once, of a head or of a page

MAX_LOGITS = 1 << 24  # held at once for prompts whose log probabilities are asked: 64 MiB, 341 positions of 49,152 tokens

Floats = NDArray[np.float32]


class NativeExecutor:
    """An `Executor` over a `_native.Model`. Called from one thread; a step runs on all of the model's threads."""

    def __init__(self, model: Any, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._model = model

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Run one step, sample the rows that ask for it, and tell log probabilities to those that ask for them."""
        rows = batch.rows
        output = ForwardOutput([[] for _ in rows])
        if not rows:
            return output
        self._copy_pages(rows)
        before, parts = cut(rows, max(1, MAX_LOGITS // self.capabilities.vocab_size))
        prompts = {index: no_logprobs() for index, row in enumerate(rows) if prompt_positions(row)}
        for index, part in before:
            self._run([part])
            if (query := prompt_query(part, 0)) is not None:
                prompts[index].extend(*self._answer([query]))
        self._run(parts)
        self._keep(parts, output)
        self._check_states(rows, output)
        firsts = [0, *accumulate(part.num_outputs for part in parts)]  # each part's first output
        sampled = [index for index, row in enumerate(rows) if row.sample]
        if sampled:
            outputs = [at for i in sampled for at in range(firsts[i + 1] - 1 - len(rows[i].draft), firsts[i + 1])]
            sampler = StepSampler(self._model, self.capabilities.vocab_size, outputs)
            drawn, errors = draw_with_drafts([rows[index] for index in sampled], sampler)
            for index in note_drawn(output, sampled, drawn, errors):
                self._heal(rows[index])
            sampler.restore()
        self._add_logprobs(parts, firsts, prompts, output)
        return output

    def forward_logits(self, batch: ForwardBatch) -> list[Floats]:
        """Run one step without sampling; return each row's float32 logits at all its positions, `[reach - start, vocab]`."""
        counts = [row.reach - row.start for row in batch.rows]
        self._copy_pages(batch.rows)
        self._run([RowPart(row, row.start, row.reach, count) for row, count in zip(batch.rows, counts, strict=True)])
        logits = self._model.logits()[:, : self.capabilities.vocab_size].copy()
        return np.split(logits, np.cumsum(counts)[:-1])

    def close(self) -> None:
        """Free weights and KV; the executor cannot be used after."""
        self._model = None

    def _copy_pages(self, rows: Sequence[ForwardRow]) -> None:
        for row in rows:
            for source, target in row.copies:
                self._model.copy_page(source, target)

    def _run(self, parts: Sequence[RowPart]) -> None:
        token_ids = [token_id for part in parts for token_id in part.token_ids]
        rows = [(part.end - part.start, part.start, part.row.pages, part.num_outputs) for part in parts]
        embedded = {index: part.embeds for index, part in enumerate(parts) if len(part.embeds)}
        kept = [index for index, part in enumerate(parts) if part.gives_hidden]
        self._model.forward(np.array(token_ids, dtype=np.int32), rows, embedded, kept)

    def _keep(self, parts: Sequence[RowPart], output: ForwardOutput) -> None:
        """Take the states that rows of the last run asked for."""
        if kept := [index for index, part in enumerate(parts) if part.gives_hidden]:
            output.hidden = dict(zip(kept, self._model.kept_states().copy(), strict=True))

    def _add_logprobs(
        self, parts: Sequence[RowPart], firsts: Sequence[int], prompts: dict[int, Logprobs], output: ForwardOutput
    ) -> None:
        """Find the log probabilities of what was drawn, and of prompts, whose earlier positions are in `prompts`."""
        found = [(index, prompt_query(parts[index], firsts[index])) for index in prompts]
        asked = [(index, query) for index, query in found if query is not None]
        drawn = [
            (index, LogprobQuery(firsts[index + 1] - 1 - len(part.row.draft), output.token_ids[index], part.row.logprobs))
            for index, part in enumerate(parts)
            if part.row.logprobs is not None and output.token_ids[index]
        ]
        if not prompts and not drawn:
            return
        answers = self._answer([query for _, query in asked + drawn])
        for (index, _), answer in zip(asked, answers, strict=False):
            prompts[index].extend(answer)
        for index, table in prompts.items():
            if not add_prompt_logprobs(output, index, table):
                self._heal(parts[index].row)
        for (index, _), answer in zip(drawn, answers[len(asked) :], strict=True):
            output.logprobs[index] = answer

    def _answer(self, queries: Sequence[LogprobQuery]) -> list[Logprobs]:
        """Answer queries about the last run's logits as the model made them, on all of its threads."""
        asked = [(each.output, each.token_ids, each.params.top, each.params.token_ids) for each in queries]
        return [Logprobs(*columns) for columns in self._model.tell(asked)]

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
    checkpoint, plan = _plan(config, source)
    model = checkpoint.config
    native = load_native_model(
        checkpoint,
        source,
        cache_dir=Path(config.cache_dir).expanduser() if config.cache_dir else user_cache_path("millstream"),
        kv_type=plan.kv_dtype,
        num_pages=plan.num_pages,
        page_size=config.page_size,
        threads=plan.threads,
    )
    log.info(
        "loaded %s (%d layers, %s kernels, %d threads, %d KV pages of %d tokens, %s)",
        source.names[0], model.num_layers, native.isa, plan.threads, plan.num_pages, config.page_size,
        plan.kv_dtype,
    )  # fmt: skip
    return NativeExecutor(
        native,
        capabilities_of(config, model, context_length=plan.context_length, num_pages=plan.num_pages, executor="native"),
    )


def plan_native(config: ServerConfig, source: ModelSource) -> ExecutorPlan:
    """What `load_native_executor` would take. Reads no weights.

    Raises:
        StartupError: as there.
    """
    return _plan(config, source)[1]


def _plan(config: ServerConfig, source: ModelSource) -> tuple[Checkpoint, ExecutorPlan]:
    checkpoint = open_checkpoint(source)
    model = checkpoint.config
    check_native(config, model)
    context_length = context_limit(config, model)
    kv_type = "fp16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    bytes_per_token = kv_bytes_per_token(model, kv_type)
    return checkpoint, ExecutorPlan(
        name="native",
        what=describe_native(config),
        threads=config.threads or num_cores(),
        context_length=context_length,
        num_pages=pool_pages(config, context_length=context_length, bytes_per_token=bytes_per_token, memory=machine_memory()),
        page_size=config.page_size,
        kv_dtype=kv_type,
        kv_bytes_per_token=bytes_per_token,
        weight_bytes=total_bytes(plan_matrices(checkpoint)),
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
