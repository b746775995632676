"""Ids of responses and their items. A response's id says which entry worker keeps it, an item's which response has it.

Opaque to clients. The random part keeps anybody from guessing one; who may use it is decided by the key that made it.
"""

from __future__ import annotations

import re
import uuid

_RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})([0-9a-f]{1,8})")
_ITEM_ID = re.compile(r"[a-z]{2,4}_([0-9a-f]{33,40})_o?[0-9]{1,6}")


def new_response_id(entry: int) -> str:
    """An id for a response that entry worker `entry` keeps."""
    return f"resp_{uuid.uuid4().hex}{entry:x}"


def keeper(response_id: str) -> int | None:
    """The number of the entry worker that keeps a response; None: it is no id of ours."""
    match = _RESPONSE_ID.fullmatch(response_id)
    return None if match is None else int(match[2], 16)


def output_id(prefix: str, response_id: str, index: int) -> str:
    """The id of item `index` of what a response made; `prefix` says of what type it is."""
    return f"{prefix}_{response_id.removeprefix('resp_')}_o{index}"


def input_id(prefix: str, response_id: str, index: int) -> str:
    """The id of item `index` of a response's input; `prefix` says of what type it is."""
    return f"{prefix}_{response_id.removeprefix('resp_')}_{index}"


def response_of(item_id: str) -> str | None:
    """The response that has an item; None: it is no id of ours."""
    match = _ITEM_ID.fullmatch(item_id)
    return None if match is None else "resp_" + match[1]
