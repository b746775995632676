"""DecodeGraphs: steps that only decode, at a few sizes, each captured once at load and replayed. Called by the runner.

What capturing means is passed in: `gpu.GraphCapture` on a GPU, or nothing at all in tests, which then run the same steps
without it. Everything else runs eagerly, in the runner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from millstream.execution.interface import ForwardRow
from millstream.execution.torch.decode_buffers import DecodeBuffers, DecodeInputs
from millstream.execution.torch.decoder import Decoder, StepInput
from millstream.execution.torch.device_sampler import Judged, judge
from millstream.execution.torch.kv_store import KVStore
from millstream.execution.torch.paged_attention import PagedAttention

log = logging.getLogger(__name__)

Compute = Callable[[], Judged]
# given what to run, returns what runs it again: on the same inputs' addresses, with its results in the same place each time
Capture = Callable[[Compute], Compute]


def graph_sizes(max_rows: int) -> list[int]:
    """Return 1, 2, 4, ... and `max_rows` itself: padding at most doubles a step, and decodes are bound by the weights."""
    sizes = [1]
    while sizes[-1] < max_rows:
        sizes.append(min(2 * sizes[-1], max_rows))
    return sizes


def decode_step(decoder: Decoder, store: KVStore, attention: PagedAttention, inputs: DecodeInputs) -> Judged:
    """Compute one position for each row of `inputs`, and judge its logits."""
    plans = attention.plan_decodes(inputs.rows, inputs.positions, inputs.indices, decoder.windows)
    step = StepInput(inputs.token_ids, inputs.positions, inputs.slots, plans)
    return judge(decoder.logits(decoder.hidden(step, store)))


class DecodeGraphs:
    """One graph a size, over one set of buffers.

    Args:
        compute: runs a step on the inputs it is given; called to capture, and no later than that.
    """

    def __init__(
        self, *, sizes: Iterable[int], buffers: DecodeBuffers, compute: Callable[[DecodeInputs], Judged], capture: Capture
    ) -> None:
        began = time.monotonic()
        self._buffers = buffers
        self._replays: dict[int, Compute] = {}
        for size in sorted(sizes, reverse=True):  # the largest first: the others then find room in its memory
            buffers.fill((), size)
            self._replays[size] = self._captured(size, compute, capture)
        self._sizes = sorted(self._replays)
        log.info(
            "captured decode steps of up to %d rows at %d sizes in %.1f s",
            self._sizes[-1], len(self._sizes), time.monotonic() - began,
        )  # fmt: skip

    def takes(self, rows: Sequence[ForwardRow]) -> bool:
        """Whether a step of these rows can be replayed: each computes one position, of a token, and draws there."""
        return 0 < len(rows) <= self._sizes[-1] and all(
            row.sample and row.reach - row.start == 1 and (row.input_embeds is None or row.start >= row.num_prompt_tokens)
            for row in rows
        )

    def run(self, rows: Sequence[ForwardRow]) -> Judged:
        """Run a step that `takes` accepts. Its results are overwritten by the next."""
        size = next(size for size in self._sizes if size >= len(rows))
        self._buffers.fill(rows, size)
        logits, best, is_finite = self._replays[size]()
        count = len(rows)
        return Judged(logits[:count], best[:count], is_finite[:count])

    def _captured(self, size: int, compute: Callable[[DecodeInputs], Judged], capture: Capture) -> Compute:
        inputs = self._buffers.inputs(size)
        return capture(lambda: compute(inputs))
