"""Grammars: requests that wait for theirs to compile, the masks of those that run, and what their texts are forced to say.

Owned by the scheduler. A request joins the queue once it has its matcher, so no step ever waits for a grammar and no row runs
without its mask.

Jump-forward: where a grammar leaves one way on, its tokens are the request's without a step. They are those that would have
been drawn, for each is the only one that its mask allows, and the next draw computes them all. A step takes no more of them
than it has tokens for. A request that asks for log probabilities makes them one a step: each needs the logits before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from millstream.errors import EngineError
from millstream.execution.interface import ForwardRow
from millstream.grammar.matcher import GrammarCompiler
from millstream.messages import Stop
from millstream.scheduler.finish import Verdict
from millstream.scheduler.policy import Work
from millstream.scheduler.state import Req

POLL_S = 0.001  # an idle scheduler looks this often whether a grammar has compiled


class Followed(NamedTuple):
    """What a step brought a request, with all that is forced behind it."""

    new_ids: Sequence[int]
    verdict: Verdict  # on all of them
    is_ended: bool  # the grammar allows nothing more


class Grammars:
    """Of all requests.

    Args:
        compiler: None where the executor or the tokenizer allow no grammars: admission then refuses them.
        step_tokens: of one step; what is forced must fit beside a token for each row. 0: nothing is appended without a step.
    """

    def __init__(self, compiler: GrammarCompiler | None, step_tokens: int) -> None:
        self.num_forced = 0  # tokens that were appended
        self._compiler = compiler
        self._step_tokens = step_tokens
        self._room = 0  # tokens that may be appended behind this step, computed in the next

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
        """Those who have theirs now, or why they never will. Nobody else waits for a grammar."""
        all_of_them = list(compiling)
        if self._compiler is not None:
            self._compiler.forget_all_but({req.sampling.grammar.checked for req in all_of_them if req.sampling.grammar})
        for req in all_of_them:
            try:
                if self.give(req):
                    yield req, None
            except EngineError as error:
                yield req, error.message

    def mask(self, work: Sequence[Work]) -> list[tuple[Req, str]]:
        """Give each row of a step that draws the tokens its grammar allows; return those who have none to give, and why."""
        failed: list[tuple[Req, str]] = []
        self._room = self._step_tokens - len(work)
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

    def follow(self, req: Req, new_ids: Sequence[int], verdict: Verdict, *, may_jump: bool) -> Followed:
        """Go on in a request's grammar behind what a step brought it, which is `new_ids` with a verdict.

        A stop ends a request before its grammar does.

        Raises:
            EngineError: the grammar cannot be followed.
        """
        matcher = req.matcher
        if matcher is None or isinstance(verdict.finish, Stop):
            return Followed(new_ids, verdict, False)
        matcher.take(new_ids)
        if may_jump and verdict.finish is None and req.logprobs is None and self._room > 0 and not matcher.is_ended:
            forced = matcher.forced(self._room)
            if forced:
                verdict = req.end_rule.settle(forced, req.num_output_tokens + len(new_ids))
                forced = forced[: verdict.num_kept]
                self._room -= len(forced)
                self.num_forced += len(forced)
                new_ids = [*new_ids, *forced]
                if isinstance(verdict.finish, Stop):
                    return Followed(new_ids, verdict, False)
                matcher.take(forced)
        return Followed(new_ids, verdict, matcher.is_ended)


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
