"""StepOutput: rows, and decode options with the first of them."""

from __future__ import annotations

import pytest

from millstream.messages import (
    BatchTokenIDOutput,
    DecodeOptions,
    Length,
    SamplingParams,
    Timing,
    TokenizedGenerateReqInput,
    TokenRow,
    Usage,
)
from millstream.observe.ledger import Ledger
from millstream.scheduler.finish import EndRule
from millstream.scheduler.output import StepOutput
from millstream.scheduler.state import Req
from tests.unit.scheduler.harness import tokenizer


def make_req(sampling: SamplingParams, slot: int = 5) -> Req:
    message = TokenizedGenerateReqInput(rid="r", input_ids=[1, 2], sampling=sampling, max_new_tokens=4, timing=Timing())
    rule = EndRule(sampling=sampling, max_new_tokens=4, eos_token_ids=frozenset(), tokenizer=tokenizer())
    return Req(message, rule, Ledger("test").open("r"), slot)


def test_options_come_once_with_the_first_row_and_timing_with_the_last() -> None:
    output = StepOutput()
    req = make_req(SamplingParams(skip_special_tokens=False, no_stop_trim=True))
    req.token_ids.append(7)
    output.add(req, [7], held_back=1)
    options = DecodeOptions("r", 5, skip_special_tokens=False, no_stop_trim=True)
    assert output.take() == BatchTokenIDOutput([TokenRow("r", [7], Usage(2, 1), 1)], [options])
    output.add(req, [], finish=Length(4))
    assert output.take() == BatchTokenIDOutput([TokenRow("r", [], Usage(2, 1), 0, Length(4), req.timing)], [])


def test_nothing_made_is_nothing_sent() -> None:
    assert StepOutput().take() is None


def test_a_row_keeps_its_ids_whatever_becomes_of_the_list() -> None:
    output = StepOutput()
    ids = [7]
    output.add(make_req(SamplingParams()), ids)
    ids.append(8)
    batch = output.take()
    assert batch is not None
    assert batch.rows[0].token_ids == [7]


def test_rows_that_only_go_on_travel_in_columns_one_for_each_number_of_tokens() -> None:
    output = StepOutput()
    reqs = [make_req(SamplingParams(), slot) for slot in range(3)]
    for req in reqs:
        output.add(req, [1])
    output.take()
    for req, ids in zip(reqs, ([7], [8, 9], [10]), strict=True):
        output.add(req, ids)
    batch = output.take()
    assert batch is not None
    assert (batch.rows, batch.opened) == ([], [])
    assert [list(columns.rows()) for columns in batch.columns] == [[(0, [7]), (2, [10])], [(1, [8, 9])]]
    assert output.take() is None


def test_an_id_that_fits_no_column_leaves_the_others_whole() -> None:
    output = StepOutput()
    reqs = [make_req(SamplingParams(), slot) for slot in range(3)]
    for req in reqs:
        output.add(req, [1])
    output.take()
    output.add(reqs[0], [7])
    with pytest.raises(OverflowError):
        output.add(reqs[1], [2**31])
    output.add(reqs[2], [8])
    batch = output.take()
    assert batch is not None
    assert [list(columns.rows()) for columns in batch.columns] == [[(0, [7]), (2, [8])]]


def test_a_row_that_says_more_is_a_full_one() -> None:
    output = StepOutput()
    req = make_req(SamplingParams())
    output.add(req, [1])
    output.take()
    output.add(req, [7], held_back=2)
    batch = output.take()
    assert batch is not None
    assert (batch.rows[0].held_back, batch.columns) == (2, [])
