"""Random walks through a grammar: texts that its masks allow, over a real vocabulary."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from millstream.grammar.limits import parser_limits
from millstream.grammar.source import convert
from millstream.grammar.vocabulary import Vocabulary
from millstream.messages.grammar import GrammarSpec

MAX_FREE_TOKENS = 60  # drawn at random; from then on a walk looks for its end
MAX_TOKENS = 4_000
ENDS = ('"}', '"', "}", "]", ")", "null", "0", "true")


class Walker:
    """Walks of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.specials: Mapping[str, int] = vocabulary.specials()
        self._tokenizer: LLTokenizer = vocabulary.compiled()
        ids = {token: token_id for token_id, token in reversed(list(enumerate(vocabulary.tokens)))}
        self._bytes = [ids.get(bytes([byte])) for byte in range(256)]

    def matcher(self, spec: GrammarSpec) -> LLMatcher:
        """A matcher at the start of a grammar, which must be right."""
        made = LLMatcher(self._tokenizer, convert(spec, self.specials), log_level=0, limits=parser_limits())
        assert not made.is_error(), made.get_error()
        return made

    def walk(
        self,
        matcher: LLMatcher,
        drawn: random.Random,
        *,
        free: int = MAX_FREE_TOKENS,
        ends: tuple[str, ...] = (),
        once: str = "",
    ) -> str:
        """One text, from the start of the grammar to an end; `ends` are texts that lead there, and `once`, the first time."""
        matcher.reset()
        text = b""
        eos = self.vocabulary.eos_ids
        for step in range(MAX_TOKENS):
            allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))
            assert not matcher.is_error(), matcher.get_error()
            ids = allowed[~np.isin(allowed, eos)]
            if matcher.is_accepting() and (not len(ids) or step > free or drawn.random() < 0.2):
                return text.decode()
            once_more = (once,) if once and once.encode() not in text else ()
            special = ids[np.isin(ids, self.vocabulary.special_ids)] if step > free else ids[:0]
            if step > free and not len(special) and (taken := self._towards_an_end(matcher, (*once_more, *ends, *ENDS))):
                text += taken
                continue
            token_id = int(drawn.choice(special if len(special) else ids))
            assert matcher.consume_token(token_id), matcher.get_error()
            text += self.vocabulary.tokens[token_id]
        raise AssertionError(f"the walk found no end: {text[-300:]!r}")

    def _towards_an_end(self, matcher: LLMatcher, ends: tuple[str, ...]) -> bytes:
        for end in ends:
            ids = [self._bytes[byte] for byte in end.encode()]
            if None not in ids and matcher.validate_tokens(ids) == len(ids):
                matcher.consume_tokens(ids)
                return end.encode()
        return b""
