"""Writing: how a family of models writes its calls and its thought, so that a grammar can have them written so.

What a format's parser reads is wider: models stray. Its `Writing` is the one way in which they were taught to write.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Writing(Struct, frozen=True, kw_only=True):
    """The text of calls: `opening`, calls with `between`, `closing`; a call is `begin` NAME `after_name` ARGUMENTS `end`.

    Arguments are JSON, tagged parameters or Python's keyword arguments. A tagged one is `key[0]` KEY `key[1]` VALUE `value[0]`
    `value[1]` `value[2]`, of which `value[1]` is the marker that ends the value; a value that is no string is JSON there.
    With `in_string` the name stands within a JSON string; behind one that is `numbered` come a colon and a number. `is_single`:
    the model ends its turn after a call. `needs` is a token that only those models have that write so.
    """

    begin: str
    after_name: str
    end: str
    opening: str = ""
    closing: str = ""
    between: str = ""
    style: Literal["json", "tagged", "python"] = "json"
    key: tuple[str, str] = ("", "")
    value: tuple[str, str, str] = ("", "", "")
    in_string: bool = False
    numbered: bool = False
    is_single: bool = False
    needs: str = ""


class Frame(Struct, frozen=True, kw_only=True):
    """The text around what a model thinks: `begin` THOUGHT `end` `after`, then `answer` and what it says."""

    begin: str
    end: str
    after: str = ""
    answer: str = ""
