from __future__ import annotations

from collections.abc import Sequence

import pytest

from millstream.text.stop import StopMatch, StopMatcher


def shown(pieces: Sequence[str], stops: Sequence[str]) -> tuple[list[str], StopMatch | None]:
    """Text that may be shown after each piece, by the rule of the detokenizer, and the match."""
    matcher, fed, sent, deltas = StopMatcher(stops), "", 0, []
    for piece in pieces:
        fed += piece
        match = matcher.feed(piece)
        end = match.start if match else len(fed) - matcher.held_back
        deltas.append(fed[sent:end])
        sent = max(sent, end)
        if match:
            return deltas, match
    return [*deltas, fed[sent:]], None


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "stop"),
    [
        pytest.param(["a", " zeta", " eta", " theta"], [" zeta eta theta"], "a", " zeta eta theta", id="over-three-tokens"),
        pytest.param(["What is it ", "a"], ["ab"], "What is it a", None, id="held-character-comes-back-at-the-end"),
        pytest.param(["ab END cd STOP ef"], ["STOP", "END"], "ab ", "END", id="earliest-in-the-text-not-in-the-list"),
        pytest.param(["one,", " two,", " five", " six,"], ["five"], "one, two, ", "five", id="nothing-after-the-match"),
        pytest.param(["aaab"], ["aab"], "a", "aab", id="falls-back-to-a-shorter-prefix"),
        pytest.param(["xabcd"], ["abcd", "bc"], "xa", "bc", id="first-to-complete-wins"),
        pytest.param(["xEND"], ["ND", "END"], "x", "END", id="longest-of-those-that-end-together"),
        pytest.param(["a\u0301🙂", "🙂b"], ["🙂🙂"], "a\u0301", "🙂🙂", id="characters-outside-the-bmp"),
        pytest.param(["hENo"], ["END"], "hENo", None, id="a-prefix-alone-is-not-a-match"),
        pytest.param(["STOP"], ["STOP"], "", "STOP", id="at-the-very-start"),
    ],
)  # fmt: skip
def test_text_ends_where_the_first_stop_string_begins(pieces: list[str], stops: list[str], text: str, stop: str | None) -> None:
    for cut in (pieces, list("".join(pieces)), ["".join(pieces)]):
        deltas, match = shown(cut, stops)
        assert "".join(deltas) == text
        assert (match.stop if match else None) == stop


def test_a_long_stop_string_does_not_delay_text_it_has_nothing_in_common_with() -> None:
    deltas, _ = shown(["alpha", " beta", " gamma"], ["z" * 200])
    assert deltas == ["alpha", " beta", " gamma", ""]


def test_only_the_part_that_may_still_grow_is_held_back() -> None:
    matcher = StopMatcher(["</s>", "<stop>"])
    held = []
    for piece in ("a<", "s", "t", "x<", "/"):
        matcher.feed(piece)
        held.append(matcher.held_back)
    assert held == [1, 2, 3, 1, 2]


def test_an_unarmed_match_is_passed_over_and_its_end_may_begin_another() -> None:
    matcher = StopMatcher(["abab"])
    assert matcher.feed("abab", armed=False) is None
    assert matcher.held_back == 2
    assert matcher.feed("ab") == StopMatch(stop="abab", start=2, end=6)


def test_a_stop_string_that_begins_unarmed_matches_when_it_ends_armed() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("xEN", armed=False) is None
    assert matcher.feed("D") == StopMatch(stop="END", start=1, end=4)


def test_the_match_stands_whatever_comes_after_it() -> None:
    matcher = StopMatcher(["five", "six"])
    first = matcher.feed("one five six")
    assert first == StopMatch(stop="five", start=4, end=8)
    assert matcher.feed(" six") == first
    assert (matcher.held_back, matcher.num_chars) == (0, 12)


def test_without_stop_strings_nothing_is_held() -> None:
    matcher = StopMatcher([])
    assert matcher.feed("anything") is None
    assert matcher.held_back == 0


def test_a_repeated_stop_string_counts_once() -> None:
    assert StopMatcher(["a", "a"]).feed("ba") == StopMatch(stop="a", start=1, end=2)
