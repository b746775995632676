"""Content blocks: parsed one by one, so that an error names its path, as in `messages[0].content[1].type`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from msgspec import Struct

from millstream.entry.anthropic.protocol import BLOCKS, TextBlock
from millstream.entry.fields import FieldRules
from millstream.errors import RequestError

T = TypeVar("T", bound=Struct)


def parse_at(rules: FieldRules[T], value: Any, where: str) -> T:
    """Parse the object at the path `where`.

    Raises:
        RequestError: it is none, or one of its fields is wrong; `param` is that field's path.
    """
    if not isinstance(value, dict):
        raise RequestError(f"{where} must be an object.", param=where, code="invalid_type")
    try:
        return rules.parse(value)
    except RequestError as error:
        path = where if error.param is None else f"{where}.{error.param}"
        raise RequestError(f"{path}: {error.message}", param=path, code=error.code) from None


def parse_blocks(content: str | list[Any], where: str, kinds: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The blocks of some content, each with its path. A string is one text block; `kinds` are those that may stand here.

    Raises:
        RequestError: a block is wrong, or of another kind.
    """
    if isinstance(content, str):
        yield where, TextBlock(type="text", text=content)
        return
    for index, block in enumerate(content):
        at = f"{where}[{index}]"
        if not isinstance(block, dict):
            raise RequestError(f"{at} must be an object.", param=at, code="invalid_type")
        kind = block.get("type")
        if kind not in kinds:
            shown = kind[:100] if isinstance(kind, str) else kind
            message = f"{at}.type is {shown!r}; this server takes {', '.join(kinds)} here."
            raise RequestError(message, param=f"{at}.type", code="unsupported_block")
        yield at, parse_at(BLOCKS[kind], block, at)


def text_of(content: str | list[Any], where: str, *, between: str = "") -> str:
    """The text of content that may hold text only.

    Raises:
        RequestError: it holds something else.
    """
    return between.join([block.text for _, block in parse_blocks(content, where, ("text",))])
