"""Any order of arrivals, pauses, aborts and steps, on any pool: one end each, the same tokens as alone, nothing left behind."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from millstream.messages import Abort, BatchTokenIDOutput, FinishReason, Length, Stop
from millstream.messages.details import LogprobParams, no_logprobs
from millstream.scheduler.order import Order, SchedulePolicy
from millstream.scheduler.speculation import SpeculationOptions
from tests.unit.scheduler.harness import EOS, HIDDEN_SIZE, CheckingExecutor, Desk, next_token, tokenizer, told_of
from tests.unit.scheduler.test_deadlines import Time

STEMS = [[10] * 40, [*range(300, 340)], [*range(300, 316), *range(10, 34)]]  # the last two share 16 tokens


@dataclass
class Expected:
    """What a request should come to if nobody aborts it."""

    tokens: list[int]
    finish: FinishReason
    aborted: bool = False
    deadline: float = math.inf
    prompt: list[int] = field(default_factory=list)
    logprobs: LogprobParams | None = None
    shares_logprobs: bool = False  # with other choices of its call


def alone(prompt: list[int], *, max_new: int, min_new: int, stop: tuple[str, ...], ignore_eos: bool, seed: int = 1) -> Expected:
    """The definition, token by token, with the whole text decoded anew after each."""
    if max_new == 0:
        return Expected([], Length(0), prompt=prompt)
    ids = list(prompt)
    skipped_until = 0  # matches that end at or before this character came too early
    while True:
        token_id = next_token(ids, seed)
        if not ignore_eos and token_id == EOS and len(ids) - len(prompt) < min_new:
            token_id = 301
        ids.append(token_id)
        made = ids[len(prompt) :]
        if token_id == EOS and not ignore_eos:
            return Expected(made, Stop(EOS), prompt=prompt)
        decoder = tokenizer().incremental()
        text = decoder.push(made)
        found = [
            (start + len(s), -len(s), s)
            for s in stop
            for start in range(len(text))
            if text.startswith(s, start) and start + len(s) > skipped_until
        ]
        if found and len(made) >= min_new:
            return Expected(made, Stop(min(found)[2]), prompt=prompt)
        if len(made) < min_new:
            skipped_until = len(text)
        if len(made) == max_new:
            return Expected(made, Length(max_new), prompt=prompt)


class Guesser:
    """In place of `NgramIndex`: knows what comes, and is wrong at every fifth place."""

    def __init__(self, token_ids: list[int], *, shortest: int, longest: int) -> None:
        self._ids = token_ids

    def propose(self, count: int) -> list[int]:
        ids = list(self._ids)
        for _ in range(count):
            token_id = next_token(ids)
            ids.append(token_id + 1 if len(ids) % 5 == 0 else token_id)
        return ids[len(self._ids) :]


class SchedulerMachine(RuleBasedStateMachine):
    """Random life of one scheduler."""

    @initialize(
        num_pages=st.integers(6, 40),
        page_size=st.sampled_from([1, 4, 5]),
        chunk=st.integers(9, 40),
        max_running=st.integers(1, 8),
        bursts=st.lists(st.integers(1, 4), min_size=1, max_size=5),
        share=st.booleans(),
        policy=st.sampled_from(["fcfs", "lpm"]),
        oldest_every=st.sampled_from([1, 2, 8]),
        most_guesses=st.sampled_from([0, 0, 1, 3, 8]),
    )
    def start(
        self,
        num_pages: int,
        page_size: int,
        chunk: int,
        max_running: int,
        bursts: list[int],
        share: bool,
        policy: SchedulePolicy,
        oldest_every: int,
        most_guesses: int,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("millstream.scheduler.speculation.NgramIndex", Guesser)
        self.clock = Time()
        self.executor = CheckingExecutor(
            num_pages=num_pages, page_size=page_size, burst=lambda position: bursts[position % len(bursts)]
        )
        self.desk = Desk(
            self.executor,
            share_prefixes=share,
            order=Order(policy, oldest_every=oldest_every),
            chunked_prefill_size=chunk,
            max_running_requests=max_running,
            max_queued_requests=6,
            clock=self.clock,
            speculation=SpeculationOptions(num_draft_tokens=most_guesses),
        )
        self.context = num_pages * page_size
        self.share = share
        self.expected: dict[str, Expected] = {}
        self.paused: set[str] = set()
        self.max_running = max_running
        self.last_batch = 0
        self.chunk = chunk
        self.most_burst = max(bursts)

    @rule(
        stem=st.sampled_from(STEMS),
        length=st.integers(1, 40),
        tail=st.lists(st.integers(300, 303), max_size=6),
        max_new=st.integers(0, 24),
        min_new=st.integers(0, 12),
        ignore_eos=st.booleans(),
        with_stop=st.booleans(),
        namespace=st.sampled_from(["", "", "other"]),
        timeout=st.sampled_from([None, None, 1, 3]),
        progress=st.booleans(),
        choices=st.sampled_from([1, 1, 2, 4]),
        priority=st.sampled_from([0, 0, 0, -1, 1, 7]),
        logprobs=st.sampled_from([None, None, LogprobParams(top=2), LogprobParams(top=1, token_ids=(5,), prompt_start=0)]),
        prompt_start=st.integers(0, 46),
        embeds_seed=st.sampled_from([None, None, None, 1, 2]),
    )
    def submit(
        self,
        stem: list[int],
        length: int,
        tail: list[int],
        max_new: int,
        min_new: int,
        ignore_eos: bool,
        with_stop: bool,
        namespace: str,
        timeout: int | None,
        progress: bool,
        choices: int,
        priority: int,
        logprobs: LogprobParams | None,
        prompt_start: int,
        embeds_seed: int | None,
    ) -> None:
        prompt = stem[:length] + tail
        embeds = None
        if embeds_seed is not None:
            prompt = [0] * len(prompt)
            embeds = np.random.default_rng(embeds_seed).random((len(prompt), HIDDEN_SIZE), np.float32).tobytes()
            namespace += f"embeds {zlib.crc32(embeds)}"
        if logprobs is not None and logprobs.prompt_start is not None:
            logprobs = structs.replace(logprobs, prompt_start=min(prompt_start, len(prompt)))
        max_new = min(max_new, self.context - len(prompt))
        if max_new < 0:
            return
        min_new = min(min_new, max_new)
        stop: tuple[str, ...] = ("e", "in", "та") if with_stop else ()
        call = f"c{len(self.expected)}" if choices > 1 else ""
        for choice in range(choices):
            rid = f"r{len(self.expected)}"
            self.desk.submit(
                rid,
                prompt,
                max_new=max_new,
                namespace=namespace,
                deadline=None if timeout is None else self.clock.now + timeout,
                progress=progress,
                call=call,
                seed=1 + choice,
                priority=priority,
                logprobs=logprobs,
                wants_embedding=max_new == 0,
                input_embeds=embeds,
                min_new_tokens=min_new,
                ignore_eos=ignore_eos,
                stop=stop,
            )
            self.expected[rid] = alone(
                prompt, max_new=max_new, min_new=min_new, stop=stop, ignore_eos=ignore_eos, seed=1 + choice
            )
            self.expected[rid].logprobs, self.expected[rid].shares_logprobs = logprobs, choices > 1
            if timeout is not None:
                self.expected[rid].deadline = self.clock.now + timeout

    @precondition(lambda self: bool(self.expected))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.expected)))
        if rid in self.desk.scheduler._live:
            self.expected[rid].aborted = True
        self.desk.abort(rid)

    @precondition(lambda self: bool(self.expected))
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.expected)))
        self.paused.add(rid)
        self.desk.pause(rid)

    @precondition(lambda self: bool(self.expected))
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.expected)))
        self.paused.discard(rid)
        self.desk.resume(rid)

    @rule()
    def let_time_pass(self) -> None:
        """A second, and the step that follows."""
        self.clock.now += 1
        for rid in self.desk.scheduler._live:
            if self.expected[rid].deadline <= self.clock.now:
                self.expected[rid].aborted = True
        self.desk.step()

    @rule(nothing=st.sets(st.integers(0, 5), max_size=2), count=st.integers(1, 6))
    def step(self, nothing: set[int], count: int) -> None:
        self.executor.nothing_for = {f"r{number}" for number in nothing}
        for _ in range(count):
            self.desk.step()

    @invariant()
    def the_books_agree(self) -> None:
        if hasattr(self, "desk"):
            self.desk.scheduler.audit()

    @invariant()
    def no_step_is_larger_than_its_budget(self) -> None:
        if hasattr(self, "desk"):
            for batch in self.executor.batches[self.last_batch :]:
                assert sum(end - start for _, start, end in batch) <= max(self.chunk, len(batch) * self.most_burst + 1)
                assert len({rid for rid, _, _ in batch}) == len(batch) <= self.max_running
                assert not self.paused & {rid for rid, _, _ in batch}
            self.last_batch = len(self.executor.batches)

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        self.patch.undo()
        self.executor.nothing_for = set()
        self.desk.run()
        live = set(self.desk.scheduler._live)
        assert live <= self.paused  # nobody waits for the paused
        for rid in live:
            self.desk.resume(rid)
        self.desk.run()
        accepted = self.desk.accepted()
        rejected = [item.rid for item in self.desk.rejected()]
        assert sorted(accepted + rejected) == sorted(self.expected)
        for rid in rejected:
            assert not self.desk.rows(rid)
        for rid in accepted:
            self.check_end(rid, self.expected[rid])
        opened = [o.rid for m in self.desk.to_detokenizer.sent if isinstance(m, BatchTokenIDOutput) for o in m.opened]
        assert sorted(opened) == sorted(accepted)
        stats = self.desk.stats()
        assert (stats.scheduler_requests, stats.waiting, stats.running, stats.paused) == (0, 0, 0, 0)
        assert stats.pages_free == stats.pages_total
        assert not self.desk.scheduler._families._by_call
        assert self.share or stats.pages_cached == 0
        assert (len(self.desk.scheduler._deadlines), len(self.desk.scheduler._progress)) == (0, 0)
        assert len(self.desk.scheduler._speculation) == 0
        assert stats.accepted_draft_tokens <= stats.draft_tokens

    def check_end(self, rid: str, expected: Expected) -> None:
        tokens = self.desk.tokens(rid)
        finish = self.desk.finish(rid)
        assert finish is not None
        if expected.aborted:
            assert isinstance(finish, Abort)
            assert tokens == expected.tokens[: len(tokens)]
        else:
            assert tokens == expected.tokens
            assert finish == expected.finish
        last = self.desk.rows(rid)[-1]
        assert last.usage.completion_tokens == len(tokens)
        assert last.usage.prompt_tokens == len(expected.prompt)
        first = next((start for batch in self.executor.batches for each, start, _ in batch if each == rid), 0)
        assert last.usage.cached_tokens == first < len(expected.prompt)
        self.check_told(rid, expected, tokens, first)

    def check_told(self, rid: str, expected: Expected, tokens: list[int], cached_tokens: int) -> None:
        """Every token has its own log probabilities, and every position of the prompt, once, in the first row."""
        params, details = expected.logprobs, self.desk.details(rid)
        if details is not None and isinstance(self.desk.finish(rid), Length):
            assert (details.embedding is not None) == (not tokens)  # what makes nothing was asked for its state
        if params is None:
            assert details is None or details.embedding is not None
            return
        prompt, length = expected.prompt, len(expected.prompt)
        assert (details and details.logprobs or no_logprobs()) == told_of(
            prompt + tokens, range(length, length + len(tokens)), params
        )
        told = [row.details.prompt_logprobs for row in self.desk.rows(rid) if row.details is not None]
        assert not any(told[1:])
        if params.prompt_start is None:
            assert told[:1] in ([], [None])
        elif tokens:
            assert told[0] == told_of(prompt, range(max(1, params.prompt_start), length), params)
            if not expected.shares_logprobs:
                positions = self.executor.told_positions[rid]
                assert sorted(positions) == [*range(max(1, params.prompt_start), length)]
                assert not positions or cached_tokens < positions[0]


SchedulerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSchedulerMachine = SchedulerMachine.TestCase
