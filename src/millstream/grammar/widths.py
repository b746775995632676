"""How wide a JSON schema may be: the library follows so many possibilities at a place, and gives up beyond, in mid-answer.

So what is too wide is refused before, at any depth of the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.grammar.errors import GrammarError
from millstream.grammar.schema_parts import parts
from millstream.grammar.schema_types import resolved

MAX_ITEMS = 1_950  # of the library's 2,000 in a row
MAX_LITERAL = 1_000  # characters of a key or a value that is given: each is a state, and masks in long ones are slow
_ITEMS_PER_KEY = 4  # for each optional key that may come next, measured
_MAX_DEPTH = 16

_CHOICES = ("anyOf", "oneOf", "allOf")


def check_width(schema: dict[str, Any]) -> None:
    """Check all parts of a schema.

    Raises:
        GrammarError: one is too wide; `place` is where.
    """
    for path, part in parts(schema):
        if _items(part, schema, _MAX_DEPTH) > MAX_ITEMS and not _has_wide_branch(part, schema):
            raise GrammarError("it is too wide: there are too many optional members or alternatives at one place", path)
        if any(isinstance(text, str) and len(text) > MAX_LITERAL for text in _literals(part)):
            raise GrammarError(f"it has a name or value of more than {MAX_LITERAL} characters", path)


def _items(part: Any, root: dict[str, Any], depth: int) -> int:
    """About how many possibilities there are at once where a value of this schema stands."""
    part = resolved(part, root)
    if not isinstance(part, dict) or not depth:
        return 1
    count = 1 + _ITEMS_PER_KEY * _longest_run(part)
    for word in _CHOICES:
        branches = part.get(word)
        for branch in branches if isinstance(branches, list) else ():
            count += _items(branch, root, depth - 1)
            if count > MAX_ITEMS:
                return count
    return count


def _has_wide_branch(part: dict[str, Any], root: dict[str, Any]) -> bool:
    """Whether it is one of its alternatives that is too wide, which is found in its own place."""
    lists = [part[word] for word in _CHOICES if isinstance(part.get(word), list)]
    return any(_items(branch, root, _MAX_DEPTH - 1) > MAX_ITEMS for branches in lists for branch in branches)


def _longest_run(part: dict[str, Any]) -> int:
    """The most optional members of an object that stand one after another."""
    properties, required = part.get("properties"), part.get("required")
    if not isinstance(properties, dict):
        return 0
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    longest = run = 0
    for name in properties:
        run = 0 if name in needed else run + 1
        longest = max(longest, run)
    return longest


def _literals(part: dict[str, Any]) -> Iterator[Any]:
    yield from part["properties"] if isinstance(part.get("properties"), dict) else ()
    yield from part["enum"] if isinstance(part.get("enum"), list) else ()
    yield part.get("const")
