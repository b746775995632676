"""Which JSON texts a schema's grammar lets through, a byte a token."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from millstream.grammar.limits import parser_limits
from millstream.grammar.source import of_schema
from millstream.grammar.vocabulary import Vocabulary

_END = 256
_BYTES = Vocabulary(tokens=[*(bytes([byte]) for byte in range(256)), b"<end>"], special_ids=[_END], eos_ids=[_END])


class SchemaGrammar:
    """The grammar of one schema.

    Raises:
        GrammarError: we refuse it.
        ValueError: the library does.
    """

    def __init__(self, schema: Any) -> None:
        self._matcher = LLMatcher(_tokenizer(), of_schema(schema), log_level=0, limits=parser_limits())
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())

    def allows(self, text: str) -> bool:
        """Whether `text` is a whole answer."""
        self._matcher.reset()
        ids = list(text.encode())
        if self._matcher.validate_tokens(ids) < len(ids):
            return False
        return not ids or (self._matcher.consume_tokens(ids) and self._matcher.is_accepting())

    def allows_value(self, value: Any) -> bool:
        """Whether it lets a value through, written as compactly as can be, its members in this order."""
        return self.allows(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


_made: list[LLTokenizer] = []


def _tokenizer() -> LLTokenizer:
    if not _made:
        _made.append(_BYTES.compiled())
    return _made[0]
