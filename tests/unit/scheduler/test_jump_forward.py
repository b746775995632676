"""Jump-forward: text that a grammar forces comes without a step, and nothing else differs."""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.config import ServerConfig
from millstream.execution.scripted import load_scripted_executor
from millstream.grammar.matcher import GrammarCompiler
from millstream.grammar.vocabulary import vocabulary_of
from millstream.messages import FinishReason, Length, RowDetails, Stop
from millstream.messages.details import LogprobParams
from millstream.messages.grammar import GrammarSpec
from millstream.scheduler.speculation import SpeculationOptions
from tests.unit.scheduler.harness import EOS, CheckingExecutor, Desk, assert_nothing_held, tokenizer
from tests.unit.scheduler.test_grammars import finish, spec, text

SAYING = "the quick brown fox jumps over the lazy dog"
PERSON = {
    "type": "object",
    "properties": {"first_name": {"enum": ["Ada", "Alan"]}, "birth_year": {"type": "integer"}, "country": {"const": "England"}},
    "required": ["first_name", "birth_year", "country"],
    "additionalProperties": False,
}
FORCED = spec("regex", f"(yes|no): {SAYING}!")
SCHEMA = spec("json_schema", json.dumps(PERSON))
LIST = spec("json_schema", json.dumps({"type": "array", "items": {"enum": ["red light", "green light"]}, "minItems": 2}))
CONTROLLED = spec(
    "ebnf", 'start: "say " /[ab]/ <|im_start|> "\u4f60\u597d \U0001f389" <|im_end|>'
)  # control tokens, and parts of characters
GRAMMARS = [FORCED, SCHEMA, LIST, spec("regex", "(ab|cd){3}"), spec("regex", "same same same"), CONTROLLED]


@functools.cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(vocabulary_of(tokenizer(), {EOS}))


def desk(*, num_pages: int = 200, **options: Any) -> tuple[Desk, CheckingExecutor]:
    executor = CheckingExecutor(num_pages=num_pages, page_size=4)
    return Desk(executor, grammars=compiler(), **options), executor


class Said(NamedTuple):
    token_ids: list[int]
    finish: FinishReason | None
    held_back: int
    completion_tokens: int
    details: RowDetails | None


def said(at: Desk, rid: str) -> Said:
    last = at.rows(rid)[-1]
    return Said(at.tokens(rid), at.finish(rid), last.held_back, last.usage.completion_tokens, at.details(rid))


def both(grammar: GrammarSpec, **options: Any) -> tuple[Said, Said, int, int]:
    """What one request says without and with jumps, and in how many steps."""
    found: list[Said] = []
    steps: list[int] = []
    for jumps in (False, True):
        at, executor = desk(jumps_forward=jumps)
        at.submit("a", grammar=grammar, **options)
        finish(at)
        found.append(said(at, "a"))
        steps.append(len(executor.batches))
        assert jumps or at.stats().forced_tokens == 0
        assert_nothing_held(at)
    return found[0], found[1], steps[0], steps[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.source[:20])
def test_the_same_tokens_come_in_fewer_steps(grammar: GrammarSpec, seed: int) -> None:
    without, with_jumps, many, few = both(grammar, max_new=150, seed=seed, temperature=1.0)
    assert with_jumps == without
    assert with_jumps.completion_tokens == len(with_jumps.token_ids)
    assert few < many


def test_a_row_of_its_stream_has_several_tokens_and_the_end_needs_no_step() -> None:
    at, executor = desk()
    at.submit("a", max_new=100, grammar=FORCED)
    finish(at)
    assert text(at, "a").endswith(f": {SAYING}!")
    assert at.finish("a") == Stop(None)
    assert len(at.rows("a")) == len(executor.batches) < 4
    assert at.stats().forced_tokens == len(at.tokens("a")) - len(executor.batches)


ENDS: list[dict[str, Any]] = [
    {"max_new": 9},
    {"stop": ("fox ju",)},
    {"stop": ("fox ju",), "no_stop_trim": True},
    {"stop": ("yes",), "min_new_tokens": 4},
    {"stop": ("quick", "zy do"), "min_new_tokens": 12},
    {"stop_regex": ("l[a-z]+y",)},
    {"stop": ("never said",)},
    {"ignore_eos": True},
    {"min_new_tokens": 90},
]


@pytest.mark.parametrize("options", ENDS, ids=str)
def test_an_end_within_forced_text_is_where_it_would_be_token_by_token(options: dict[str, Any]) -> None:
    without, with_jumps, many, few = both(FORCED, **{"max_new": 100, **options})
    assert with_jumps == without
    assert few < many


@pytest.mark.parametrize("min_new_tokens", [0, 2, 1000])
def test_a_stop_id_within_forced_text_ends_it_once_it_may(min_new_tokens: int) -> None:
    whole, _, _, _ = both(FORCED, max_new=100)
    for token_id in whole.token_ids[2:8]:
        options = {"stop_token_ids": (token_id,), "min_new_tokens": min(min_new_tokens, 100), "max_new": 100}
        without, with_jumps, _, _ = both(FORCED, **options)
        assert with_jumps == without
        assert min_new_tokens or with_jumps.finish == Stop(token_id)


@pytest.mark.parametrize("max_new", range(1, 14))
def test_a_limit_counts_forced_tokens(max_new: int) -> None:
    without, with_jumps, _, _ = both(FORCED, max_new=max_new)
    assert with_jumps == without
    assert with_jumps.completion_tokens == max_new
    assert with_jumps.finish == Length(max_new)


@pytest.mark.parametrize("grammar", [FORCED, SCHEMA, *GRAMMARS[3:]], ids=lambda grammar: grammar.source[:20])
def test_a_grammar_that_ends_at_the_limit_was_not_cut(grammar: GrammarSpec) -> None:
    whole, _, _, _ = both(grammar, max_new=150)
    without, with_jumps, _, _ = both(grammar, max_new=len(whole.token_ids))
    assert with_jumps == without == whole
    assert isinstance(with_jumps.finish, Stop)


def test_the_scripted_executor_says_the_same() -> None:
    found: list[Said] = []
    for jumps in (False, True):
        executor = load_scripted_executor(ServerConfig(executor="scripted", script="inline", max_total_tokens=4096))
        at = Desk(executor, grammars=compiler(), jumps_forward=jumps)
        for rid, grammar in zip("abc", GRAMMARS, strict=False):
            at.submit(rid, tokenizer().encode("say no more", add_special_tokens=False), max_new=90, grammar=grammar)
        finish(at)
        found += [said(at, rid) for rid in "abc"]
        assert (at.stats().forced_tokens > 0) == jumps
        assert_nothing_held(at)
    assert found[:3] == found[3:]


def test_log_probabilities_are_those_of_every_token() -> None:
    params = LogprobParams(top=2)
    without, with_jumps, _, _ = both(SCHEMA, max_new=100, logprobs=params)
    assert with_jumps == without
    assert with_jumps.details is not None and with_jumps.details.logprobs is not None
    assert len(with_jumps.details.logprobs.chosen) == len(with_jumps.token_ids)


def test_a_step_has_tokens_for_all_that_is_forced_before_it() -> None:
    at, executor = desk(chunked_prefill_size=10)
    for rid in "abcd":
        at.submit(rid, max_new=100, grammar=FORCED)
    at.submit("free", list(range(5, 45)), max_new=20)
    finish(at)
    assert max(sum(end - start for _, start, end in batch) for batch in executor.batches) <= 10 + 1  # a prompt always gets one
    assert at.stats().forced_tokens > 40
    for rid in "abcd":
        assert text(at, rid).endswith(SAYING + "!")


def test_constrained_requests_jump_beside_drafts_of_others() -> None:
    at, _ = desk(speculation=SpeculationOptions(num_draft_tokens=4, shortest_match=1))
    alone, _ = desk()
    at.submit("free", [5, 6, 5, 6, 5, 6], max_new=30, temperature=0.0)
    for each in (at, alone):
        each.submit("a", [5, 6, 5, 6], max_new=100, grammar=SCHEMA)
        finish(each)
    assert at.tokens("a") == alone.tokens("a")
    assert_nothing_held(at)


requests = st.lists(
    st.fixed_dictionaries(
        {
            "grammar": st.sampled_from([None, *GRAMMARS]),
            "max_new": st.integers(1, 60),
            "seed": st.integers(0, 3),
            "min_new_tokens": st.sampled_from([0, 0, 5]),
            "stop": st.sampled_from([(), (), ("o",), ('": "',), ("fox", "lazy")]),
            "ignore_eos": st.booleans(),
            "call": st.sampled_from(["", "x"]),
        }
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(requests=requests, num_pages=st.integers(20, 60), chunk=st.sampled_from([6, 16, 64]), pauses=st.sets(st.integers(0, 12)))
def test_company_retractions_and_pauses_change_no_token(
    requests: list[dict[str, Any]], num_pages: int, chunk: int, pauses: set[int]
) -> None:
    """Each alone, token by token, beside all together on few pages, with jumps and pauses."""
    expected: list[Said] = []
    for options in requests:
        alone, _ = desk(jumps_forward=False)
        alone.submit("r", [9, 8, 7, 6, 5], **(options | {"call": ""}))
        finish(alone)
        expected.append(said(alone, "r"))
    at, _ = desk(num_pages=num_pages, chunked_prefill_size=chunk)
    for number, options in enumerate(requests):
        at.submit(
            f"r{number}", [9, 8, 7, 6, 5], **(options | {"min_new_tokens": min(options["min_new_tokens"], options["max_new"])})
        )
    for count in range(13):
        at.step()
        rid = f"r{count % len(requests)}"
        if count in pauses:
            at.pause(rid)
            at.step()
            at.resume(rid)
    finish(at)
    assert [said(at, f"r{number}") for number in range(len(requests))] == expected
    assert_nothing_held(at)
