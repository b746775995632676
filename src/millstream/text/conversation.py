"""Conversation: chat messages as clients send them, brought to the form one chat template takes.

Called by `ChatTemplate` before each rendering. Checks what a template cannot report well and names the field; it never fetches
anything, never drops text and never changes who said it, but for the developer role where a template does not know it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from millstream.errors import RequestError

MAX_MESSAGES = 10_000  # templates may look back over all messages for each one
PARAGRAPH = "\n\n"  # between instructions that are merged into one system message


@dataclass(frozen=True, slots=True)
class TemplateStyle:
    """What a template takes and writes, found by rendering small conversations with it (`find_style`)."""

    wants_parts: bool = False  # content as a list of parts only; otherwise text
    wants_argument_text: bool = False  # tool call arguments as JSON text; otherwise the object
    wants_null: bool = False  # beside tool calls content must be null; otherwise "" stands for none
    knows_developer: bool = False  # the role; otherwise its messages join the system message
    writes_tool_calls: bool = False  # and what came back; otherwise they would be lost


def normalise(messages: list[dict[str, Any]], style: TemplateStyle) -> list[dict[str, Any]]:
    """Copy `messages` with content as one string, tool call arguments in the template's form and roles it knows.

    Null content becomes "" (beside tool calls what the template takes for none), other null fields and an empty `tool_calls`
    are left out, text parts are joined as they are.

    Raises:
        RequestError: something a text model or a template cannot take; `param` names it.
    """
    if not messages:
        raise RequestError("messages is empty; at least one message is needed.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"messages has {len(messages)} items; at most {MAX_MESSAGES} are allowed.", param="messages")
    plain = [_plain_message(message, f"messages[{index}]", style) for index, message in enumerate(messages)]
    return plain if style.knows_developer else _merge_developer(plain)


def with_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Copy normalised `messages` with each content as a list of one text part, but for null."""
    return [
        message if message["content"] is None else {**message, "content": [{"type": "text", "text": message["content"]}]}
        for message in messages
    ]


def _plain_message(message: dict[str, Any], where: str, style: TemplateStyle) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where}.role must be a string.", param=f"{where}.role")
    plain = {key: value for key, value in message.items() if value is not None}
    if reasoning := plain.pop("reasoning", None):  # another name for it, with some clients
        plain.setdefault("reasoning_content", reasoning)
    plain["content"] = _text(plain.get("content", ""), f"{where}.content")
    if tool_calls := plain.pop("tool_calls", None):
        plain["tool_calls"] = _plain_tool_calls(tool_calls, f"{where}.tool_calls", style)
        if style.wants_null:
            if plain["content"]:
                raise RequestError(
                    f"{where} has content beside tool calls, of which this model's chat template writes only one.",
                    param=f"{where}.content",
                )
            plain["content"] = None
    return plain


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a string or a list of parts.", param=where)
    return "".join([_part_text(part, f"{where}[{index}]") for index, part in enumerate(content)])


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise RequestError(f"{where} must be an object.", param=where)
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        raise RequestError(f"{where}.type is `{kind}`; this model reads text parts only.", param=f"{where}.type")
    text = part.get(kind)
    if not isinstance(text, str):
        raise RequestError(f"{where}.{kind} must be a string.", param=f"{where}.{kind}")
    return text


def _plain_tool_calls(tool_calls: Any, where: str, style: TemplateStyle) -> list[dict[str, Any]]:
    if not isinstance(tool_calls, list):
        raise RequestError(f"{where} must be a list.", param=where)
    plain = []
    for index, call in enumerate(tool_calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise RequestError(f"{where}[{index}].function must be an object.", param=f"{where}[{index}].function")
        given = function.get("arguments")
        arguments: Any = _arguments(given, f"{where}[{index}].function.arguments")
        if style.wants_argument_text:
            # the client's own text, where there is one: it is what the model wrote, to the letter
            arguments = given if isinstance(given, str) and given else msgspec.json.encode(arguments).decode()
        plain.append({**call, "function": {**function, "arguments": arguments}})
    return plain


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            raise RequestError(f"{where} is not valid JSON: {error}", param=where) from None
    if not isinstance(arguments, dict):
        raise RequestError(f"{where} must be a JSON object.", param=where)
    return arguments


def _merge_developer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put all developer instructions into the first system message, which many templates allow only at the start."""
    instructions = [message["content"] for message in messages if message["role"] == "developer"]
    if not instructions:
        return messages
    rest = [message for message in messages if message["role"] != "developer"]
    system: dict[str, Any] = {"role": "system", "content": ""}
    if rest and rest[0]["role"] == "system":
        # the order of the client: instructions that came before the system message stay before it
        system = rest.pop(0)
        before = next(index for index, message in enumerate(messages) if message["role"] == "system")
        instructions.insert(before, system["content"])
    return [{**system, "content": PARAGRAPH.join(instructions)}, *rest]
