"""Requests with grammars in the scheduler: they wait for theirs without keeping anybody waiting, and never leave them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput, ForwardRow
from millstream.grammar.matcher import GrammarCompiler
from millstream.grammar.source import convert
from millstream.grammar.vocabulary import vocabulary_of
from millstream.messages import Length, Stop
from millstream.messages.grammar import GrammarSpec
from millstream.scheduler.speculation import SpeculationOptions
from tests.unit.scheduler.harness import EOS, Desk, assert_nothing_held, tokenizer


class MaskedExecutor:
    """Draws any allowed token that follows from the sequence, and counts the drafts of constrained rows."""

    def __init__(self, num_pages: int = 64, page_size: int = 4) -> None:
        self.capabilities = Capabilities(
            vocab_size=tokenizer().vocab_size + 5,
            context_length=256,
            num_pages=num_pages,
            page_size=page_size,
            eos_token_ids=frozenset({EOS}),
            has_masks=True,
        )
        self.num_masked = 0
        self.num_unmasked = 0

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        return ForwardOutput([[self._draw(row)] if row.sample else [] for row in batch.rows])

    def close(self) -> None:
        """Nothing is held."""

    def _draw(self, row: ForwardRow) -> int:
        state = hash((row.seed, len(row.token_ids)))
        if row.allowed is None:
            self.num_unmasked += 1
            return 300 + state % 900
        assert not row.draft
        self.num_masked += 1
        ids = np.flatnonzero(np.unpackbits(row.allowed.view(np.uint8), bitorder="little"))
        ids = ids[~np.isin(ids, row.banned_token_ids)]
        return int(ids[state % len(ids)])


def spec(kind: Any, source: str) -> GrammarSpec:
    made = GrammarSpec(kind, source, "field")
    return GrammarSpec(kind, source, "field", convert(made))


DIGITS = spec("regex", "[0-9]{30}")
SCHEMA = spec("json_schema", json.dumps({"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 3, "maxItems": 4}))


def desk(**options: Any) -> Desk:
    compiler = GrammarCompiler(vocabulary_of(tokenizer(), {EOS}))
    return Desk(MaskedExecutor(options.pop("num_pages", 64)), grammars=compiler, **options)


def finish(at: Desk) -> None:
    """Step until nobody is left; an idle scheduler waits for a thread in between."""
    for _ in range(100_000):
        more = at.step()
        if not more and at.scheduler.wait_s is None:
            return
    raise AssertionError("not done")


def text(at: Desk, rid: str) -> str:
    return tokenizer().decode([token_id for token_id in at.tokens(rid) if token_id != EOS])


def test_a_text_follows_its_grammar_and_stops_where_that_ends() -> None:
    at = desk()
    at.submit("a", max_new=100, grammar=DIGITS)
    at.submit("b", max_new=200, grammar=SCHEMA)
    at.submit("c", max_new=9)
    finish(at)
    assert len(text(at, "a")) == 30 and text(at, "a").isdigit()
    assert 3 <= len(json.loads(text(at, "b"))) <= 4
    assert isinstance(at.finish("a"), Stop) and isinstance(at.finish("b"), Stop)
    assert_nothing_held(at)


def test_a_neighbour_goes_on_while_a_grammar_compiles() -> None:
    at = desk()
    at.submit("a", max_new=100, grammar=SCHEMA)
    at.submit("c", max_new=5)
    at.step()
    assert at.tokens("c")  # in the first step, whatever the compiler does
    finish(at)
    assert_nothing_held(at)


def test_an_abort_while_the_grammar_compiles_leaves_nothing() -> None:
    at = desk()
    at.submit("a", max_new=100, grammar=SCHEMA)
    at.pause("a")
    at.abort("a")
    finish(at)
    assert at.finish("a") is not None and not at.tokens("a")
    assert_nothing_held(at)


def test_grammars_whose_requests_have_left_are_not_kept_for_them() -> None:
    at = desk()
    for number in range(30):
        at.submit(f"r{number}", max_new=100, grammar=spec("regex", f"[a-z]{{{number + 1}}}"))
    at.step()
    for number in range(30):
        at.abort(f"r{number}")
    at.submit("last", max_new=100, grammar=DIGITS)
    finish(at)
    assert len(text(at, "last")) == 30
    assert not at.scheduler._grammars._compiler._pending
    assert_nothing_held(at)


def test_retraction_and_pause_do_not_touch_the_place_in_a_grammar() -> None:
    alone = desk()
    alone.submit("a", max_new=100, grammar=DIGITS, seed=5)
    finish(alone)
    at = desk(num_pages=12)
    for number, rid in enumerate("abcd"):
        at.submit(rid, max_new=36, grammar=DIGITS, seed=5 + number)
    for _ in range(5):
        at.step()
    at.pause("b")
    at.step()
    at.resume("b")
    finish(at)
    assert at.stats().retractions > 0
    assert text(at, "a") == text(alone, "a")
    assert all(len(text(at, rid)) == 30 for rid in "abcd")
    assert_nothing_held(at)


def test_the_choices_of_a_call_each_have_their_own_place() -> None:
    at = desk()
    for choice in range(4):
        at.submit(f"a-{choice}", max_new=200, grammar=SCHEMA, call="a", seed=choice)
    finish(at)
    texts = [text(at, f"a-{choice}") for choice in range(4)]
    assert all(3 <= len(json.loads(each)) <= 4 for each in texts)
    assert len(set(texts)) > 1


def test_a_constrained_row_has_no_draft() -> None:
    at = desk(speculation=SpeculationOptions(num_draft_tokens=4, shortest_match=1))
    at.submit("a", [5, 6, 5, 6, 5, 6], max_new=40, grammar=DIGITS)
    at.submit("b", [5, 6, 5, 6, 5, 6], max_new=20)
    finish(at)
    assert len(text(at, "a")) == 30


def test_the_end_of_a_grammar_comes_before_min_new_tokens() -> None:
    at = desk()
    at.submit("a", max_new=20, min_new_tokens=15, grammar=spec("regex", "yes( !)?"))
    finish(at)
    assert text(at, "a") in ("yes", "yes !")
    assert isinstance(at.finish("a"), Stop)


def test_a_limit_cuts_a_grammar_and_a_stop_ends_it() -> None:
    at = desk()
    at.submit("a", max_new=3, grammar=SCHEMA)
    at.submit("b", max_new=90, grammar=spec("regex", "x{10}y{10}"), stop=("xy",))
    finish(at)
    assert at.finish("a") == Length(3)
    assert at.finish("b") == Stop("xy")


@pytest.mark.parametrize("grammar", [GrammarSpec("regex", "a", "field"), GrammarSpec("regex", "a", "field", "start: (")])
def test_what_was_not_checked_never_runs_unconstrained(grammar: GrammarSpec) -> None:
    at = desk()
    at.submit("a", max_new=5, grammar=grammar)
    finish(at)
    assert at.rejected or not at.tokens("a")
    assert isinstance(at.executor, MaskedExecutor) and at.executor.num_unmasked == 0
    assert_nothing_held(at)
