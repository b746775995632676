"""ReqState's moves."""

from __future__ import annotations

import itertools

import pytest

from millstream.entry.state import Phase, ReqState
from millstream.errors import InvariantError
from millstream.messages import GenerateReqInput, SamplingParams, Timing
from millstream.observe.ledger import Ledger

ALLOWED = {
    (Phase.CREATED, Phase.DISPATCHED),
    (Phase.CREATED, Phase.FINISHED),
    (Phase.DISPATCHED, Phase.RECEIVING),
    (Phase.DISPATCHED, Phase.FINISHED),
    (Phase.RECEIVING, Phase.FINISHED),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Phase, Phase)))
def test_only_the_listed_moves_are_possible(before: Phase, after: Phase) -> None:
    state = ReqState(GenerateReqInput(rid="r", sampling=SamplingParams(), timing=Timing()), Ledger("test").open("r"))
    state.phase = before
    if (before, after) in ALLOWED:
        state.move(after)
        assert state.phase is after
    else:
        with pytest.raises(InvariantError):
            state.move(after)


def test_only_a_sent_and_unfinished_request_needs_an_abort() -> None:
    state = ReqState(GenerateReqInput(rid="r", sampling=SamplingParams(), timing=Timing()), Ledger("test").open("r"))
    seen = []
    for phase in (Phase.DISPATCHED, Phase.RECEIVING, Phase.FINISHED):
        seen.append(state.dispatched)
        state.move(phase)
    assert [*seen, state.dispatched] == [False, True, True, False]
