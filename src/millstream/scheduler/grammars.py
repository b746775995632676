"""Grammars: requests that wait for theirs to compile, and the masks of those that run. Owned by the scheduler.

A request joins the queue once it has its matcher, so no step ever waits for a grammar and no row runs without its mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from millstream.errors import EngineError
from millstream.execution.interface import ForwardRow
from millstream.grammar.matcher import GrammarCompiler
from millstream.scheduler.policy import Work
from millstream.scheduler.state import Req

POLL_S = 0.001  # an idle scheduler looks this often whether a grammar has compiled


class Grammars:
    """`compiler` is None where the executor or the tokenizer allow no grammars: admission then refuses them."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler

    def give(self, req: Req) -> bool:
        """Give a request its matcher, if it needs one; whether it has all it needs.

        Raises:
            EngineError: its grammar does not compile.
        """
        grammar = req.sampling.grammar
        if grammar is None or req.matcher is not None:
            return True
        if self._compiler is None or not grammar.checked:
            raise EngineError("The grammar was not checked.")
        req.matcher = self._compiler.matcher(grammar.checked, grammar.budget)
        return req.matcher is not None

    def give_all(self, compiling: Iterable[Req]) -> Iterator[tuple[Req, str | None]]:
        """Those who have theirs now, or why they never will."""
        for req in list(compiling):
            try:
                if self.give(req):
                    yield req, None
            except EngineError as error:
                yield req, error.message

    def mask(self, work: Sequence[Work]) -> list[tuple[Req, str]]:
        """Give each row of a step that draws the tokens its grammar allows; return those who have none to give, and why."""
        failed: list[tuple[Req, str]] = []
        for req, _, _ in work:
            if req.matcher is None:
                continue
            try:
                req.row.allowed = req.matcher.mask() if req.row.sample else None
            except EngineError as error:
                failed.append((req, error.message))
            else:
                _spare_the_end(req.row)
        return failed


def _spare_the_end(row: ForwardRow) -> None:
    """Where the grammar leaves nothing but the end, an end before `min_new_tokens` is no longer banned."""
    if row.allowed is None or not row.banned_token_ids:
        return
    rest = row.allowed.copy()
    banned = np.asarray(row.banned_token_ids)
    banned = banned[banned < 32 * len(rest)]
    np.bitwise_and.at(rest, banned // 32, ~(np.uint32(1) << (banned % 32).astype(np.uint32)))
    if not rest.any():
        row.banned_token_ids = ()
