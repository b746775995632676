"""Req: the table of moves."""

from __future__ import annotations

import itertools

import pytest

from millstream.errors import InvariantError
from millstream.messages import SamplingParams, Timing, TokenizedGenerateReqInput, Usage
from millstream.observe.ledger import Ledger
from millstream.scheduler.finish import EndRule
from millstream.scheduler.state import NEXT, Phase, Req
from tests.unit.scheduler.harness import tokenizer


def make_req() -> Req:
    sampling = SamplingParams(seed=9)
    message = TokenizedGenerateReqInput(rid="r", input_ids=[1, 2], sampling=sampling, max_new_tokens=4, timing=Timing())
    rule = EndRule(sampling=sampling, max_new_tokens=4, eos_token_ids=frozenset(), tokenizer=tokenizer())
    return Req(message, rule, Ledger("test").open("r"))


def test_a_finished_request_goes_nowhere() -> None:
    assert NEXT[Phase.FINISHED] == frozenset()


@pytest.mark.parametrize(("source", "target"), list(itertools.product(Phase, Phase)))
def test_only_listed_moves_are_possible(source: Phase, target: Phase) -> None:
    req = make_req()
    req.phase = source
    if target in NEXT[source]:
        req.move(target)
        assert req.phase is target
    else:
        with pytest.raises(InvariantError):
            req.move(target)
        assert req.phase is source


def test_a_new_request_counts_its_prompt_and_nothing_else() -> None:
    req = make_req()
    assert req.usage == Usage(2, 0, 0)
    assert req.row.seed == 9
    assert req.row.token_ids is req.token_ids
