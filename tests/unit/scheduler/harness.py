"""A scheduler on a desk: lists for its channels, a clock that ticks when read, and an executor that checks its KV cache."""

from __future__ import annotations

import functools
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.execution.interface import Capabilities, Executor, ForwardBatch, ForwardOutput, ForwardRow
from millstream.execution.logprobs import prompt_positions
from millstream.grammar.matcher import GrammarCompiler
from millstream.kv.pool import KVPool
from millstream.messages import (
    AbortReq,
    AdmissionOutput,
    BatchTokenIDOutput,
    FinishReason,
    PauseReq,
    Rejection,
    ResumeReq,
    SamplingParams,
    StatsReply,
    StatsReq,
    Timing,
    TokenizedGenerateReqInput,
    TokenRow,
)
from millstream.messages.details import LogprobParams, Logprobs, RowDetails, joined, no_logprobs
from millstream.observe.ledger import Ledger
from millstream.scheduler.admission import Limits
from millstream.scheduler.order import Order
from millstream.scheduler.scheduler import Scheduler
from millstream.scheduler.speculation import SpeculationOptions
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer
from tests.support.rows import token_rows

EOS = 2  # <|im_end|> of the scripted tokenizer
HIDDEN_SIZE = 2  # of the checking executor


@functools.cache
def tokenizer() -> Tokenizer:
    """The scripted tokenizer, loaded once."""
    return load_scripted_tokenizer()


def next_token(token_ids: Sequence[int], seed: int = 1) -> int:
    """What the checking executor samples: any fixed function of the sequence and the seed; now and then EOS."""
    state = len(token_ids) * 7919 + (seed - 1) * 104_729
    for token_id in token_ids[-5:]:
        state = (state * 31 + token_id + 1) % 1_000_003
    return EOS if state % 29 == 0 else 300 + state % 900


def next_allowed(allowed: NDArray[np.uint32], banned: Sequence[int], token_id: int) -> int:
    """The first id from `token_id` on, round the vocabulary, that a mask allows and that is not banned."""
    ids = np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little"))
    ids = ids[~np.isin(ids, banned)]
    return int(ids[np.searchsorted(ids, token_id) % len(ids)])


def embedded(embeds: NDArray[np.float32], position: int, token_id: int) -> bytes | int:
    """What stands at a position of a prompt of embeddings, or behind it."""
    return embeds[position].tobytes() if position < len(embeds) else token_id


def state_of(row: ForwardRow) -> NDArray[np.float32]:
    """The state that the checking executor gives: of the prompt's last place and its length."""
    last = row.token_ids[row.num_prompt_tokens - 1] if row.input_embeds is None else row.input_embeds[-1, 0]
    return np.array([last, row.num_prompt_tokens], np.float32)


def told_of(token_ids: Sequence[int], positions: Iterable[int], params: LogprobParams) -> Logprobs:
    """What the checking executor tells about the tokens at `positions`: any fixed function of all ids up to there."""
    table = no_logprobs()
    for position in positions:
        state = zlib.crc32(array("i", token_ids[: position + 1]).tobytes())
        table.chosen.append(-(state % 9973) / 1000)
        table.top_ids.append([(state + rank) % 1536 for rank in range(params.top)])
        table.top.append([-(state % 997) / 1000 - rank for rank in range(params.top)])
        table.asked.append([-(state % (701 + token_id)) / 100 for token_id in params.token_ids])
    return table


class CheckingExecutor:
    """Samples `next_token`, `burst(position)` tokens a step, and simulates the KV cache.

    Each position stores a hash of the prefix that was computed there; every forward checks all positions it may rely on.
    It goes on as long as it agrees with a row's draft. Its log probabilities are `told_of`. Under a mask it says the next id
    that is allowed, round the vocabulary, in place of its own.
    """

    def __init__(self, *, num_pages: int, page_size: int, burst: Callable[[int], int] = lambda position: 1) -> None:
        self.capabilities = Capabilities(
            vocab_size=1536,
            context_length=4096,
            num_pages=num_pages,
            page_size=page_size,
            eos_token_ids=frozenset({EOS}),
            hidden_size=HIDDEN_SIZE,
            has_logprobs=True,
            has_masks=True,
        )
        self._burst = burst
        self._kv: dict[tuple[int, int], int] = {}
        self.batches: list[list[tuple[str, int, int]]] = []
        self.banned: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        self.num_copies = 0
        self.fail_with: Exception | None = None
        self.fail_rids: set[str] = set()
        self.mute_rids: set[str] = set()  # these rows are told nothing
        self.told_positions: dict[str, list[int]] = defaultdict(list)  # of prompts
        self.nothing_for: set[str] = set()  # these rows have nothing yet

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Check the KV that each row relies on, write its part, sample."""
        self.batches.append([(row.rid, row.start, row.reach) for row in batch.rows])
        for row in batch.rows:
            for source, target in row.copies:
                self._copy(source, target)
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        output = ForwardOutput([self._row(row) for row in batch.rows])
        output.errors = {i: "bad row" for i, row in enumerate(batch.rows) if row.rid in self.fail_rids}
        output.hidden = {i: state_of(row) for i, row in enumerate(batch.rows) if row.gives_hidden}
        for index, row in enumerate(batch.rows):
            if row.logprobs is not None and row.rid not in self.mute_rids:
                self._add_logprobs(row, index, output, row.logprobs)
        return output

    def close(self) -> None:
        """Nothing is held."""

    def _add_logprobs(self, row: ForwardRow, index: int, output: ForwardOutput, params: LogprobParams) -> None:
        if new := output.token_ids[index]:
            length = len(row.token_ids)
            output.logprobs[index] = told_of([*row.token_ids, *new], range(length, length + len(new)), params)
        if positions := prompt_positions(row):
            self.told_positions[row.rid] += positions
            output.prompt_logprobs[index] = told_of(row.token_ids, positions, params)

    def _copy(self, source: int, target: int) -> None:
        self.num_copies += 1
        for offset in range(self.capabilities.page_size):
            self._kv[target, offset] = self._kv.get((source, offset), 0)

    def _row(self, row: ForwardRow) -> list[int]:
        size = self.capabilities.page_size
        assert 0 <= row.start < row.end <= len(row.token_ids) <= self.capabilities.context_length
        assert len(row.pages) * size >= row.reach
        assert row.sample or not row.draft
        assert len(set(row.pages)) == len(row.pages)
        prefix = 0
        for position, token_id in enumerate([*row.token_ids[: row.end], *row.draft]):
            prefix = hash((prefix, token_id if row.input_embeds is None else embedded(row.input_embeds, position, token_id)))
            place = (row.pages[position // size], position % size)
            if position >= row.start:
                self._kv[place] = prefix
            assert self._kv.get(place) == prefix, f"{row.rid} relies on position {position}, which holds another prefix"
        if not row.sample or row.rid in self.nothing_for:
            return []
        self.banned[row.rid].append(tuple(row.banned_token_ids))
        ids = list(row.token_ids)
        burst = self._burst(len(ids) - row.num_prompt_tokens)
        while True:
            token_id = next_token(ids, row.seed if row.sampling.temperature else 1)
            is_early = len(ids) - row.num_prompt_tokens < row.sampling.min_new_tokens
            banned = row.banned_token_ids if is_early else ()
            if row.allowed is not None:
                token_id = next_allowed(row.allowed, banned, token_id)
            ids.append(301 if token_id in banned else token_id)
            new = ids[len(row.token_ids) :]
            if len(new) >= burst and (len(new) > len(row.draft) or new != row.draft[: len(new)]):
                return new


class PiecesExecutor:
    """Gives every row the same steps, whatever the prompt: `steps[i]` is what follows once the steps before it were kept."""

    def __init__(self, steps: Sequence[Sequence[int]]) -> None:
        self.capabilities = Capabilities(
            vocab_size=1536, context_length=4096, num_pages=64, page_size=4, eos_token_ids=frozenset({EOS})
        )
        self._by_position = {}
        position = 0
        for step in steps:
            self._by_position[position] = list(step)
            position += len(step)

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Answer by position."""
        return ForwardOutput(
            [self._by_position[len(row.token_ids) - row.num_prompt_tokens] if row.sample else [] for row in batch.rows]
        )

    def close(self) -> None:
        """Nothing is held."""


class Outbox:
    """A sender that keeps what it was given."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.connection = 1  # 0: nobody reads

    def send(self, message: Any) -> int:
        """Keep it."""
        if self.connection:
            self.sent.append(message)
        return self.connection

    def connect(self) -> int:
        """The number that a test gave the connection."""
        return self.connection

    @property
    def receiver_pid(self) -> int:
        """Of the first detokenizer 100, of the second 200, ..."""
        return 100 * self.connection


class Clock:
    """Time that moves by one second a look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Desk:
    """One scheduler with everything around it."""

    def __init__(
        self,
        executor: Executor,
        *,
        share_prefixes: bool = True,
        order: Order | None = None,
        clock: Callable[[], float] | None = None,
        speculation: SpeculationOptions | None = None,
        num_pages: int | None = None,
        grammars: GrammarCompiler | None = None,
        jumps_forward: bool = True,
        **limits: Any,
    ) -> None:
        capabilities = executor.capabilities
        self.executor = executor
        self.to_detokenizer = Outbox()
        self.to_entry = Outbox()
        self._num_submitted = 0
        self._rids: dict[int, str] = {}  # by slot
        self.asked_entries: list[int] = []  # the workers that were sent something, one for each message in `to_entry`
        # `num_pages`: fewer than the executor has
        self.pool = KVPool(num_pages=num_pages or capabilities.num_pages, page_size=capabilities.page_size)
        defaults = {
            "max_running_requests": 8,
            "max_queued_requests": 64,
            "max_queued_tokens": 1 << 20,
            "chunked_prefill_size": 64,
            "vocab_size": capabilities.vocab_size,
            "hidden_size": capabilities.hidden_size,
            "has_grammars": grammars is not None,
            "context_length": min(capabilities.context_length, capabilities.num_pages * capabilities.page_size),
        }
        self.scheduler = Scheduler(
            executor=executor,
            tokenizer=tokenizer(),
            pool=self.pool,
            share_prefixes=share_prefixes,
            order=order,
            eos_token_ids=frozenset({EOS}),
            limits=Limits(**(defaults | limits)),
            to_detokenizer=self.to_detokenizer,
            to_entry=self._to_worker,
            speculation=speculation,
            grammars=grammars,
            jumps_forward=jumps_forward,
            ledger=Ledger("scheduler", strict=True),
            clock=clock or Clock(),
        )

    def _to_worker(self, entry: int) -> Outbox:
        self.asked_entries.append(entry)
        return self.to_entry

    def submit(
        self,
        rid: str,
        input_ids: Sequence[int] = (5, 6, 7),
        *,
        max_new: int = 4,
        namespace: str = "",
        deadline: float | None = None,
        progress: bool = False,
        entry: int = 0,
        call: str = "",
        seed: int = 1,
        priority: int = 0,
        wants_embedding: bool = False,
        input_embeds: bytes | None = None,
        is_probe: bool = False,
        logprobs: LogprobParams | None = None,
        **sampling: Any,
    ) -> None:
        """Hand over one request."""
        self._num_submitted += 1
        self._rids[self._num_submitted] = rid
        self.scheduler.handle(
            TokenizedGenerateReqInput(
                rid=rid,
                input_ids=list(input_ids),
                sampling=SamplingParams(seed=seed, **sampling),
                max_new_tokens=max_new,
                cache_namespace=namespace,
                deadline=deadline,
                progress=progress,
                slot=self._num_submitted,
                entry=entry,
                call=call,
                priority=priority,
                wants_embedding=wants_embedding,
                input_embeds=input_embeds,
                is_probe=is_probe,
                logprobs=logprobs,
                timing=Timing(),
            )
        )

    def abort(self, rid: str) -> None:
        """Hand over an abort."""
        self.scheduler.handle(AbortReq(rid))

    def pause(self, rid: str) -> None:
        """Hand over a pause."""
        self.scheduler.handle(PauseReq(rid))

    def resume(self, rid: str) -> None:
        """Hand over the end of a pause."""
        self.scheduler.handle(ResumeReq(rid))

    def step(self) -> bool:
        """One step and an audit."""
        more = self.scheduler.step()
        self.scheduler.audit()
        return more

    def run(self, max_steps: int = 10_000) -> int:
        """Step to the end; returns the number of steps."""
        for count in range(1, max_steps + 1):
            if not self.step():
                return count
        raise AssertionError(f"not done after {max_steps} steps")

    def stats(self) -> StatsReply:
        """Ask for a snapshot."""
        self.scheduler.handle(StatsReq(1))
        reply: StatsReply = self.to_detokenizer.sent.pop()
        return reply

    def rows(self, rid: str) -> list[TokenRow]:
        """All rows of a request so far."""
        batches = [message for message in self.to_detokenizer.sent if isinstance(message, BatchTokenIDOutput)]
        return [row for row in token_rows(batches) if row.rid == rid]

    def details(self, rid: str) -> RowDetails | None:
        """The details of all rows of a request so far, joined."""
        return joined([row.details for row in self.rows(rid)])

    def tokens(self, rid: str) -> list[int]:
        """All ids of a request so far."""
        return [token_id for row in self.rows(rid) for token_id in row.token_ids]

    def finish(self, rid: str) -> FinishReason | None:
        """Why a request ended; None while it has not. Checks that there is one final row and that it is the last."""
        rows = self.rows(rid)
        finals = [row for row in rows if row.finish is not None]
        assert len(finals) <= 1
        assert not finals or rows[-1] is finals[0]
        return finals[0].finish if finals else None

    def verdicts(self) -> list[tuple[int, AdmissionOutput]]:
        """All verdicts, with the workers they went to."""
        pairs = zip(self.asked_entries, self.to_entry.sent, strict=True)
        return [(entry, message) for entry, message in pairs if isinstance(message, AdmissionOutput)]

    def accepted(self) -> list[str]:
        """All rids that were admitted to the queue."""
        verdicts = [message for message in self.to_entry.sent if isinstance(message, AdmissionOutput)]
        return [self._rids[slot] for message in verdicts for slot in message.accepted]

    def rejected(self) -> list[Rejection]:
        """All refusals."""
        return [item for message in self.to_entry.sent if isinstance(message, AdmissionOutput) for item in message.rejected]


def desk(
    *, num_pages: int = 64, page_size: int = 4, share_prefixes: bool = True, **limits: int
) -> tuple[Desk, CheckingExecutor]:
    """A desk with an executor that checks its KV cache."""
    executor = CheckingExecutor(num_pages=num_pages, page_size=page_size)
    return Desk(executor, share_prefixes=share_prefixes, **limits), executor


def pieces(*steps: list[int]) -> Desk:
    """A desk where every request gets these steps."""
    return Desk(PiecesExecutor(steps))


def assert_nothing_held(at: Desk) -> None:
    """No request is here and every page is free."""
    stats = at.stats()
    assert (stats.scheduler_requests, stats.waiting, stats.running) == (0, 0, 0)
    assert stats.pages_free == stats.pages_total
    at.scheduler.audit()
