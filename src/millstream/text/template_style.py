"""How one chat template takes its messages: found at load, by rendering small conversations with it.

Called by `ChatTemplate`. What a template does with a form of a message is in its text, which nobody can read in general.
So each form is tried, with marks in it, and what comes out decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from millstream.text.conversation import TemplateStyle, with_parts

CONTENT_MARK = "millstreamMarksContentHere"  # plain letters: no filter of a template changes them
NAME_MARK = "millstreamMarksNameHere"
RESULT_MARK = "millstreamMarksResultHere"

Render = Callable[[list[dict[str, Any]]], str | None]  # None where the template refuses these messages


def find_style(render: Render, *, knows_developer: bool) -> TemplateStyle:
    """Find out what `render`'s template takes; that it knows the developer role is in its text."""
    wants_parts = _wants_parts(render)

    def try_render(messages: list[dict[str, Any]]) -> str | None:
        return render(with_parts(messages) if wants_parts else messages)

    content, written = _tool_call_content(try_render)
    return TemplateStyle(
        wants_parts=wants_parts,
        wants_argument_text=_wants_argument_text(try_render, content),
        wants_null=content is None,
        knows_developer=knows_developer,
        writes_tool_calls=written,
    )


def plain_turns() -> Iterator[list[dict[str, Any]]]:
    """Ordinary conversations, the longest first: a template writes all marks of turns around them, if it takes them."""
    first = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    yield [{"role": "system", "content": "s"}, *first, {"role": "user", "content": "c"}]
    yield [*first, {"role": "user", "content": "c"}]
    yield first[:1]


def closing_turns() -> list[dict[str, Any]]:
    """A conversation that shows what a template writes behind the content of an assistant's message."""
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": CONTENT_MARK}]


def _wants_parts(render: Render) -> bool:
    """Whether text content is lost or refused, and a list of parts is read."""
    message = {"role": "user", "content": CONTENT_MARK}
    as_text = render([message])
    if as_text is not None and CONTENT_MARK in as_text:
        return False
    as_parts = render(with_parts([message]))
    return as_parts is not None and CONTENT_MARK in as_parts and "'type'" not in as_parts


def _tool_call_content(try_render: Render) -> tuple[str | None, bool]:
    """The content that stands for none beside tool calls, and whether calls and their results are written then."""
    written: list[str | None] = []
    for content in ("", None):
        for arguments in ({CONTENT_MARK: 1}, json.dumps({CONTENT_MARK: 1})):
            text = try_render(_tool_turns(content, arguments)) or ""
            if NAME_MARK in text and (content is not None or "None" not in text):
                if RESULT_MARK in text:
                    return content, True
                written.append(content)
    return (written[0] if written else ""), False


def _wants_argument_text(try_render: Render, content: str | None) -> bool:
    """Whether an arguments object is refused or written as Python's repr, and JSON text is written as it is."""
    as_text = try_render(_tool_turns(content, json.dumps({CONTENT_MARK: 1}), with_result=False))
    if as_text is None or json.dumps({CONTENT_MARK: 1}) not in as_text:
        return False
    as_object = try_render(_tool_turns(content, {CONTENT_MARK: 1}, with_result=False))
    return as_object is None or f"'{CONTENT_MARK}'" in as_object


def _tool_turns(content: str | None, arguments: Any, *, with_result: bool = True) -> list[dict[str, Any]]:
    # an id of nine letters and digits: the only form that some templates take
    call = {"id": "call00000", "type": "function", "function": {"name": NAME_MARK, "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
    ]
    result = {"role": "tool", "tool_call_id": "call00000", "name": NAME_MARK, "content": RESULT_MARK}
    return [*messages, result] if with_result else messages
