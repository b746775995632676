"""Composer: writes one grammar in the library's Lark, with other grammars as its parts. Text becomes tokens where it must.

A marker that is a special token of the vocabulary is that token, for as text it would be another thing; all else is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


class Composer:
    """`specials` are the ids of the special tokens by their text."""

    def __init__(self, specials: Mapping[str, int]) -> None:
        self._specials = specials
        names = sorted(filter(None, specials), key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None
        self._lines = ["ANY: /(.|\\n)*/"]
        self._parts: list[dict[str, Any]] = []
        self._known: dict[str, str] = {}

    def literal(self, text: str) -> str:
        """Exactly this text."""
        return " ".join(self._pieces(text))

    def rule(self, body: str) -> str:
        """A rule; its name. An empty body is none."""
        return self._named("r", body) if body else ""

    def terminal(self, body: str) -> str:
        """A terminal, of which the lexer reads as much as it can; its name."""
        return self._named("T", body)

    def without(self, markers: tuple[str, ...]) -> str:
        """A terminal: any text, without any of `markers` in it."""
        if not markers:
            return "ANY"
        return self.terminal(f"ANY & ~(ANY ({' | '.join(map(quoted, markers))}) ANY)")

    def up_to(self, body: str, marker: str, after: str = "") -> str:
        """A terminal `body`, in which `marker` does not occur, and then `after` and it."""
        pieces = self._pieces(marker)
        if len(pieces) == 1 and pieces[0] == quoted(marker):
            return self.terminal(f"{body} {quoted(after + marker)}")
        return f"{body} {self.literal(after + marker)}"

    def part(self, grammar: str) -> str:
        """A grammar in the library's words as a part of this one."""
        if grammar not in self._known:
            name = self._known[grammar] = f"part_{len(self._parts)}"
            if grammar.lstrip().startswith("{"):
                (inner,) = json.loads(grammar)["grammars"]
            else:
                inner = {"lark_grammar": grammar}
            self._parts.append({key: value for key, value in inner.items() if value is not None} | {"name": name})
        return f"@{self._known[grammar]}"

    def finish(self, start: str) -> str:
        """The whole grammar."""
        text = "\n".join([f"start: {start}", *self._lines]) + "\n"
        return json.dumps({"grammars": [{"name": "turn", "lark_grammar": text}, *self._parts]})

    def _pieces(self, text: str) -> list[str]:
        if self._split is None:
            return [quoted(text)] if text else []
        pieces = (piece for piece in self._split.split(text) if piece)
        return [f"<[{self._specials[piece]}]>" if piece in self._specials else quoted(piece) for piece in pieces]

    def _named(self, prefix: str, body: str) -> str:
        key = f"{prefix} {body}"
        if key not in self._known:
            self._known[key] = f"{prefix}{len(self._known)}"
            self._lines.append(f"{self._known[key]}: {body}")
        return self._known[key]


def quoted(text: str) -> str:
    """A text as a literal of the library's Lark."""
    return json.dumps(text, ensure_ascii=False)


def one_of(bodies: list[str]) -> str:
    """Any of them."""
    return bodies[0] if len(bodies) == 1 else f"({' | '.join(bodies)})"
