"""Items of `input`: checked, and brought to the full form in which the API lists them. Pure: nothing is looked up here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millstream.entry.chat_messages import no_tool_calls
from millstream.entry.fields import check_count, check_names
from millstream.entry.openai.responses.ids import input_id
from millstream.errors import RequestError
from millstream.text.conversation import MAX_MESSAGES

Item = dict[str, Any]

ROLES = ("user", "assistant", "system", "developer")
_STATUSES = ("completed", "in_progress", "incomplete")
_NEEDS_TOOLS = ("function_call", "function_call_output")
_FIELDS = {
    "message": {"role", "content", "phase"},
    "function_call": {"call_id", "name", "arguments"},
    "function_call_output": {"call_id", "output"},
}


def to_items(value: str | list[Any], response_id: str, *, writes_tool_calls: bool) -> list[Item]:
    """The items of a request's `input` in full form, with ids; references to stored items stay as they are.

    Raises:
        RequestError: an item is wrong or not supported; `param` names it, or its field.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not value:
        raise RequestError("input is empty; at least one item is needed.", param="input")
    check_count("input", len(value), MAX_MESSAGES)
    items = []
    for index, item in enumerate(value):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise RequestError(f"{where} must be an object.", param=where)
        kind = _kind(item, where)
        if kind in _NEEDS_TOOLS and not writes_tool_calls:
            raise no_tool_calls(where, param=f"{where}.type")
        prefix, make = _MAKERS[kind]
        known = _string(item, "id", where, default="") or input_id(prefix, response_id, index)
        items.append({"id": known, "type": kind, **make(item, where)})
    return items


def _kind(item: Item, where: str) -> str:
    kind = item.get("type")
    if kind is None:
        kind = "item_reference" if "role" not in item and "id" in item else "message"
    if not isinstance(kind, str) or kind not in _MAKERS:
        known = ", ".join(_MAKERS)
        raise RequestError(f"{where}.type is {kind!r:.100}; this server takes {known}.", param=f"{where}.type")
    if (fields := _FIELDS.get(kind)) is not None:
        check_names(item, {"type", "id", "status", *fields}, where)
    return kind


def _message(item: Item, where: str) -> Item:
    role = item.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role is {role!r:.100}; it must be one of {', '.join(ROLES)}.", param=f"{where}.role")
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text" if role == "assistant" else "input_text", "text": content}]
    if not isinstance(content, list):
        raise RequestError(f"{where}.content must be a string or a list of parts.", param=f"{where}.content")
    parts = [_part(part, role, f"{where}.content[{index}]") for index, part in enumerate(content)]
    return {"role": role, "status": _status(item, where), "content": parts}


def _part(part: Any, role: str, where: str) -> Item:
    if not isinstance(part, dict):
        raise RequestError(f"{where} must be an object.", param=where)
    kind = part.get("type")
    if kind == "refusal" and role == "assistant":
        return {"type": "refusal", "refusal": _string(part, "refusal", where)}
    if kind not in ("input_text", "output_text"):
        raise RequestError(f"{where}.type is {kind!r:.100}; this model reads text parts only.", param=f"{where}.type")
    text = _string(part, "text", where)
    if role != "assistant":
        return {"type": "input_text", "text": text}
    annotations = part.get("annotations") or []
    if not isinstance(annotations, list):
        raise RequestError(f"{where}.annotations must be a list.", param=f"{where}.annotations")
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def _function_call(item: Item, where: str) -> Item:
    arguments, status = _string(item, "arguments", where), _status(item, where)
    try:
        is_object = isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        is_object = False
    if not is_object and status == "completed":
        raise RequestError(f"{where}.arguments must be the JSON text of an object.", param=f"{where}.arguments")
    name, call_id = _string(item, "name", where), _string(item, "call_id", where)
    return {"call_id": call_id, "name": name, "arguments": arguments, "status": status}


def _function_call_output(item: Item, where: str) -> Item:
    output = item.get("output")
    if isinstance(output, list):
        parts = [_part(part, "tool", f"{where}.output[{index}]") for index, part in enumerate(output)]
        output = "".join([part["text"] for part in parts])
    if not isinstance(output, str):
        raise RequestError(f"{where}.output must be a string or a list of text parts.", param=f"{where}.output")
    return {"call_id": _string(item, "call_id", where), "output": output, "status": _status(item, where)}


def _reasoning(item: Item, where: str) -> Item:
    """What the model thought, as it came. Clients send it back with the answer that it belongs to."""
    content = item.get("content") or []
    if not isinstance(content, list):
        raise RequestError(f"{where}.content must be a list of parts.", param=f"{where}.content")
    for index, part in enumerate(content):
        at = f"{where}.content[{index}]"
        if not isinstance(part, dict) or part.get("type") != "reasoning_text":
            raise RequestError(f"{at} must be a part of the type `reasoning_text`.", param=at)
        _string(part, "text", at)
    return {**{name: value for name, value in item.items() if name != "id"}, "summary": item.get("summary") or []}


def _reference(item: Item, where: str) -> Item:
    _string(item, "id", where)
    return {}


def _status(item: Item, where: str) -> str:
    status = item.get("status") or "completed"
    if status not in _STATUSES:
        raise RequestError(
            f"{where}.status is {status!r:.100}; it must be one of {', '.join(_STATUSES)}.", param=f"{where}.status"
        )
    return str(status)


def _string(item: Item, name: str, where: str, default: str | None = None) -> str:
    value = item.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise RequestError(f"{where}.{name} must be a string.", param=f"{where}.{name}")
    return value


# what makes each type, with the beginning of its ids
_MAKERS: dict[str, tuple[str, Callable[[Item, str], Item]]] = {
    "message": ("msg", _message),
    "function_call": ("fc", _function_call),
    "function_call_output": ("fco", _function_call_output),
    "reasoning": ("rs", _reasoning),
    "item_reference": ("ref", _reference),
}
