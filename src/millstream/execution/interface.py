"""The seam between scheduler and model: Executor, ForwardBatch, ForwardOutput.

An executor owns the KV tensors and nothing else: every fact about a request comes with its row, so a row can be recomputed
after a retraction, and what a row samples depends on the row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from millstream.messages.details import LogprobParams, Logprobs
from millstream.messages.sampling import SamplingParams


@dataclass(slots=True)
class ForwardRow:
    """One request's part of a step: compute positions `start`..`end - 1` of `token_ids`, then perhaps sample the next.

    `token_ids` (prompt and output so far) belongs to the scheduler and is read-only here. `pages[i]` holds positions
    `i * page_size` to `(i + 1) * page_size - 1`; pages cover `reach` positions at least. Positions before `start` are in KV,
    once `copies` are made: pages that a fork takes over from another row, in all layers, before anything else of the step.

    `draft` are tokens guessed to follow; only a row that samples has any. They are computed as if they stood at
    `end`..`reach - 1`, a token is drawn at each of the last `1 + len(draft)` positions, and the answer is what was drawn up to
    and including the first that differs from the draft (see `verify`). KV past what was accepted is garbage: it is overwritten
    before anybody reads it.

    A row with `allowed` has no draft, since each of its positions would need a mask of its own, and makes one token a step. Ids
    that the mask has no bit for are not allowed.
    """

    rid: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    start: int
    end: int
    pages: Sequence[int]
    sampling: SamplingParams
    seed: int
    sample: bool  # draw the next token: where end == len(token_ids), unless only the prompt is wanted
    banned_token_ids: Sequence[int] = ()  # ids that may not be drawn next (stops, before min_new_tokens)
    draft: Sequence[int] = ()
    copies: Sequence[tuple[int, int]] = ()  # pages, (from, to); to do it twice in the same step does no harm
    logprobs: LogprobParams | None = None
    wants_hidden: bool = False  # once `end` is the prompt's: the state of the last position, after the final norm
    input_embeds: NDArray[np.float32] | None = None  # `[prompt, hidden]`: what enters the first layer in place of its ids
    allowed: NDArray[np.uint32] | None = None  # a bit for each id that may be drawn next, the lowest first; None: all may

    @property
    def gives_hidden(self) -> bool:
        """Whether this step computes the state that the row wants."""
        return self.wants_hidden and self.end == self.num_prompt_tokens

    @property
    def reach(self) -> int:
        """One past the last position computed, the draft's included."""
        return self.end + len(self.draft)


@dataclass(slots=True)
class ForwardBatch:
    """The rows of one step: any mix of prefill chunks and decodes.

    A decode has one position to compute and perhaps a draft, or several where a grammar forced what stands there.
    """

    rows: list[ForwardRow]


@dataclass(slots=True)
class ForwardOutput:
    """What a step made, aligned with the batch's rows.

    `token_ids[i]` holds the next tokens of row i: usually one where the row samples; several where an executor accepts more in
    a step; empty where it does not sample or has nothing yet (the scheduler runs the row again). `errors` maps a row index to
    a message: that row's request fails, the others go on. `finished` holds the indices of rows that have nothing more to say
    after these tokens, without a stop token; an executor must not say so before `min_new_tokens`, nor under `ignore_eos`.

    By row index, for rows that asked: `logprobs` of the row's `token_ids`; `prompt_logprobs` of those prompt tokens whose
    logits the step computed, which are the ones at positions `max(start + 1, prompt_start, 1)` to `min(end + 1, prompt) - 1`;
    `hidden`, float32 `[hidden]`, of rows whose `gives_hidden` is set.
    """

    token_ids: list[list[int]]
    errors: dict[int, str] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    hidden: dict[int, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded executor is and can hold."""

    vocab_size: int  # width of the logits
    context_length: int  # tokens, the model's own limit or the configured one
    num_pages: int
    page_size: int  # tokens
    eos_token_ids: frozenset[int]  # from the model's config and generation config
    executor: str = "custom"  # its name, for people
    hidden_size: int = 0  # numbers in a state and in an embedding; 0: it has none to give, and takes none
    has_logprobs: bool = False  # it fills `ForwardOutput.logprobs` and `prompt_logprobs`
    has_masks: bool = False  # it draws only what `ForwardRow.allowed` allows


class Executor(Protocol):
    """A model behind paged KV. Called from one thread."""

    capabilities: Capabilities

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Run one step. Writes KV for every position computed.

        Raises:
            Exception: the whole step failed; no row of it made a token.
        """
        ...

    def close(self) -> None:
        """Free what is held."""
        ...
