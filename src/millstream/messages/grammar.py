"""GrammarSpec: the form that a request wants its text to have."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

GrammarKind = Literal["json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag", "turn"]


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
