"""TorchExecutor: the real model behind the executor interface. Built by `build`, called by the scheduler's loop.

It owns weights and KV tensors and no fact about any request.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput, ForwardRow
from millstream.execution.logprobs import add_prompt_logprobs, prompt_positions, prompt_tokens
from millstream.execution.sampling import NOT_FINITE
from millstream.execution.torch.attention import AttentionBackend
from millstream.execution.torch.decode_graphs import DecodeGraphs
from millstream.execution.torch.decoder import Decoder, StepInput
from millstream.execution.torch.device_logprobs import MAX_ELEMENTS, LogprobQuery, compute_logprobs
from millstream.execution.torch.device_sampler import DeviceSampler, judge
from millstream.execution.torch.kv_store import KVStore
from millstream.execution.torch.transfer import upload
from millstream.execution.verify import draw_with_drafts, note_drawn, sample_with_drafts
from millstream.messages.details import no_logprobs


class TorchExecutor:
    """An `Executor` on torch. Called from one thread.

    Args:
        graphs: captured steps of decodes alone; None runs every step eagerly.
    """

    def __init__(
        self,
        *,
        decoder: Decoder,
        store: KVStore,
        capabilities: Capabilities,
        attention: AttentionBackend,
        device: torch.device,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.capabilities = capabilities
        self._decoder = decoder
        self._store = store
        self._attention = attention
        self._device = device
        self._graphs = graphs

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Run one step and sample the rows that ask for it.

        Raises:
            RuntimeError: torch failed; no row made a token.
        """
        rows = batch.rows
        output = ForwardOutput([[] for _ in rows])
        sampled = [index for index, row in enumerate(rows) if row.sample]
        with torch.inference_mode():
            self._copy_pages(rows)
            if self._graphs is not None and self._graphs.takes(rows):
                judged = self._graphs.run(rows)
                logits = judged.logits
                drawn, errors = draw_with_drafts(rows, DeviceSampler(judged, rows))
            else:
                logits, drawn, errors = self._run(rows, sampled, output)
            for index in note_drawn(output, sampled, drawn, errors):
                self._heal(rows[index])
            _add_drawn_logprobs(logits, rows, sampled, output)
        return output

    def forward_logits(self, batch: ForwardBatch) -> list[Tensor]:
        """Run one step without sampling; return each row's float32 logits at all its positions, `[reach - start, vocab]`."""
        with torch.inference_mode():
            self._copy_pages(batch.rows)
            logits = self._decoder.logits(self._hidden(batch.rows)).cpu()
        return list(torch.split(logits, [row.reach - row.start for row in batch.rows]))

    def close(self) -> None:
        """Free the KV tensors; the executor cannot be used after."""
        self._graphs = None
        self._store.layers.clear()

    def _run(
        self, rows: Sequence[ForwardRow], sampled: list[int], output: ForwardOutput
    ) -> tuple[Tensor, list[list[int]], dict[int, str]]:
        """Run any mix of rows; return logits, ids and errors of those that sample, and put all else into `output`."""
        if not rows:
            return torch.empty(0, 0), [], {}
        hidden = self._hidden(rows)
        lasts = np.cumsum([row.reach - row.start for row in rows]) - 1  # each row's last position in the step
        if kept := [index for index, row in enumerate(rows) if row.gives_hidden]:
            output.hidden = dict(zip(kept, hidden[upload(lasts[kept], self._device)].float().cpu().numpy(), strict=True))
        if len(sampled) < len(rows):
            self._check_chunks(rows, hidden, lasts, output)
        self._add_prompt_logprobs(rows, hidden, lasts, output)
        if not sampled:
            return torch.empty(0, 0), [], {}
        drawing_rows = [rows[index] for index in sampled]
        drawing = np.concatenate([np.arange(lasts[index] - len(rows[index].draft), lasts[index] + 1) for index in sampled])
        states = hidden[upload(drawing, self._device)]
        self._heal_drafts(drawing_rows, states)
        logits = self._decoder.logits(states)
        if self._device.type == "cpu":
            return logits, *sample_with_drafts(logits.numpy(), drawing_rows)
        return logits, *draw_with_drafts(drawing_rows, DeviceSampler(judge(logits), drawing_rows))

    def _copy_pages(self, rows: Sequence[ForwardRow]) -> None:
        if copies := [pair for row in rows for pair in row.copies]:
            self._store.copy(copies)

    def _hidden(self, rows: Sequence[ForwardRow]) -> Tensor:
        page_size = self._store.page_size
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for row in rows:
            token_ids.extend(row.token_ids[row.start : row.end])
            token_ids.extend(row.draft)
            positions.extend(range(row.start, row.reach))
            slots.extend(row.pages[at // page_size] * page_size + at % page_size for at in range(row.start, row.reach))
        numbers = upload(np.array([token_ids, positions, slots], dtype=np.int64), self._device)
        plans = self._attention.plan(rows, self._decoder.windows)
        step = StepInput(numbers[0], numbers[1], numbers[2], plans, self._embedded(rows))
        return self._decoder.hidden(step, self._store)

    def _embedded(self, rows: Sequence[ForwardRow]) -> tuple[Tensor, Tensor] | None:
        """What stands in for the embeddings of this step's tokens, and where; None where nothing does."""
        places: list[int] = []
        parts: list[NDArray[np.float32]] = []
        first = 0
        for row in rows:
            if row.input_embeds is not None and row.start < len(row.input_embeds):
                parts.append(row.input_embeds[row.start : row.end])
                places.extend(range(first, first + len(parts[-1])))
            first += row.reach - row.start
        if not parts:
            return None
        return upload(np.array(places), self._device), upload(np.concatenate(parts), self._device)

    def _check_chunks(self, rows: Sequence[ForwardRow], hidden: Tensor, lasts: NDArray[np.intp], output: ForwardOutput) -> None:
        """Find NaN or infinity in prefill chunks: at their last position, which has seen all before it.

        Nobody samples there, and KV that is not finite must not become a prefix that others share.
        """
        chunks = [index for index, row in enumerate(rows) if not row.sample]
        is_finite = torch.isfinite(hidden[upload(lasts[chunks], self._device)]).all(dim=1).tolist()
        for index, fine in zip(chunks, is_finite, strict=True):
            if not fine:
                output.errors[index] = NOT_FINITE
                self._heal(rows[index])

    def _add_prompt_logprobs(
        self, rows: Sequence[ForwardRow], hidden: Tensor, lasts: NDArray[np.intp], output: ForwardOutput
    ) -> None:
        """Find the log probabilities of prompt tokens. The logits of few positions are held at once."""
        step = max(1, MAX_ELEMENTS // self.capabilities.vocab_size)
        for index, row in enumerate(rows):
            positions = prompt_positions(row)
            if not positions or row.logprobs is None or index in output.errors:
                continue
            table = no_logprobs()
            first = int(lasts[index]) - (row.reach - 1)  # where position 0 would be in the step
            for start in range(positions.start, positions.stop, step):
                part = range(start, min(start + step, positions.stop))
                logits = self._decoder.logits(hidden[first + part.start - 1 : first + part.stop - 1])
                table.extend(compute_logprobs(logits, [LogprobQuery(0, prompt_tokens(row, part), row.logprobs)])[0])
            if not add_prompt_logprobs(output, index, table):
                self._heal(row)

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


def _add_drawn_logprobs(logits: Tensor, rows: Sequence[ForwardRow], sampled: Sequence[int], output: ForwardOutput) -> None:
    """Find the log probabilities of what was drawn, from the logits of each sampled row's last `1 + len(draft)` positions."""
    queries: list[LogprobQuery] = []
    asking: list[int] = []
    place = 0
    for index in sampled:
        row, token_ids = rows[index], output.token_ids[index]
        if row.logprobs is not None and token_ids:
            queries.append(LogprobQuery(place, token_ids, row.logprobs))
            asking.append(index)
        place += 1 + len(row.draft)
    if queries:
        output.logprobs.update(zip(asking, compute_logprobs(logits, queries), strict=True))
