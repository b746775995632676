"""GrammarCompiler and Matcher: what may follow next, as the scheduler follows one request's text through its grammar.

Only grammars that a worker has proven come here (`checker`). They are compiled once more, in a thread that holds no lock of
ours meanwhile, and kept: each request gets a copy, which takes microseconds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from millstream.errors import EngineError
from millstream.grammar.limits import COMPILER_STACK_BYTES, parser_limits
from millstream.grammar.thought import ThoughtMeter
from millstream.grammar.vocabulary import Vocabulary
from millstream.messages.grammar import ThoughtBudget

MAX_KNOWN = 32  # grammars; each knows what its texts have led to so far

Words = NDArray[np.uint32]


class Matcher:
    """One request's place in its grammar. `mask` has a bit for each token id, the lowest first."""

    __slots__ = ("_address", "_mask", "_matcher")

    def __init__(self, matcher: LLMatcher, num_words: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros(num_words, np.uint32)
        self._address = self._mask.ctypes.data

    def mask(self) -> Words:
        """The tokens that may follow, the ends of a text among them where it may end. Valid up to the next call.

        Raises:
            EngineError: the grammar has become too expensive to follow.
        """
        self._matcher.unsafe_compute_mask_ptr(self._address, self._mask.nbytes)
        self._check()
        return self._mask

    def forced(self, most: int) -> list[int]:
        """The next tokens, up to `most`, where nothing else can follow: each is the only one that its mask would allow.

        Raises:
            EngineError: the grammar has become too expensive to follow.
        """
        made: list[int] = self._matcher.compute_ff_tokens()
        self._check()
        return made[:most]

    def take(self, token_ids: Sequence[int]) -> None:
        """Go on behind these tokens.

        Raises:
            EngineError: they are not what the masks allowed.
        """
        self._matcher.consume_tokens(list(token_ids))
        self._check()

    @property
    def is_ended(self) -> bool:
        """Whether the text is complete and nothing can follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineError(f"The grammar cannot be followed: {self._matcher.get_error().strip()}")


class BudgetedMatcher(Matcher):
    """The same, with a thought that is ended when its tokens are used up. `tokens` has the bytes of every id.

    The closing tag is written between two characters only: a character that is under way is completed first.
    """

    __slots__ = ("_budget", "_ending", "_meter", "_tokens")

    def __init__(self, matcher: LLMatcher, num_words: int, budget: ThoughtBudget, tokens: Sequence[bytes]) -> None:
        super().__init__(matcher, num_words)
        self._budget = budget
        self._meter = ThoughtMeter(budget.marks)
        self._tokens = tokens
        self._ending: list[int] = []  # what is left to write of the closing tag

    def mask(self) -> Words:
        """See `Matcher`."""
        mask = super().mask()
        if not self._ending and self._meter.is_inside and self._meter.count >= self._budget.tokens:
            first = self._budget.end_ids[0]
            if mask[first // 32] >> np.uint32(first % 32) & 1:
                self._ending = list(self._budget.end_ids)
        if self._ending:
            mask.fill(0)
            mask[self._ending[0] // 32] = np.uint32(1) << np.uint32(self._ending[0] % 32)
        return mask

    def forced(self, most: int) -> list[int]:
        """See `Matcher`. Nothing is forced in a thought but its end, which the mask leaves alone."""
        return [] if self._ending or self._meter.is_inside else super().forced(most)

    def take(self, token_ids: Sequence[int]) -> None:
        """See `Matcher`."""
        super().take(token_ids)
        if self._meter.is_over:
            return
        for token_id in token_ids:
            self._meter.take(self._tokens[token_id])
            if self._ending:
                del self._ending[0]


class GrammarCompiler:
    """Compiles in a thread of its own, one grammar after another."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.compiled()
        self._tokens = vocabulary.tokens
        self._num_words = vocabulary.num_words
        self._known: OrderedDict[str, LLMatcher] = OrderedDict()
        self._pending: dict[str, Future[LLMatcher]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def matcher(self, grammar: str, budget: ThoughtBudget | None = None) -> Matcher | None:
        """A matcher at the start of `grammar`, with the thought in it held to `budget`; None while that compiles.

        Raises:
            EngineError: it does not compile.
        """
        known = self._known.get(grammar)
        if known is None:
            job = self._pending.get(grammar) or self._begin(grammar)
            if not job.done():
                return None
            del self._pending[grammar]
            known = job.result()
            if known.is_error():
                raise EngineError(f"The grammar does not compile: {known.get_error().strip()}")
            self._known[grammar] = known
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(grammar)
        if budget is not None:
            return BudgetedMatcher(known.deep_copy(), self._num_words, budget, self._tokens)
        return Matcher(known.deep_copy(), self._num_words)

    def forget_all_but(self, wanted: Set[str]) -> None:
        """Nobody waits for any other grammar: what is not begun never will be, and what was made is let go."""
        for grammar in self._pending.keys() - wanted:
            self._pending.pop(grammar).cancel()

    def _begin(self, grammar: str) -> Future[LLMatcher]:
        if self._thread is None:
            self._thread = _thread()
        job = self._pending[grammar] = self._thread.submit(self._compile, grammar)
        return job

    def _compile(self, grammar: str) -> LLMatcher:
        made = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
        if not made.is_error():
            made.compute_bitmask()  # the first mask costs more than all that follow
        return made


def _thread() -> ThreadPoolExecutor:
    """A thread whose stack holds what fitted a worker's."""
    before = threading.stack_size(COMPILER_STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        pool.submit(int).result()  # threads are made by their first work
    finally:
        threading.stack_size(before)
    return pool
