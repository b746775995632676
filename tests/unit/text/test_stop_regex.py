from __future__ import annotations

import re
import warnings

import pytest

from millstream.errors import RequestError
from millstream.text.regex import MAX_POSITIONS, compile_patterns
from millstream.text.stop import StopMatch
from millstream.text.stop_regex import RegexMatcher


def matcher_of(*patterns: str) -> RegexMatcher:
    return RegexMatcher(compile_patterns(patterns))


@pytest.mark.parametrize(
    ("patterns", "text", "matched"),
    [
        pytest.param(["a+"], "xaaa", "a", id="a-greedy-quantifier-stops-at-its-shortest-completion"),
        pytest.param([r"\d{3}-\d{4}"], "call 555-1234 now", "555-1234", id="counted"),
        pytest.param([r"a.*b"], "xa--ba--b", "a--b", id="from-the-earliest-start"),
        pytest.param([r"\n\n+Q\s*:"], "A\n\n\nQ :x", "\n\n\nQ :", id="longest-of-those-that-end-together"),
        pytest.param(["abcd", "bc"], "xabcd", "bc", id="first-to-complete-of-several"),
        pytest.param(["ab|b|xab"], "xxab", "xab", id="alternatives-that-end-together"),
        pytest.param(["(?i:stop)!"], "sToP!", "sToP!", id="ignoring-case"),
        pytest.param(["(?i)ß"], "ẞ", "ẞ", id="case-as-python-sees-it"),
        pytest.param([r"[^\W\d_]{2}🙂"], "1a€éx🙂", "éx🙂", id="sets-and-characters-outside-the-bmp"),
        pytest.param([r"[]a\]-]x"], "-]x", "]x", id="brackets-in-a-set"),
        pytest.param(["a.c"], "a\ncabc", "abc", id="a-dot-takes-no-line-break"),
        pytest.param(["(?s:a.c)"], "a\nc", "a\nc", id="unless-it-is-told-to"),
        pytest.param(["^ab"], "xab", None, id="the-start-of-the-text-is-not-here"),
        pytest.param(["^ab|^c"], "abc", "ab", id="the-start-of-the-text"),
        pytest.param(["b$"], "abc", "b", id="the-end-of-the-text-so-far"),
        pytest.param(["a$b"], "ab", None, id="nothing-comes-behind-an-end"),
        pytest.param([r"a{,2}b{2}c{1,}{"], "aabbcc{", "aabbcc{", id="bounds-left-open-and-a-brace"),
        pytest.param([r"\x41\u00e9\101\0"], "AéA\0", "AéA\0", id="escaped-characters"),
        pytest.param([r"(?P<word>x)(?#note)(y)?z"], "xz", "xz", id="groups-and-a-comment"),
        pytest.param(["(?:(?:a?)*b?)+c"], "ababc", "ababc", id="nested-repetition-of-nothing"),
        pytest.param(["(?:){9}a"], "a", "a", id="repeated-nothing"),
    ],
)  # fmt: skip
def test_text_stops_where_the_first_match_completes(patterns: list[str], text: str, matched: str | None) -> None:
    for size in (1, 2, len(text)):
        matcher, match = matcher_of(*patterns), None
        for start in range(0, len(text), size):
            match = match or matcher.feed(text[start : start + size])
        assert (match.stop if match else None) == matched
        assert match is None or text[match.start : match.end] == matched


def test_text_is_held_back_from_where_a_match_may_have_begun() -> None:
    matcher = matcher_of(r"<\w+>", "ab*c")
    held = []
    for piece in ("x<", "s", " ", "a", "bb", "d<"):
        matcher.feed(piece)
        held.append(matcher.held_back)
    assert held == [1, 2, 0, 1, 3, 1]


def test_an_unbounded_pattern_holds_back_everything_since_its_first_start() -> None:
    matcher = matcher_of("(?s:a.*b)")
    matcher.feed("xxaxxx\nxx")
    assert matcher.held_back == 7
    assert matcher.feed("xb") == StopMatch("axxx\nxxxb", 2, 11)


def test_nothing_is_held_back_for_a_place_no_match_can_come_from() -> None:
    matcher = matcher_of("ab$c", "a^")
    matcher.feed("ab")
    assert matcher.held_back == 0


def test_an_unarmed_match_is_passed_over_and_what_only_starts_there_may_match_later() -> None:
    matcher = matcher_of("EN?D")
    assert matcher.feed("ED EN", armed=False) is None
    assert matcher.feed("D") == StopMatch("END", 3, 6)


def test_the_match_stands_whatever_comes_after_it() -> None:
    matcher = matcher_of("b+")
    first = matcher.feed("abbb")
    assert first == StopMatch("b", 1, 2)
    assert matcher.feed("b") == first
    assert (matcher.held_back, matcher.num_chars) == (0, 4)


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        pytest.param("(a", "not valid", id="syntax"),
        pytest.param("[z-a]", "not valid", id="range"),
        pytest.param("a{99999999999}", "not valid", id="count"),
        pytest.param("", "empty text", id="nothing"),
        pytest.param("a*", "empty text", id="optional"),
        pytest.param("a|", "empty text", id="empty-alternative"),
        pytest.param("^", "empty text", id="start-alone"),
        pytest.param("^$|(?:$)?", "empty text", id="anchors-alone"),
        pytest.param("a*$", "empty text", id="optional-before-the-end"),
        pytest.param(r"x|\Z(?:a*^)", "empty text", id="an-end-before-a-start"),
        pytest.param(r"(a)\1", "backreferences", id="backreference"),
        pytest.param(r"(?P<x>a)(?P=x)", "backreferences", id="named-backreference"),
        pytest.param("a(?=b)", "lookahead", id="lookahead"),
        pytest.param("a(?!b)", "lookahead", id="negative-lookahead"),
        pytest.param("(?<=a)b", "lookbehind", id="lookbehind"),
        pytest.param("(?<!a)b", "lookbehind", id="negative-lookbehind"),
        pytest.param("(?>ab)", "atomic", id="atomic"),
        pytest.param("a++", "possessive", id="possessive"),
        pytest.param("(a)(?(1)b|c)", "conditional", id="conditional"),
        pytest.param(r"\bEND", "word boundary", id="boundary"),
        pytest.param("(?x)a b", "the flag `x`", id="verbose"),
        pytest.param("(?m:^a)", "the flag `m`", id="multiline"),
        pytest.param("(?:a{100}){100}", "too large", id="repetition"),
        pytest.param("(?:(?:a|b){500}c?){900}", "too large", id="nested-repetition"),
        pytest.param("x" * 257, "257 bytes", id="too-long"),
        pytest.param("é" * 129, "258 bytes", id="too-many-bytes"),
    ],
)
def test_what_cannot_be_a_stop_is_refused_and_says_why(pattern: str, word: str) -> None:
    with pytest.raises(RequestError, match=word) as caught:
        compile_patterns((pattern,))
    assert caught.value.param == "stop_regex"


def test_the_limits_themselves_are_allowed() -> None:
    assert len(compile_patterns(tuple(f"{number:03}" + "x" * 59 for number in range(32)))) == 32
    compile_patterns(("a{" + str(MAX_POSITIONS) + "}", "x" * 256))
    with pytest.raises(RequestError, match="2001 characters"):
        compile_patterns(("a{1000}", "b{1000}", "c"))
    with pytest.raises(RequestError, match="33 patterns"):
        compile_patterns(tuple(map(str, range(33))))


def test_deep_nesting_is_compiled() -> None:
    assert matcher_of("(" * 120 + "a" + ")" * 120).feed("ba") == StopMatch("a", 1, 2)


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("(a+)+b$", None),
        ("(a|a)*b", None),
        ("(a*)*b", None),
        ("(.*)(.*)(.*)b", None),
        ("(a|aa)+b", None),
        ("(a?){30}a{30}b", 60),
    ],
)
def test_patterns_that_explode_elsewhere_read_each_character_once(
    pattern: str, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (compiled,) = compile_patterns((pattern,))
    matcher = RegexMatcher((compiled,))
    calls = 0
    successors = compiled.successors

    def counted(positions: int) -> int:
        nonlocal calls
        calls += 1
        return successors(positions)

    monkeypatch.setattr(compiled, "successors", counted)
    text = "a" * 50_000
    assert matcher.feed(text) is None
    held = most or len(text)  # what the longest match may have of it
    assert matcher.held_back == held
    assert calls <= len(compiled._follow) * len(text)
    assert len(matcher._progresses[0].threads) <= len(compiled._follow)
    assert matcher.feed("b") == StopMatch("a" * held + "b", len(text) - held, len(text) + 1)


def test_only_the_text_that_may_be_part_of_a_match_is_kept() -> None:
    matcher = matcher_of(r"\w{5}!")
    for _ in range(1000):
        matcher.feed("word ")
        assert sum(map(len, matcher._tail)) <= 10


def test_a_set_that_python_warns_of_is_taken_without_a_word() -> None:
    re.purge()  # it warns only of what it has not seen
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_patterns(("[[]never-seen-before",))
