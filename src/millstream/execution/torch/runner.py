"""TorchExecutor: the real model behind the executor interface. Built by `load_torch_executor`, called by the scheduler's loop.

Float32 on CPU, bfloat16 on CUDA. It owns weights and KV tensors and no fact about any request.
"""

from __future__ import annotations

import logging
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
from millstream.execution.machine import context_limit, machine_memory, num_cores, pool_pages
from millstream.execution.sampling import NOT_FINITE
from millstream.execution.torch.attention import AttentionPlan
from millstream.execution.torch.decoder import Decoder, StepInput
from millstream.execution.torch.kv_store import KVStore
from millstream.execution.torch.loader import load_weights
from millstream.execution.verify import sample_with_drafts

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
        rows = batch.rows
        sampled = [index for index, row in enumerate(rows) if row.sample]
        output = ForwardOutput(token_ids)
        with torch.inference_mode():
            hidden = self._hidden(rows)
            lasts = np.cumsum([row.reach - row.start for row in rows]) - 1  # each row's last position in the step
            if len(sampled) < len(rows):
                self._check_chunks(rows, hidden, lasts, output)
            if not sampled:
                return output
            drawing = np.concatenate([np.arange(lasts[index] - len(rows[index].draft), lasts[index] + 1) for index in sampled])
            states = hidden[torch.from_numpy(drawing).to(self._target.device)]
            self._heal_drafts([rows[index] for index in sampled], states)
            logits = self._decoder.logits(states).cpu().numpy()
        drawn, errors = sample_with_drafts(logits, [rows[index] for index in sampled])
        for place, index in enumerate(sampled):
            output.token_ids[index] = drawn[place]
            if place in errors:
                output.errors[index] = errors[place]
                self._heal(rows[index])
        return output

    def forward_logits(self, batch: ForwardBatch) -> list[Tensor]:
        """Run one step without sampling; return each row's float32 logits at all its positions, `[reach - start, vocab]`."""
        with torch.inference_mode():
            logits = self._decoder.logits(self._hidden(batch.rows)).cpu()
        return list(torch.split(logits, [row.reach - row.start for row in batch.rows]))

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
            token_ids.extend(row.draft)
            positions.extend(range(row.start, row.reach))
            slots.extend(row.pages[at // page_size] * page_size + at % page_size for at in range(row.start, row.reach))
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

    def _check_chunks(self, rows: Sequence[ForwardRow], hidden: Tensor, lasts: NDArray[np.intp], output: ForwardOutput) -> None:
        """Find NaN or infinity in prefill chunks: at their last position, which has seen all before it.

        Nobody samples there, and KV that is not finite must not become a prefix that others share.
        """
        chunks = [index for index, row in enumerate(rows) if not row.sample]
        is_finite = torch.isfinite(hidden[torch.from_numpy(lasts[chunks]).to(self._target.device)]).all(dim=1).tolist()
        for index, fine in zip(chunks, is_finite, strict=True):
            if not fine:
                output.errors[index] = NOT_FINITE
                self._heal(rows[index])

    def _heal_drafts(self, rows: Sequence[ForwardRow], states: Tensor) -> None:
        """Find NaN or infinity at the positions of drafts, `states` of each row's last `1 + len(draft)`.

        What was guessed wrong is no fault of the row's; but its KV stays in the page, where padding meets it.
        """
        if not any(row.draft for row in rows):
            return
        is_finite = torch.split(torch.isfinite(states).all(dim=1), [1 + len(row.draft) for row in rows])
        for row, fine in zip(rows, is_finite, strict=True):
            if row.draft and not bool(fine.all()):
                self._heal(row)

    def _heal(self, row: ForwardRow) -> None:
        self._store.heal(list(row.pages[: -(-row.reach // self._store.page_size)]))


def load_torch_executor(config: ServerConfig, source: ModelSource) -> TorchExecutor:
    """Load the model of `source` and make room for its KV.

    Raises:
        StartupError: the model is broken or not supported, or the options do not fit it.
    """
    target = _Target(torch.device("cuda"), torch.bfloat16) if torch.cuda.is_available() else _cpu(config.threads)
    own_kv = "bf16" if target.dtype is torch.bfloat16 else "fp32"
    if config.kv_cache_dtype not in ("auto", own_kv):
        raise StartupError(
            f"kv_cache_dtype is {config.kv_cache_dtype}; the torch executor keeps keys and values in {own_kv} here.",
            hint="leave --kv-cache-dtype out, or pass --executor native",
        )
    checkpoint = open_checkpoint(source)
    model = checkpoint.config
    context_length = context_limit(config, model)
    num_pages = pool_pages(
        config,
        context_length=context_length,
        bytes_per_token=model.num_layers * 2 * model.num_kv_heads * model.head_dim * target.dtype.itemsize,
        memory=_memory(target.device),
    )
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
            executor="torch",
        ),
        target=target,
    )


def describe_torch_executor(config: ServerConfig, source: ModelSource) -> str:
    """What would serve the model of `source`, in a sentence; its weights are not loaded.

    Raises:
        StartupError: the model is broken or not supported.
    """
    model = open_checkpoint(source).config
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({config.threads or num_cores()} threads)"
    context_length = config.context_length or model.context_length
    return f"torch {torch.__version__} on {device}: {model.num_layers} layers, {context_length:,} tokens of context"


def _memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else machine_memory()


def _cpu(threads: int) -> _Target:
    torch.set_num_threads(threads or num_cores())
    return _Target(torch.device("cpu"), torch.float32)
