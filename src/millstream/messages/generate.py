"""GenerateReqInput: one protocol-free request. Adapters and the native API -> TokenizerManager, in one process."""

from __future__ import annotations

from msgspec import Struct

from millstream.messages.details import LogprobParams
from millstream.messages.sampling import SamplingParams
from millstream.messages.timing import Timing


class GenerateReqInput(Struct, kw_only=True):
    """One prompt (`text` or `input_ids`, exactly one) and how to continue it. Roles, tools and model names stay behind.

    `add_special_tokens` is False for text that a chat template rendered: the template wrote its own BOS.
    """

    rid: str
    text: str | None = None
    input_ids: list[int] | None = None
    add_special_tokens: bool = True
    sampling: SamplingParams
    cache_namespace: str = ""  # requests of different namespaces never share prefix pages
    priority: int = 0  # the higher goes first
    deadline: float | None = None  # seconds, the clock of `timing`: by then the request has ended, whatever it was doing
    progress: bool = False  # whether the client wants to hear how far it is before its first token
    logprobs: LogprobParams | None = None
    wants_embedding: bool = False  # the final state of the prompt's last token; then nothing is generated
    input_embeds: bytes | None = None  # float32 `[len(input_ids), hidden]` in place of the tokens' own embeddings
    is_probe: bool = False  # nobody's request: it must not count where requests are counted
    timing: Timing

    @property
    def is_prompt_only(self) -> bool:
        """Whether the prompt is computed and nothing is made: it may then fill the whole context."""
        return self.wants_embedding or self.sampling.max_new_tokens == 0
