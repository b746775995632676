"""GrammarSpec: the form that a request wants its text to have; and what marks a thought in it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

GrammarKind = Literal["json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag", "turn"]


class ThoughtMarks(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a thought is told from the rest of an answer: its tags, and whether the prompt ended within it.

    With `is_anywhere` thoughts may come after the answer has begun, too.
    """

    begin: str
    end: str
    is_open: bool = False
    is_anywhere: bool = False


class ThoughtBudget(Struct, frozen=True, kw_only=True):
    """A thought of at most `tokens` tokens: then come `end_ids`, which write its closing tag."""

    marks: ThoughtMarks
    tokens: int
    end_ids: tuple[int, ...]


class GrammarSpec(Struct, frozen=True, omit_defaults=True):
    """A grammar as a client wrote it, and after that in the words of the library that follows it.

    `source` is JSON for `json_schema`, `choice` (a list of strings) and `structural_tag`, a
    plan (`grammar.plan`) for `turn`, a whole answer; empty for `json_object`, else text.
    `checked` is the grammar that was proven to compile within the limits (`grammar.checker`); the scheduler takes no other.
    """

    kind: GrammarKind
    source: str = ""
    param: str = ""  # the field it came in
    checked: str = ""
    budget: ThoughtBudget | None = None  # of the thought that the grammar begins with
