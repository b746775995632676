"""How wide and long a JSON schema may be: the library follows so many possibilities, and gives up beyond, in mid-answer.

So what is too wide or too long is refused before, at any depth of the schema; and so is what the library counts wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.grammar.errors import GrammarError
from millstream.grammar.schema_parts import parts
from millstream.grammar.schema_types import resolved

MAX_ITEMS = 1_950  # of the library's 2,000 in a row
MAX_LITERAL = 1_000  # characters of a key or a value that is given: each is a state, and masks in long ones are slow
MAX_LENGTH = 4_000  # characters of a string whose length is bounded: each is 9 to 11 of the 50,000 states there may be
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
        _check_bounds(part, f"{path}." if path else "")


def _check_bounds(part: dict[str, Any], before: str) -> None:
    for word in ("minLength", "maxLength"):
        if isinstance(part.get(word), int) and part[word] > MAX_LENGTH:
            raise GrammarError(f"the length of a string can be bounded by {MAX_LENGTH} characters at most", before + word)
    least = part.get("minProperties")
    is_open = part.get("additionalProperties", True) is not False or "patternProperties" in part
    if isinstance(least, int) and is_open and least > len(_needed(part)) + 1:
        raise GrammarError(
            "of members that are not named no more than one can be required: two may have one name", before + "minProperties"
        )


def _needed(part: dict[str, Any]) -> set[str]:
    """The names of the members that an object must have."""
    required = part.get("required")
    return {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()


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
    properties = part.get("properties")
    if not isinstance(properties, dict):
        return 0
    needed = _needed(part)
    longest = run = 0
    for name in properties:
        run = 0 if name in needed else run + 1
        longest = max(longest, run)
    return longest


def _literals(part: dict[str, Any]) -> Iterator[Any]:
    yield from part["properties"] if isinstance(part.get("properties"), dict) else ()
    yield from part["enum"] if isinstance(part.get("enum"), list) else ()
    yield part.get("const")
