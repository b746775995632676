"""The beginning of a JSON object, closed: what is there of a call's input that broke off. Pure.

Members that are complete stay, and so do containers that have begun; the member in the making goes. It is what the official
client makes of the same beginning in a stream.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r'\s*+(?:(?P<mark>[{}\[\],:])|(?P<string>"(?:[^"\\]++|\\.)*+")|(?P<scalar>[^\s{}\[\],:"]++))', re.DOTALL)
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CLOSERS = {"{": "}", "[": "]"}


def closed(beginning: str) -> str:
    """`beginning`, which begins a JSON object or is empty, as the text of an object."""
    open_: list[str] = []  # the closing brackets that are due
    end = 0  # up to where it can be kept; no bracket comes after that
    is_key = False  # whether the next string is a member's name
    at = 0
    while (token := _TOKEN.match(beginning, at)) is not None:
        at = token.end()
        mark = token["mark"]
        if mark in (",", ":"):
            is_key = mark == "," and open_[-1:] == ["}"]
            continue
        if mark in _CLOSERS:
            open_.append(_CLOSERS[mark])
            is_key = mark == "{"
        elif mark is not None:
            open_.pop()
        elif is_key or (token["scalar"] and _SCALAR.fullmatch(token["scalar"]) is None):
            continue
        end = at
    return beginning[:end] + "".join(reversed(open_)) or "{}"
