"""RegexMatcher against Python's `re` asked about every part of the text after every character."""

from __future__ import annotations

import itertools
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import RequestError
from millstream.text.regex import Pattern, compile_patterns
from millstream.text.stop import StopMatch
from millstream.text.stop_regex import RegexMatcher

ALPHABET = "ab🙂"
texts = st.text(ALPHABET, max_size=12)
singles = st.sampled_from(["a", "b", "🙂", ".", "[ab]", "[^a]", r"\w", r"\W", "^", "(?i:A)", "$"])


def patterns_with(quantifiers: list[str], max_leaves: int) -> st.SearchStrategy[str]:
    def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.lists(inner, min_size=2, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
            st.tuples(inner, st.sampled_from(quantifiers)).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        )

    return st.recursive(singles, combine, max_leaves=max_leaves)


patterns = patterns_with(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{2,}", "*?", "+?"], max_leaves=6)
pattern_sets = st.lists(patterns, min_size=1, max_size=3)


def compiled(sources: list[str]) -> tuple[list[re.Pattern[str]], tuple[Pattern, ...]]:
    """The patterns that are stops at all, for `re` and for us."""
    ours = []
    for source in sources:
        try:
            ours.append((re.compile(source), *compile_patterns((source,))))
        except RequestError:
            # refused: it must be one that matches the empty text
            assert re.compile(source).fullmatch("") is not None
    return [each for each, _ in ours], tuple(each for _, each in ours)


def first_match(text: str, references: list[re.Pattern[str]], armed: list[bool]) -> StopMatch | None:
    for end in range(1, len(text) + 1):
        for start in range(end):
            if armed[end - 1] and any(reference.fullmatch(text, start, end) for reference in references):
                return StopMatch(stop=text[start:end], start=start, end=end)
    return None


def pieces_of(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


@settings(deadline=None, max_examples=300)
@given(text=texts, sources=pattern_sets, data=st.data())
def test_any_cut_finds_what_a_naive_search_finds(text: str, sources: list[str], data: st.DataObject) -> None:
    references, ours = compiled(sources)
    matcher, fed = RegexMatcher(ours), ""
    armed: list[bool] = []
    sent = 0
    for piece in pieces_of(data, text):
        arm = data.draw(st.booleans())
        fed += piece
        armed += [arm] * len(piece)
        match = matcher.feed(piece, armed=arm)
        assert match == first_match(fed, references, armed)
        assert matcher.num_chars == len(fed)
        end = match.start if match else len(fed) - matcher.held_back
        assert end >= sent  # nothing shown is ever taken back
        sent = end
        if match:
            assert matcher.held_back == 0
            return


@settings(deadline=None, max_examples=300)
@given(text=texts, source=patterns_with(["*", "+", "?"], max_leaves=4))  # whose matches are never more than 4 characters away
def test_no_more_is_held_back_than_may_still_match(text: str, source: str) -> None:
    (references, ours) = compiled([source])
    matcher = RegexMatcher(ours)
    if matcher.feed(text) is not None or not matcher.held_back:
        return
    start = len(text) - matcher.held_back
    endings = ("".join(each) for size in range(1, 5) for each in itertools.product("a🙂\nb", repeat=size))
    assert any(references[0].fullmatch(text + ending, start) for ending in endings)
