"""TorchExecutor: the real model behind the executor interface. Built by `load_torch_executor`, called by the scheduler's loop.

Float32 on CPU, bfloat16 on CUDA. It owns weights and KV tensors and no fact about any request.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream.checkpoint.locate import ModelSource
from millstream.checkpoint.weights import open_checkpoint
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput, ForwardRow
from millstream.execution.sampling import NOT_FINITE, sample
from millstream.execution.torch.attention import AttentionPlan
from millstream.execution.torch.decoder import Decoder, StepInput
from millstream.execution.torch.kv_store import KVStore, default_total_tokens
from millstream.execution.torch.loader import load_weights

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Target:
    device: torch.device
    dtype: torch.dtype


class TorchExecutor:
    """An `Executor` on torch. Called from one thread."""

    def __init__(self, *, decoder: Decoder, store: KVStore, capabilities: Capabilities, target: _Target) -> None:
        self.capabilities = capabilities
        self._decoder = decoder
        self._store = store
        self._target = target

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Run one step and sample the rows that ask for it.

        Raises:
            RuntimeError: torch failed; no row made a token.
        """
        token_ids: list[list[int]] = [[] for _ in batch.rows]
        if not batch.rows:
            return ForwardOutput(token_ids)
        sampled = [index for index, row in enumerate(batch.rows) if row.sample]
        output = ForwardOutput(token_ids)
        with torch.inference_mode():
            hidden = self._hidden(batch.rows)
            ends = np.cumsum([row.end - row.start for row in batch.rows]) - 1
            if len(sampled) < len(batch.rows):
                self._check_chunks(batch.rows, hidden, ends, output)
            if not sampled:
                return output
            logits = self._decoder.logits(hidden[torch.from_numpy(ends[sampled]).to(self._target.device)]).cpu().numpy()
        drawn, errors = sample(logits, [batch.rows[index] for index in sampled])
        for place, index in enumerate(sampled):
            if place in errors:
                output.errors[index] = errors[place]
                self._heal(batch.rows[index])
            else:
                output.token_ids[index] = [drawn[place]]
        return output

    def forward_logits(self, batch: ForwardBatch) -> list[Tensor]:
        """Run one step without sampling; return each row's float32 logits at all its positions, `[end - start, vocab]`."""
        with torch.inference_mode():
            logits = self._decoder.logits(self._hidden(batch.rows)).cpu()
        return list(torch.split(logits, [row.end - row.start for row in batch.rows]))

    def close(self) -> None:
        """Free the KV tensors; the executor cannot be used after."""
        self._store.layers.clear()

    def _hidden(self, rows: Sequence[ForwardRow]) -> Tensor:
        device = self._target.device
        page_size = self._store.page_size
        if copies := [pair for row in rows for pair in row.copies]:
            self._store.copy(copies)
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for row in rows:
            token_ids.extend(row.token_ids[row.start : row.end])
            positions.extend(range(row.start, row.end))
            slots.extend(row.pages[at // page_size] * page_size + at % page_size for at in range(row.start, row.end))
        step = StepInput(
            torch.tensor(token_ids, device=device),
            torch.tensor(positions, device=device),
            torch.tensor(slots, device=device),
            {
                window: AttentionPlan(rows, window=window, page_size=page_size, device=device, dtype=self._target.dtype)
                for window in self._decoder.windows
            },
        )
        return self._decoder.hidden(step, self._store)

    def _check_chunks(self, rows: Sequence[ForwardRow], hidden: Tensor, ends: NDArray[np.intp], output: ForwardOutput) -> None:
        """Find NaN or infinity in prefill chunks: at their last position, which has seen all before it.

        Nobody samples there, and KV that is not finite must not become a prefix that others share.
        """
        chunks = [index for index, row in enumerate(rows) if not row.sample]
        is_finite = torch.isfinite(hidden[torch.from_numpy(ends[chunks]).to(self._target.device)]).all(dim=1).tolist()
        for index, fine in zip(chunks, is_finite, strict=True):
            if not fine:
                output.errors[index] = NOT_FINITE
                self._heal(rows[index])

    def _heal(self, row: ForwardRow) -> None:
        self._store.heal(list(row.pages[: -(-row.end // self._store.page_size)]))


def load_torch_executor(config: ServerConfig, source: ModelSource) -> TorchExecutor:
    """Load the model of `source` and make room for its KV.

    Raises:
        StartupError: the model is broken or not supported, or the options do not fit it.
    """
    target = _Target(torch.device("cuda"), torch.bfloat16) if torch.cuda.is_available() else _cpu(config.threads)
    checkpoint = open_checkpoint(source)
    model = checkpoint.config
    context_length = config.context_length or model.context_length
    if context_length > model.context_length:
        raise StartupError(
            f"context_length is {context_length}; this model takes at most {model.context_length} tokens.",
            hint="leave --context-length out",
        )
    total_tokens = config.max_total_tokens or default_total_tokens(model, context_length, target.device, target.dtype)
    num_pages = total_tokens // config.page_size
    if num_pages < 1:
        raise StartupError(f"max_total_tokens is {total_tokens}, less than one page of {config.page_size} tokens.")
    weights = load_weights(checkpoint, target.device, target.dtype)
    store = KVStore(model, num_pages=num_pages, page_size=config.page_size, device=target.device, dtype=target.dtype)
    log.info(
        "loaded %s (%d layers, %s on %s, %d threads, %d KV pages of %d tokens)",
        source.names[0], model.num_layers, target.dtype, target.device, torch.get_num_threads(), num_pages, config.page_size,
    )  # fmt: skip
    return TorchExecutor(
        decoder=Decoder(model, weights),
        store=store,
        capabilities=Capabilities(
            vocab_size=model.vocab_size,
            context_length=context_length,
            num_pages=num_pages,
            page_size=config.page_size,
            eos_token_ids=model.eos_token_ids,
        ),
        target=target,
    )


def describe_torch_executor(config: ServerConfig, source: ModelSource) -> str:
    """What would serve the model of `source`, in a sentence; its weights are not loaded.

    Raises:
        StartupError: the model is broken or not supported.
    """
    model = open_checkpoint(source).config
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({config.threads or _num_cores()} threads)"
    context_length = config.context_length or model.context_length
    return f"torch {torch.__version__} on {device}: {model.num_layers} layers, {context_length:,} tokens of context"


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu(threads: int) -> _Target:
    torch.set_num_threads(threads or _num_cores())
    return _Target(torch.device("cpu"), torch.float32)
