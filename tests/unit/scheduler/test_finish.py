"""EndRule: where a request ends, the same however its tokens are spread over steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.messages import FinishReason, Length, SamplingParams, Stop
from millstream.scheduler.finish import EndRule, Verdict
from tests.unit.scheduler.harness import EOS, tokenizer


def make_rule(max_new: int = 100, **sampling: Any) -> EndRule:
    return EndRule(
        sampling=SamplingParams(**sampling),
        max_new_tokens=max_new,
        eos_token_ids=frozenset({EOS}),
        tokenizer=tokenizer(),
    )


def ids(text: str) -> list[int]:
    """One token a byte, for ASCII text."""
    return [token_id for char in text for token_id in tokenizer().encode(char, add_special_tokens=False)]


def run(rule: EndRule, steps: list[list[int]]) -> tuple[list[int], FinishReason | None, int]:
    made: list[int] = []
    for step in steps:
        verdict = rule.settle(step, len(made))
        made += step[: verdict.num_kept]
        if verdict.finish is not None:
            return made, verdict.finish, verdict.held_back
    return made, None, verdict.held_back


@pytest.mark.parametrize(
    ("options", "tokens", "kept", "finish"),
    [
        pytest.param({}, [5, EOS, 6], 2, Stop(EOS), id="EOS ends"),
        pytest.param({"ignore_eos": True}, [5, EOS, 6], 3, None, id="ignore_eos ignores EOS"),
        pytest.param({"ignore_eos": True, "stop_token_ids": (6,)}, [5, EOS, 6, 7], 3, Stop(6), id="but not stop ids"),
        pytest.param({"ignore_eos": True, "stop_token_ids": (EOS,)}, [EOS], 1, Stop(EOS), id="nor EOS asked for as stop id"),
        pytest.param({"max_new": 2, "ignore_eos": True}, [5, EOS, 6], 2, Length(2), id="nor the limit"),
        pytest.param({"max_new": 2}, [5, EOS], 2, Stop(EOS), id="EOS as the last allowed token is a stop"),
        pytest.param({"max_new": 3}, [5, 6, 7, 8], 3, Length(3), id="the limit cuts a step"),
        pytest.param({"min_new_tokens": 2}, [EOS, EOS, EOS, 5], 3, Stop(EOS), id="no EOS before the minimum"),
        pytest.param({"min_new_tokens": 2, "stop_token_ids": (6,)}, [6, 5, 6], 3, Stop(6), id="no stop id either"),
        pytest.param({"max_new": 2, "min_new_tokens": 2}, [EOS, 5], 2, Length(2), id="minimum equal to the limit"),
    ],
)
def test_ends_by_id_and_limit(options: dict[str, Any], tokens: list[int], kept: int, finish: FinishReason | None) -> None:
    assert make_rule(**options).settle(tokens, 0) == Verdict(kept, finish, 0)
    made, reason, _ = run(make_rule(**options), [[token_id] for token_id in tokens])
    assert (made, reason) == (tokens[:kept], finish)


def test_stop_ids_and_eos_are_banned_until_the_minimum_is_reached() -> None:
    rule = make_rule(min_new_tokens=2, stop_token_ids=(9, 4))
    assert [rule.banned_token_ids(count) for count in range(4)] == [(EOS, 4, 9), (EOS, 4, 9), (), ()]
    assert make_rule(min_new_tokens=2, ignore_eos=True).banned_token_ids(0) == ()
    assert make_rule().banned_token_ids(0) == ()


def test_a_stop_string_ends_at_the_token_that_completes_it_and_says_how_much_to_cut() -> None:
    tokens = ids("ab ENDcd")
    made, finish, held_back = run(make_rule(stop=("END",)), [tokens])
    assert (made, finish, held_back) == (tokens[:6], Stop("END"), 3)


def test_text_behind_the_match_in_the_same_token_is_cut_too() -> None:
    (token,) = [i for i in range(256, 1536) if tokenizer().decode([i]) == " the"][:1]
    assert make_rule(stop=("t",)).settle([token], 0) == Verdict(1, Stop("t"), 3)
    assert make_rule(stop=("t",), no_stop_trim=True).settle([token], 0) == Verdict(1, Stop("t"), 2)


def test_the_earliest_of_several_stop_strings_wins_whatever_their_order() -> None:
    tokens = ids("ab END cd STOP ef")
    for stop in (("STOP", "END"), ("END", "STOP")):
        made, finish, held_back = run(make_rule(stop=stop), [tokens])
        assert (len(made), finish, held_back) == (6, Stop("END"), 3)


def test_a_possible_beginning_of_a_stop_string_is_held_back() -> None:
    rule = make_rule(stop=("END",))
    assert rule.settle(ids("aE"), 0) == Verdict(2, None, 1)
    assert rule.settle(ids("N"), 2) == Verdict(1, None, 2)
    assert rule.settle(ids("x"), 3) == Verdict(1, None, 0)


def test_nothing_is_held_back_on_an_end_of_another_kind() -> None:
    assert make_rule(stop=("END",), max_new=2).settle(ids("aE"), 0) == Verdict(2, Length(2), 0)
    assert make_rule(stop=("END",)).settle([*ids("aE"), EOS], 0) == Verdict(3, Stop(EOS), 0)


def test_a_stop_string_that_completes_before_the_minimum_is_ignored_for_good() -> None:
    tokens = ids("END.END.")
    made, finish, _ = run(make_rule(stop=("END",), min_new_tokens=4), [tokens])
    assert (len(made), finish) == (7, Stop("END"))
    made, finish, _ = run(make_rule(stop=("END",), min_new_tokens=3), [tokens])
    assert (len(made), finish) == (3, Stop("END"))


def test_a_stop_regex_ends_at_the_token_that_completes_it_with_the_text_that_matched() -> None:
    tokens = ids("ab 555-12345")
    rule = {"stop_regex": (r"\d+-\d{4}",)}
    made, finish, held_back = run(make_rule(**rule), [tokens])
    assert (made, finish, held_back) == (tokens[:11], Stop("555-1234"), 8)
    assert run(make_rule(**rule, no_stop_trim=True), [tokens]) == (tokens[:11], Stop("555-1234"), 0)
    assert make_rule(**rule).settle(ids("a 5"), 0) == Verdict(3, None, 1)


@pytest.mark.parametrize(
    ("options", "kept", "stop", "held_back"),
    [
        pytest.param({"stop": ("cd",), "stop_regex": ("b",)}, 2, "b", 1, id="regex first"),
        pytest.param({"stop": ("b",), "stop_regex": ("[cd]{2}",)}, 2, "b", 1, id="string first"),
        pytest.param({"stop": ("c",), "stop_regex": ("b?c",)}, 3, "bc", 2, id="regex longer"),
        pytest.param({"stop": ("abc",), "stop_regex": ("b?c",)}, 3, "abc", 3, id="string longer"),
        pytest.param({"stop": ("a",), "stop_regex": ("b.d",), "min_new_tokens": 2}, 4, "bcd", 3, id="after the minimum"),
        pytest.param({"stop_regex": ("c", "[bd]+")}, 2, "b", 1, id="several regexes"),
    ],
)
def test_of_stop_strings_and_regexes_the_first_to_complete_wins(
    options: dict[str, Any], kept: int, stop: str, held_back: int
) -> None:
    tokens = ids("abcd")
    for steps in ([[token_id] for token_id in tokens], [tokens]):
        made, finish, held = run(make_rule(**options), steps)
        assert (len(made), finish, held) == (kept, Stop(stop), held_back)


@given(
    text=st.text("abE", max_size=14),
    cuts=st.sets(st.integers(1, 13)),
    eos_at=st.integers(0, 20),
    max_new=st.integers(1, 16),
    min_new=st.integers(0, 8),
    stop=st.lists(st.text("abE", min_size=1, max_size=3), max_size=3),
    stop_regex=st.lists(st.sampled_from(["a+b", "E.*a", "(?:ab|E)E", "b{2,3}$"]), max_size=2),
)
def test_steps_of_many_tokens_and_of_one_agree(
    text: str, cuts: set[int], eos_at: int, max_new: int, min_new: int, stop: list[str], stop_regex: list[str]
) -> None:
    tokens = ids(text) or ids("a")
    if eos_at < len(tokens):
        tokens[eos_at] = EOS
    options: dict[str, Any] = {
        "max_new": max_new,
        "min_new_tokens": min(min_new, max_new),
        "stop": tuple(stop),
        "stop_regex": tuple(stop_regex),
    }
    edges = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    chunks = [tokens[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    assert run(make_rule(**options), chunks) == run(make_rule(**options), [[token_id] for token_id in tokens])
