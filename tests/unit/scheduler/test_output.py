"""StepOutput: rows, and decode options with the first of them."""

from __future__ import annotations

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


def make_req(sampling: SamplingParams) -> Req:
    message = TokenizedGenerateReqInput(rid="r", input_ids=[1, 2], sampling=sampling, max_new_tokens=4, timing=Timing())
    rule = EndRule(sampling=sampling, max_new_tokens=4, eos_token_ids=frozenset(), tokenizer=tokenizer())
    return Req(message, rule, Ledger("test").open("r"))


def test_options_come_once_with_the_first_row_and_timing_with_the_last() -> None:
    output = StepOutput()
    req = make_req(SamplingParams(skip_special_tokens=False, no_stop_trim=True))
    req.token_ids.append(7)
    output.add(req, [7], held_back=1)
    options = DecodeOptions("r", skip_special_tokens=False, no_stop_trim=True)
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
