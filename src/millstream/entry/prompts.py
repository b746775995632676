"""Prompts as bodies have them: a text, a list of token ids, or a list of either."""

from __future__ import annotations

from typing import Any

from millstream.errors import RequestError


def parse_prompts(value: str | list[Any], name: str) -> tuple[list[str | list[int]], bool]:
    """The prompts in the field `name`, and whether the client sent a list of them.

    Raises:
        RequestError: an empty or mixed list.
    """
    if isinstance(value, str):
        return [value], False
    if not value:
        raise RequestError(f"{name} is an empty list.", param=name)
    if is_ids(value):
        return [value], False
    if all(isinstance(item, str) for item in value) or all(is_ids(item) for item in value):
        return list(value), True
    raise RequestError(
        f"{name} must be a string, a list of strings, a list of token ids, or a list of lists of token ids.", param=name
    )


def is_ids(value: Any) -> bool:
    """Whether `value` is a list of integers with at least one item."""
    return isinstance(value, list) and set(map(type, value)) == {int}
