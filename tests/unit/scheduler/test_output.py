"""StepOutput: rows, and decode options with the first of them."""

from __future__ import annotations

import pytest

from millstream.messages import (
    BatchTokenIDOutput,
    DecodeOptions,
    Delivered,
    Length,
    Received,
    Replay,
    ReplayedRequest,
    ReplayReq,
    SamplingParams,
    Stop,
    Timing,
    TokenizedGenerateReqInput,
    TokenRow,
    Usage,
)
from millstream.observe.ledger import Ledger
from millstream.scheduler.finish import EndRule
from millstream.scheduler.output import StepOutput
from millstream.scheduler.state import Req
from tests.unit.scheduler.harness import Outbox, tokenizer


def make_req(sampling: SamplingParams, slot: int = 5, entry: int = 0, max_new: int = 4) -> Req:
    message = TokenizedGenerateReqInput(
        rid="r", input_ids=[1, 2], sampling=sampling, max_new_tokens=max_new, slot=slot, entry=entry, timing=Timing()
    )
    rule = EndRule(sampling=sampling, max_new_tokens=max_new, eos_token_ids=frozenset(), tokenizer=tokenizer())
    return Req(message, rule, Ledger("test").open("r"), slot)


def speak(output: StepOutput, req: Req, token_id: int) -> None:
    """A step in which `req` makes one token."""
    req.token_ids.append(token_id)
    output.add(req, [token_id])
    output.send()


def test_options_come_once_with_the_first_row_and_timing_with_the_last() -> None:
    outbox = Outbox()
    output = StepOutput(outbox)
    req = make_req(SamplingParams(skip_special_tokens=False, no_stop_trim=True))
    req.token_ids.append(7)
    output.add(req, [7], held_back=1)
    output.send()
    options = DecodeOptions("r", 5, skip_special_tokens=False, no_stop_trim=True)
    assert outbox.sent.pop() == BatchTokenIDOutput([TokenRow("r", [7], Usage(2, 1), 1)], [options])
    output.add(req, [], finish=Length(4))
    output.send()
    assert outbox.sent.pop() == BatchTokenIDOutput([TokenRow("r", [], Usage(2, 1), 0, Length(4), req.timing)], [])


def test_nothing_made_is_nothing_sent() -> None:
    outbox = Outbox()
    StepOutput(outbox).send()
    assert outbox.sent == []


def test_a_row_keeps_its_ids_whatever_becomes_of_the_list() -> None:
    outbox = Outbox()
    output = StepOutput(outbox)
    ids = [7]
    output.add(make_req(SamplingParams()), ids)
    ids.append(8)
    output.send()
    assert outbox.sent[0].rows[0].token_ids == [7]


def test_rows_of_a_request_that_the_detokenizer_does_not_know_are_kept_for_the_replay() -> None:
    outbox = Outbox()
    output = StepOutput(outbox)
    req = make_req(SamplingParams(no_stop_trim=True))
    speak(output, req, 7)
    outbox.connection = 2  # the detokenizer was replaced; this is found out with the next send
    speak(output, req, 8)
    outbox.sent.clear()
    speak(output, req, 9)
    assert outbox.sent == []
    output.replay(ReplayReq([Received("r", 1, 5), Received("unknown", 0, 0)], 200), {"r": req})
    options = DecodeOptions("r", 5, no_stop_trim=True)
    assert outbox.sent == [Replay([ReplayedRequest(options, TokenRow("r", [7, 8, 9], Usage(2, 3)), 1, 5)])]
    outbox.sent.clear()
    output.replay(ReplayReq([Received("r", 1, 5)], 200), {"r": req})
    assert outbox.sent == []  # once is enough
    speak(output, req, 10)
    assert [list(columns.rows()) for columns in outbox.sent[-1].columns] == [[(5, [10])]]


def test_a_first_row_that_was_lost_is_replayed_and_one_that_was_not_is_not() -> None:
    outbox = Outbox()
    output = StepOutput(outbox)
    lost, waiting = make_req(SamplingParams()), make_req(SamplingParams())
    outbox.connection = 0
    speak(output, lost, 7)
    outbox.connection = 1
    output.replay(ReplayReq([Received("r", 0, 0)], 100), {"r": lost})
    assert outbox.sent == [Replay([ReplayedRequest(DecodeOptions("r", 5), TokenRow("r", [7], Usage(2, 1)), 0, 0)])]
    output.replay(ReplayReq([Received("r", 0, 0)], 100), {"r": waiting})  # it has no row yet
    speak(output, waiting, 7)
    output.replay(ReplayReq([Received("r", 0, 0)], 100), {"r": waiting})  # its first went to the one that is there
    assert len(outbox.sent) == 2


def test_a_request_that_has_ended_is_kept_until_its_entry_has_its_final_row() -> None:
    outbox = Outbox()
    output = StepOutput(outbox)
    req = make_req(SamplingParams(), entry=3)
    speak(output, req, 7)
    req.token_ids.append(8)
    output.add(req, [8], held_back=2, finish=Stop("x"))
    output.send()
    outbox.sent.clear()
    outbox.connection = 2
    output.replay(ReplayReq([Received("r", 1, 1)], 200, entry=4), {})
    assert outbox.sent == []  # another worker's request
    output.replay(ReplayReq([Received("r", 1, 1)], 200, entry=3), {"r": make_req(SamplingParams(), entry=4)})
    row = TokenRow("r", [7, 8], Usage(2, 2), 2, Stop("x"), req.timing)
    assert outbox.sent == [Replay([ReplayedRequest(DecodeOptions("r", 5, entry=3), row, 1, 1)])]
    assert output.num_undelivered == 1
    output.confirm(Delivered(["r"], entry=4))
    assert output.num_undelivered == 1
    output.confirm(Delivered(["r", "never"], entry=3))
    assert output.num_undelivered == 0


def test_nothing_is_replayed_to_nobody_and_the_next_one_gets_it() -> None:
    outbox = Outbox()
    output = StepOutput(outbox)
    req = make_req(SamplingParams())
    speak(output, req, 7)
    outbox.connection = 0
    output.replay(ReplayReq([Received("r", 0, 0)], 200), {"r": req})
    outbox.connection = 3
    output.replay(ReplayReq([Received("r", 0, 0)], 200), {"r": req})  # of the second, which is dead, too
    output.replay(ReplayReq([Received("r", 0, 0)], 300), {"r": req})
    assert [type(message) for message in outbox.sent] == [BatchTokenIDOutput, Replay]


def test_the_ends_for_a_worker_that_is_gone_are_forgotten() -> None:
    output = StepOutput(Outbox())
    for entry in (1, 2):
        output.add(make_req(SamplingParams(), entry=entry), [], finish=Length(4))
    output.forget_entry(1)
    assert output.num_undelivered == 1


def test_what_the_stop_rule_holds_back_is_part_of_a_replay() -> None:
    outbox = Outbox()
    output = StepOutput(outbox)
    req = make_req(SamplingParams(stop=("END",)), max_new=10)
    ids = tokenizer().encode("one EN")
    req.end_rule.settle(ids, 0)
    req.token_ids += ids
    output.add(req, ids, held_back=2)
    output.send()
    outbox.connection = 2
    output.replay(ReplayReq([Received("r", len(ids), 4)], 200), {"r": req})
    assert outbox.sent[-1].requests[0].row.held_back == 2


def test_rows_that_only_go_on_travel_in_columns_one_for_each_number_of_tokens() -> None:
    outbox = Outbox()
    output = StepOutput(outbox)
    reqs = [make_req(SamplingParams(), slot) for slot in range(3)]
    for req in reqs:
        output.add(req, [1])
    output.send()
    for req, ids in zip(reqs, ([7], [8, 9], [10]), strict=True):
        output.add(req, ids)
    output.send()
    batch = outbox.sent[-1]
    assert (batch.rows, batch.opened) == ([], [])
    assert [list(columns.rows()) for columns in batch.columns] == [[(0, [7]), (2, [10])], [(1, [8, 9])]]
    output.send()
    assert outbox.sent[-1] is batch


def test_an_id_that_fits_no_column_leaves_the_others_whole() -> None:
    outbox = Outbox()
    output = StepOutput(outbox)
    reqs = [make_req(SamplingParams(), slot) for slot in range(3)]
    for req in reqs:
        output.add(req, [1])
    output.send()
    output.add(reqs[0], [7])
    with pytest.raises(OverflowError):
        output.add(reqs[1], [2**31])
    output.add(reqs[2], [8])
    output.send()
    batch = outbox.sent[-1]
    assert [list(columns.rows()) for columns in batch.columns] == [[(0, [7]), (2, [8])]]


def test_a_row_that_says_more_is_a_full_one() -> None:
    outbox = Outbox()
    output = StepOutput(outbox)
    req = make_req(SamplingParams())
    output.add(req, [1])
    output.send()
    output.add(req, [7], held_back=2)
    output.send()
    batch = outbox.sent[-1]
    assert (batch.rows[0].held_back, batch.columns) == (2, [])


def test_the_last_row_says_what_an_abort_must_keep_back() -> None:
    output = StepOutput(Outbox())
    req = make_req(SamplingParams())
    output.add(req, [1], held_back=2)
    assert req.held_back == 2
    output.send()
    output.add(req, [2])
    assert req.held_back == 0
