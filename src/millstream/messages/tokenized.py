"""TokenizedGenerateReqInput: entry -> scheduler. Everything that influences the model is final here."""

from __future__ import annotations

from msgspec import Struct

from millstream.messages.details import LogprobParams
from millstream.messages.sampling import SamplingParams
from millstream.messages.timing import Timing


class TokenizedGenerateReqInput(Struct, kw_only=True, omit_defaults=True, tag="generate"):
    """One request in model terms. Answered by an `AdmissionOutput`, then by rows with exactly one final row.

    `input_ids` are authoritative: the scheduler never sees text and never re-tokenises. `sampling` was verified, its seed
    is drawn, and `max_new_tokens` is resolved: `len(input_ids) + max_new_tokens` fits the context; with 0 only the prompt is
    computed. `entry` is the number of the worker that owns the request: verdicts and rows go there. `call` is the rid of its
    call, where that has several requests.
    A higher `priority` goes first; the entry has checked that the server has priorities.
    """

    rid: str
    input_ids: list[int]
    sampling: SamplingParams
    max_new_tokens: int
    cache_namespace: str = ""
    priority: int = 0  # 64 bits, signed
    deadline: float | None = None  # seconds, the clock of `timing`
    progress: bool = False  # answered by `ProgressOutput` up to the first row
    slot: int = 0  # a number that the entry worker gives each request once: names it where rows travel
    entry: int = 0
    call: str = ""
    logprobs: LogprobParams | None = None
    wants_embedding: bool = False
    input_embeds: bytes | None = None
    is_probe: bool = False
    timing: Timing
