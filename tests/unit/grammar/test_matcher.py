"""Matcher: its masks against a reference that knows nothing of grammars, on a vocabulary small enough to try everything."""

from __future__ import annotations

import re
from concurrent.futures import wait
from itertools import product

import numpy as np
import pytest

from millstream.errors import EngineError
from millstream.grammar.matcher import GrammarCompiler, Matcher
from millstream.grammar.source import convert
from millstream.grammar.vocabulary import Vocabulary
from millstream.messages.grammar import GrammarSpec

EOS, OTHER, NOTHING = 0, 1, 2
TEXTS = [b"a", b"b", b"c", b"ab", b"bc", b"abc", b"ca", b"bb", b"aab"]
VOCABULARY = Vocabulary(tokens=[b"<end>", b"<x>", b"", *TEXTS], special_ids=[EOS, OTHER], eos_ids=[EOS])
REGEXES = ["abc", "a+", "(ab|ba)*c", "a{2,4}b?", "[abc]{1,3}", "(a|bb)+c|b", "abca|abcb"]
LONGEST = 5  # characters of the texts that are tried; a token and what completes it are 5 more


def matcher_of(compiler: GrammarCompiler, regex: str) -> Matcher:
    grammar = convert(GrammarSpec("regex", regex))
    made = compiler.matcher(grammar)
    if made is None:
        wait([compiler._pending[grammar]])
        made = compiler.matcher(grammar)
    assert made is not None
    return made


def allowed_ids(matcher: Matcher) -> set[int]:
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return {int(each) for each in np.flatnonzero(bits)}


def reference(texts: set[str], said: str) -> set[int]:
    """Ids that keep some text of the language in reach."""
    ids = {3 + i for i, token in enumerate(TEXTS) if any(text.startswith(said + token.decode()) for text in texts)}
    return ids | ({EOS} if said in texts else set())


@pytest.mark.parametrize("regex", REGEXES)
def test_a_mask_allows_what_leaves_a_text_in_reach_and_nothing_else(regex: str) -> None:
    pattern = re.compile(regex)
    words = ("".join(letters) for size in range(LONGEST + 6) for letters in product("abc", repeat=size))
    texts = {text for text in words if pattern.fullmatch(text)}
    compiler = GrammarCompiler(VOCABULARY)
    todo: list[list[int]] = [[]]
    while todo:
        ids = todo.pop()
        said = b"".join(VOCABULARY.tokens[token_id] for token_id in ids).decode()
        if len(said) > LONGEST:
            continue
        matcher = matcher_of(compiler, regex)
        matcher.take(ids)
        expected = reference(texts, said)
        if matcher.is_ended:
            assert expected == {EOS}
            continue
        found = allowed_ids(matcher)
        # where one text alone is left, the mask has the one token that is next in it
        assert found == expected or (len(found) == 1 and found < expected), (regex, said)
        todo += [[*ids, token_id] for token_id in found if token_id != EOS]


def test_a_copy_goes_its_own_way_and_what_is_forbidden_ends_it() -> None:
    compiler = GrammarCompiler(VOCABULARY)
    first, second = matcher_of(compiler, "(a|b)c*"), matcher_of(compiler, "(a|b)c*")
    first.take([3])
    assert allowed_ids(first) == {EOS, 5}
    assert 3 in allowed_ids(second)
    with pytest.raises(EngineError):
        first.take([4])
    second.take([4])
    assert allowed_ids(second) == {EOS, 5}
    second.take([EOS])
    assert second.is_ended


def test_control_tokens_and_ids_without_bytes_are_never_allowed() -> None:
    found = allowed_ids(matcher_of(GrammarCompiler(VOCABULARY), r"(.|\n)*"))
    assert found == {EOS, *range(3, len(VOCABULARY.tokens))}


def test_what_is_forced_is_what_the_masks_leave_and_all_of_it_up_to_a_limit() -> None:
    compiler = GrammarCompiler(VOCABULARY)
    num_forced = 0
    for regex in REGEXES:
        for seed in range(20):
            numbers = np.random.default_rng(seed)
            matcher = matcher_of(compiler, regex)
            while not matcher.is_ended:
                few, forced = matcher.forced(1), matcher.forced(100)
                assert few == forced[:1]
                num_forced += len(forced)
                for token_id in forced:
                    assert allowed_ids(matcher) == {token_id}
                    matcher.take([token_id])
                if not forced:
                    token_id = int(numbers.choice(sorted(allowed_ids(matcher))))
                    matcher.take([token_id])
                    if token_id == EOS:
                        break
    assert num_forced > 0
