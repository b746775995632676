"""plan: tables of queues and budgets."""

from __future__ import annotations

import itertools

import pytest

from millstream.errors import InvariantError
from millstream.kv.pool import Lease
from millstream.kv.radix_cache import Match
from millstream.messages import SamplingParams, Timing, TokenizedGenerateReqInput
from millstream.observe.ledger import Ledger
from millstream.scheduler.family import Family
from millstream.scheduler.finish import EndRule
from millstream.scheduler.policy import Budgets, Known, StepPlan, plan
from millstream.scheduler.state import Phase, Req
from tests.unit.scheduler.harness import tokenizer

PAGE = 4
SAMPLING = SamplingParams()
LEDGER = Ledger("test")
ARRIVALS = itertools.count()  # tests make their requests in order of arrival


def waiting(rid: str, tokens: int | list[int], *, namespace: str | None = "", family: Family | None = None) -> Req:
    input_ids = [ord(rid[0])] * tokens if isinstance(tokens, int) else tokens
    message = TokenizedGenerateReqInput(rid=rid, input_ids=input_ids, sampling=SAMPLING, max_new_tokens=9, timing=Timing())
    rule = EndRule(sampling=SAMPLING, max_new_tokens=9, eos_token_ids=frozenset(), tokenizer=tokenizer())
    req = Req(message, rule, LEDGER.open(rid), next(ARRIVALS))
    req.namespace, req.family = namespace, family
    return req


def running(rid: str, tokens: int | list[int], computed: int, *, decoding: bool) -> Req:
    req = waiting(rid, tokens)
    req.phase = Phase.RUNNING
    req.num_computed = computed
    req.is_prefilling = not decoding
    num_pages = -(-(computed if decoding else len(req.token_ids)) // PAGE)
    req.lease = Lease(rid=rid, namespace="", pages=list(range(num_pages)), num_shared=0, node=None, account=req.account)
    req.row.pages = req.lease.pages
    return req


def make_plan(
    run: list[Req],
    wait: list[Req],
    *,
    sleeping: list[Req] | None = None,
    tokens: int = 32,
    slots: int = 8,
    pages: int = 100,
    known: int = 0,
    unpinned: int = 0,
    beside: int = 1000,
) -> StepPlan:
    return plan(
        running=run,
        waiting=wait,
        urgent=min(wait, key=lambda req: (-req.priority, req.arrival), default=None),
        sleeping=sleeping or [],
        budgets=Budgets(step_tokens=tokens, running=slots, pages=pages, page_size=PAGE),
        find=lambda req: Known(Match(None, list(range(known)), 0, unpinned), known * PAGE),
        prefill_beside=lambda decode_tokens: beside if decode_tokens else 1000,
        num_freed=lambda reqs: sum(len(req.row.pages) for req in reqs),
    )


def work(step: StepPlan) -> list[tuple[str, int, int]]:
    return [(req.rid, start, end) for req, start, end in step.work]


def admitted(step: StepPlan) -> list[str]:
    return [req.rid for req, _ in step.admit]


def test_decodes_come_first_and_prefills_fill_what_they_leave() -> None:
    step = make_plan([running("a", 20, 8, decoding=False), running("b", 6, 5, decoding=True)], [waiting("c", 30)], tokens=20)
    assert work(step) == [("b", 5, 6), ("a", 8, 20), ("c", 0, 7)]


def test_a_long_prompt_is_cut_into_chunks_and_nobody_joins_while_it_fills_the_step() -> None:
    step = make_plan([running("a", 100, 32, decoding=False)], [waiting("b", 4)], tokens=32)
    assert work(step) == [("a", 32, 64)]


def test_reused_tokens_are_not_computed_and_cost_no_budget() -> None:
    step = make_plan([], [waiting("a", 10), waiting("b", 10)], known=2, tokens=4)
    assert work(step) == [("a", 8, 10), ("b", 8, 10)]


def test_the_head_is_never_skipped_for_a_smaller_one() -> None:
    step = make_plan([], [waiting("a", 40), waiting("b", 4)], pages=9)
    assert admitted(step) == []


def test_slots_bound_who_runs() -> None:
    step = make_plan([running("a", 6, 5, decoding=True)], [waiting("b", 4), waiting("c", 4)], slots=2)
    assert admitted(step) == ["b"]


def test_each_running_request_keeps_a_page_to_grow_into() -> None:
    decoding = running("a", 6, 5, decoding=True)
    assert admitted(make_plan([decoding], [waiting("b", 8)], pages=2)) == []
    assert admitted(make_plan([decoding], [waiting("b", 8)], pages=3)) == ["b"]
    assert admitted(make_plan([], [waiting("b", 8)], pages=2)) == ["b"]  # alone it may take everything


def test_pages_that_a_match_takes_from_the_evictable_ones_count() -> None:
    assert admitted(make_plan([], [waiting("a", 12)], pages=3, known=2, unpinned=2)) == ["a"]
    assert admitted(make_plan([], [waiting("a", 16)], pages=3, known=2, unpinned=2)) == []
    assert admitted(make_plan([], [waiting("a", 16)], pages=2, known=2, unpinned=0)) == ["a"]


def test_a_shortage_of_pages_retracts_the_last_arrived_and_plans_nothing_else() -> None:
    old, new = running("a", 9, 8, decoding=True), running("b", 3, 2, decoding=True)
    step = make_plan([old, new], [waiting("c", 1)], pages=0)
    assert step == StepPlan(retract=new)


def test_a_shortage_of_a_request_that_runs_alone_is_our_bug() -> None:
    with pytest.raises(InvariantError):
        make_plan([running("a", 9, 8, decoding=True)], [], pages=0)


def test_a_shortage_takes_the_pages_of_whoever_is_paused_longest_before_a_running_one_s() -> None:
    run = [running("a", 9, 8, decoding=True), running("b", 3, 2, decoding=True)]
    first, second = running("p", 8, 7, decoding=True), running("q", 8, 7, decoding=True)
    assert make_plan(run, [], sleeping=[first, second], pages=0) == StepPlan(retract=first)
    assert make_plan(run[:1], [], sleeping=[second], pages=0) == StepPlan(retract=second)


def test_a_waiting_request_that_lacks_pages_gets_those_of_the_paused() -> None:
    asleep = running("p", 8, 7, decoding=True)
    assert make_plan([], [waiting("a", 40)], sleeping=[asleep], pages=9) == StepPlan(retract=asleep)
    assert admitted(make_plan([], [waiting("a", 40)], sleeping=[asleep], pages=10)) == ["a"]


def test_the_paused_keep_their_pages_where_the_waiting_lack_something_else() -> None:
    asleep, busy = running("p", 8, 7, decoding=True), running("l", [1] * 12, 0, decoding=False)
    assert make_plan([], [waiting("a", 40)], sleeping=[asleep], slots=0, pages=9).retract is None
    step = make_plan([busy], [waiting("h", [1] * 12)], sleeping=[asleep], pages=2)
    assert (step.retract, work(step)) == (None, [("l", 0, 12)])  # it waits for the prefix that is in the making


def test_a_row_of_which_nothing_came_computes_its_last_position_again() -> None:
    assert work(make_plan([running("a", 6, 6, decoding=True)], [])) == [("a", 5, 6)]


def test_several_accepted_tokens_are_computed_together() -> None:
    assert work(make_plan([running("a", 9, 6, decoding=True)], [])) == [("a", 6, 9)]


def test_bursts_that_fill_the_step_leave_one_token_for_prefill() -> None:
    step = make_plan([running("a", 14, 6, decoding=True), running("b", 9, 0, decoding=False)], [], tokens=8)
    assert work(step) == [("a", 6, 14), ("b", 0, 1)]


def test_what_a_step_has_time_for_bounds_prompts_beside_decodes_and_nothing_else() -> None:
    talks, long, next_one = running("a", 6, 5, decoding=True), running("b", 20, 0, decoding=False), waiting("c", 20)
    assert work(make_plan([talks, long], [next_one], beside=24)) == [("a", 5, 6), ("b", 0, 20), ("c", 0, 4)]
    assert work(make_plan([long], [next_one], beside=24)) == [("b", 0, 20), ("c", 0, 12)]
    assert admitted(make_plan([talks, long], [next_one], beside=20)) == []


@pytest.mark.parametrize(
    ("leader", "prompt", "namespace", "is_held"),
    [
        pytest.param([1] * 12, [1] * 12, "", True, id="the same prompt"),
        pytest.param([1] * 4 + [2] * 8, [1] * 4 + [3] * 8, "", True, id="one page in common"),
        pytest.param([1] * 3 + [2] * 8, [1] * 3 + [3] * 8, "", False, id="less than a page in common"),
        pytest.param([1] * 4, [1] * 12, "", False, id="the leader's only page has its last token"),
        pytest.param([1] * 12, [1] * 4, "", False, id="a prompt of one page computes its last token itself"),
        pytest.param([1] * 12, [1] * 12, "other", False, id="another namespace"),
    ],
)
def test_a_prompt_waits_for_a_prefix_that_is_being_prefilled(
    leader: list[int], prompt: list[int], namespace: str, is_held: bool
) -> None:
    head, behind = waiting("h", prompt, namespace=namespace), waiting("z", 2)
    step = make_plan([running("l", leader, 0, decoding=False)], [head, behind], tokens=64)
    assert admitted(step) == ([] if is_held else ["h", "z"])


def test_identical_prompts_that_arrive_together_start_with_one() -> None:
    step = make_plan([], [waiting("a", [1] * 9), waiting("b", [1] * 9)])
    assert admitted(step) == ["a"]


def test_a_prefix_known_as_far_as_the_leader_goes_holds_nobody() -> None:
    step = make_plan([running("l", [1] * 12, 8, decoding=False)], [waiting("h", [1] * 12)], known=2)
    assert admitted(step) == ["h"]


@pytest.mark.parametrize(("namespace", "expected"), [("", ["a"]), (None, ["a", "b"])])
def test_equal_prompts_wait_for_each_other_only_where_prefixes_are_shared(namespace: str | None, expected: list[str]) -> None:
    prompt = [7] * 12
    wait = [waiting(rid, list(prompt), namespace=namespace) for rid in "ab"]
    assert admitted(make_plan([], wait)) == expected


@pytest.mark.parametrize(("length", "expected"), [(1, ["a", "b", "z"]), (2, ["a"]), (9, ["a"])])
def test_the_choices_of_a_prompt_wait_for_the_first_of_them_however_short_it_is(length: int, expected: list[str]) -> None:
    family = Family([7] * length, "")
    wait = [waiting(rid, [7] * length, family=family) for rid in "ab"]
    assert admitted(make_plan([], [*wait, waiting("z", 2)])) == expected
