"""Rows and pages for an executor without a scheduler, and the least that a scheduler could do around it.

Prompts are random ids: what a step costs does not depend on which tokens it computes.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from millstream.execution.interface import Executor, ForwardBatch, ForwardRow
from millstream.messages.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass
class Sequence:
    """One request: its ids so far, its pages, and how many of its positions are in KV."""

    token_ids: list[int]
    pages: list[int]
    num_prompt_tokens: int
    computed: int = 0
    borrowed: int = 0  # pages at its beginning that belong to another

    def row(self, end: int) -> ForwardRow:
        """The row that computes up to `end`, and samples if nothing is left then."""
        is_last = end == len(self.token_ids)
        return ForwardRow("", self.token_ids, self.num_prompt_tokens, self.computed, end, self.pages, GREEDY, 0, is_last)


@dataclass
class Bench:
    """An executor under measurement, and which of its pages are free."""

    executor: Executor
    budget: int  # positions a step
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self._free = list(range(self.executor.capabilities.num_pages))
        self.dice.shuffle(self._free)  # as they are in a server after a while

    def sequence(self, prompt_tokens: int, new_tokens: int, prefix: Sequence | None = None) -> Sequence:
        """A random prompt with pages for all that it will become. Its first pages are those of `prefix`."""
        capabilities = self.executor.capabilities
        shared = len(prefix.pages) if prefix else 0
        count = -(-(prompt_tokens + new_tokens) // capabilities.page_size) - shared
        if count > len(self._free):
            raise SystemExit(f"{count} pages are needed and {len(self._free)} are free")
        pages = [self._free.pop() for _ in range(count)]
        ids = self.dice.choices(range(capabilities.vocab_size), k=prompt_tokens)
        if prefix is None:
            return Sequence(ids, pages, prompt_tokens)
        known = prefix.computed
        return Sequence(prefix.token_ids[:known] + ids[known:], prefix.pages + pages, prompt_tokens, known, shared)

    def free(self, sequence: Sequence) -> None:
        """Take its own pages back."""
        self._free += sequence.pages[sequence.borrowed :]

    def step(self, sequences: list[Sequence], ends: list[int]) -> float:
        """Compute each sequence up to its end; append what it sampled. Return milliseconds, the building of rows included."""
        start = time.perf_counter()
        batch = ForwardBatch([sequence.row(end) for sequence, end in zip(sequences, ends, strict=True)])
        output = self.executor.forward(batch)
        seconds = time.perf_counter() - start
        if output.errors:
            raise RuntimeError(f"the executor failed: {output.errors}")
        for sequence, end, drawn in zip(sequences, ends, output.token_ids, strict=True):
            sequence.computed = end
            sequence.token_ids += drawn
        return seconds * 1000

    def prefill(self, sequence: Sequence) -> float:
        """Compute a prompt in chunks of the budget. Return milliseconds."""
        total = 0.0
        while (left := len(sequence.token_ids) - sequence.computed) > 0 and sequence.computed < sequence.num_prompt_tokens:
            total += self.step([sequence], [sequence.computed + min(left, self.budget)])
        return total

    def rewind(self, sequence: Sequence, length: int) -> None:
        """Forget all tokens after `length`; the last of them is computed again."""
        del sequence.token_ids[length:]
        sequence.computed = length - 1


def decode_ms(bench: Bench, sequences: list[Sequence], steps: int) -> list[float]:
    """Milliseconds of each of `steps` decode steps of all sequences, from the ends of their prompts on."""
    for sequence in sequences:
        bench.rewind(sequence, sequence.num_prompt_tokens)
    return [bench.step(sequences, [len(sequence.token_ids) for sequence in sequences]) for _ in range(steps)]


def closed_loop(bench: Bench, *, clients: int, requests: int, prompt_tokens: int, shared_tokens: int, new_tokens: int) -> float:
    """Output tokens a second of `requests` requests, `clients` at a time: decode and prefill share each step's budget.

    What a server could reach that spends nothing on anything but the executor. `shared_tokens` begin every prompt, known in KV.
    """
    prefix = bench.sequence(shared_tokens, 0)
    if shared_tokens:
        bench.prefill(prefix)
    waiting = [bench.sequence(prompt_tokens, new_tokens, prefix) for _ in range(requests)]
    running: list[Sequence] = []
    start = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < clients:
            running.append(waiting.pop())
        chosen, ends = _plan(running, bench.budget)
        bench.step(chosen, ends)
        for sequence in [each for each in chosen if len(each.token_ids) == prompt_tokens + new_tokens]:
            running.remove(sequence)
            bench.free(sequence)
    seconds = time.perf_counter() - start
    bench.free(prefix)
    return requests * new_tokens / seconds


def _plan(running: list[Sequence], budget: int) -> tuple[list[Sequence], list[int]]:
    """Who takes part in the next step, and up to where: decodes first, then prompts, oldest first, while the budget lasts."""
    chosen: list[Sequence] = []
    ends: list[int] = []
    for sequence in sorted(running, key=lambda each: len(each.token_ids) - each.computed > 1):
        if budget > 0:
            chosen.append(sequence)
            ends.append(min(len(sequence.token_ids), sequence.computed + budget))
            budget -= ends[-1] - sequence.computed
    return chosen, ends
