"""RegexMatcher against Python's `re` asked about every part of the text after every character."""

from __future__ import annotations

import itertools
import re
import warnings

import pytest
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
SYNTAX = [
    *("a", "b", "A", "1", "2", ",", ".", "*", "+", "?", "{", "}", "{1,2}", "{,2}", "|", "^", r"\Z", "#", " ", "\\"),
    *("[", "[^", "]", "-", r"\]", "(", ")", "(?:", "(?i:", "(?-i:", "(?i)", "(?s)", "(?#x)", "(?P<n>"),
    *(r"\w", r"\d", r"\n", r"\x61", r"\061", r"\0"),
]
any_syntax = st.lists(st.sampled_from(SYNTAX), max_size=9).map("".join)
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


@settings(deadline=None, max_examples=1000)
@given(source=any_syntax, text=st.text("abAB12 \n-]{}#,\x00", max_size=7))
def test_any_syntax_is_read_as_python_reads_it_or_refused(source: str, text: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference = re.compile(source)
    except (re.error, OverflowError):
        with pytest.raises(RequestError):
            compile_patterns((source,))
        return
    try:
        ours = compile_patterns((source,))
    except RequestError as error:
        assert "empty text" not in error.message or reference.fullmatch("") is not None
        return
    assert reference.fullmatch("") is None
    assert RegexMatcher(ours).feed(text) == first_match(text, [reference], [True] * len(text))
