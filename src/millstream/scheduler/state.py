"""Req: what the scheduler knows of one live request, and the phases it moves through.

Made at admission, changed only by the scheduler's loop, never sent. The prompt and output ids live here and nowhere else, so a
request can be thrown back to the queue and computed again.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from millstream.errors import InvariantError
from millstream.execution.interface import ForwardRow
from millstream.grammar.matcher import Matcher
from millstream.kv.pool import Lease
from millstream.messages import TokenizedGenerateReqInput, TokenRow, Usage
from millstream.messages.finish import EndCause
from millstream.observe.ledger import Account
from millstream.scheduler.finish import EndRule
from millstream.scheduler.logprobs import RequestLogprobs
from millstream.scheduler.stays import Stays

if TYPE_CHECKING:
    from millstream.scheduler.family import Family


class Phase(Enum):
    """Where a request is."""

    WAITING_GRAMMAR = "waiting_grammar"  # for its grammar to compile: it holds nothing, and no step waits for it
    WAITING = "waiting"  # for a slot and pages
    RUNNING = "running"  # has both
    PAUSED = "paused"  # for its client: has no slot, and keeps the pages it had until others need them
    FINISHED = "finished"


NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING_GRAMMAR: frozenset({Phase.WAITING, Phase.FINISHED}),
    Phase.WAITING: frozenset({Phase.RUNNING, Phase.PAUSED, Phase.FINISHED}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.PAUSED, Phase.FINISHED}),  # RUNNING -> WAITING is a retraction
    Phase.PAUSED: frozenset({Phase.RUNNING, Phase.WAITING, Phase.FINISHED}),  # WAITING: no slot is free, or its pages are gone
    Phase.FINISHED: frozenset(),
}


class Req:
    """One request. `token_ids` is prompt and output so far; positions before `num_computed` have their KV in `lease`."""

    __slots__ = (
        "account",
        "arrival",
        "cached_tokens",
        "call",
        "connection",
        "embedding",
        "end_rule",
        "entry",
        "family",
        "final_row",
        "held_back",
        "is_prefilling",
        "is_probe",
        "is_promoted",
        "lease",
        "matcher",
        "max_new_tokens",
        "namespace",
        "num_computed",
        "num_preempted",
        "num_prompt_tokens",
        "num_retracted",
        "num_verify_steps",
        "phase",
        "priority",
        "rank",
        "rid",
        "row",
        "sampling",
        "slot",
        "stays",
        "logprobs",
        "timing",
        "token_ids",
    )

    def __init__(self, message: TokenizedGenerateReqInput, end_rule: EndRule, account: Account, arrival: int = 0) -> None:
        self.rid = message.rid
        self.account = account  # settled in FINISHED
        self.arrival = arrival  # orders the requests of one scheduler
        self.priority = message.priority
        self.is_promoted = False
        self.rank = (1, -self.priority, arrival)  # the least goes first: in the queue, for pages and for the tokens of a step
        self.num_preempted = 0
        self.num_retracted = 0  # preempted or not
        self.is_probe = message.is_probe
        self.slot = message.slot
        self.entry = message.entry
        self.call = message.call
        self.token_ids = message.input_ids
        self.num_prompt_tokens = len(message.input_ids)
        self.sampling = message.sampling
        self.max_new_tokens = message.max_new_tokens
        self.namespace: str | None = message.cache_namespace  # None: nothing is shared
        self.family: Family | None = None  # the other choices of its call
        self.timing = message.timing
        self.stays = Stays()
        self.end_rule = end_rule
        self.matcher: Matcher | None = None  # its place in its grammar; a retraction does not touch it
        self.phase = Phase.WAITING if message.sampling.grammar is None else Phase.WAITING_GRAMMAR
        self.held_back = 0  # characters, by its last row
        self.lease: Lease | None = None
        self.num_computed = 0
        self.num_verify_steps = 0  # that brought tokens after the first one; counted where drafts are on
        self.is_prefilling = True  # positions before the last are still missing: a prompt, or all of it after a retraction
        self.cached_tokens: int | None = None  # prompt tokens not computed at the first admission; None before it
        self.connection: int | None = None  # to the detokenizer, that took its first row; 0: it was lost; None: no row yet
        self.final_row: TokenRow | None = None
        self.embedding: bytes | None = None  # float32, where it was asked for and once it is computed
        # the log probabilities it asks for, or None
        self.logprobs = None if message.logprobs is None else RequestLogprobs(message.logprobs, self.num_prompt_tokens)
        self.row = ForwardRow(
            rid=self.rid,
            token_ids=self.token_ids,
            num_prompt_tokens=self.num_prompt_tokens,
            start=0,
            end=0,
            pages=(),
            sampling=self.sampling,
            seed=self.sampling.seed or 0,  # the entry draws one where the client gave none
            sample=False,
            wants_hidden=message.wants_embedding,
            logprobs=message.logprobs,
        )
        if message.input_embeds is not None:
            self.row.input_embeds = np.frombuffer(message.input_embeds, np.float32).reshape(self.num_prompt_tokens, -1)
            account.acquire("input_embeds", len(message.input_embeds))

    @property
    def is_prompt_only(self) -> bool:
        """Whether it ends, without a token, once its prompt is computed."""
        return self.max_new_tokens == 0

    @property
    def num_forkable(self) -> int:
        """Tokens that another choice of the same prompt may have computed for it: the last of all is always computed."""
        return min(self.num_prompt_tokens, len(self.token_ids) - 1)

    @property
    def num_skippable(self) -> int:
        """Tokens that need not be computed where their KV is known: all before the first whose logits are needed."""
        num_tokens = len(self.token_ids) - 1
        return num_tokens if self.logprobs is None else self.logprobs.num_skippable(num_tokens)

    @property
    def num_output_tokens(self) -> int:
        """Tokens made so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def usage(self) -> Usage:
        """The counts as of now."""
        return Usage(
            self.num_prompt_tokens, self.num_output_tokens, self.cached_tokens or 0, self.num_verify_steps, self.num_retracted
        )

    @property
    def num_embeds_bytes(self) -> int:
        """Bytes held of embeddings that came in place of the prompt's ids: needed as long as it may be thrown back."""
        return 0 if self.row.input_embeds is None else self.row.input_embeds.nbytes

    def drop_embeds(self, cause: EndCause) -> None:
        """Let go of the embeddings that came in place of the prompt's ids: it has ended."""
        if self.row.input_embeds is not None:
            self.row.input_embeds = None
            self.account.release("input_embeds", cause)

    def promote(self) -> None:
        """Rank above all priorities from now on. No queue may be sorted by the old rank."""
        self.is_promoted = True
        self.rank = (0, 0, self.arrival)

    def move(self, phase: Phase) -> None:
        """Go to `phase`: the only way there.

        Raises:
            InvariantError: the move is not in `NEXT`.
        """
        if phase not in NEXT[self.phase]:
            raise InvariantError(f"{self.rid} cannot go from {self.phase.value} to {phase.value}")
        self.phase = phase
