"""Strings of a schema that stand in a text as they are, without quotes and escapes."""

from __future__ import annotations

import re
from typing import Any

from millstream.grammar.compose import Composer
from millstream.grammar.errors import GrammarError
from millstream.grammar.schema_types import MAX_REFS, resolved, types_of

_JSON_WORDS = "true|false|null|True|False|None"
_LOOKS_LIKE_JSON = re.compile(rf'\s*(?:["\[{{0-9-].*|(?:{_JSON_WORDS})\s*)', re.DOTALL)
_JSON_TERMINAL = rf'/[ \t\r\n]*(["\[{{0-9-](.|\n)*|({_JSON_WORDS})[ \t\r\n]*)/'
_DIGITS = {"date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"}
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS = {
    "date": _DIGITS["date"],
    "time": _TIME,
    "date-time": f"{_DIGITS['date']}T{_TIME}",
    "email": r"[A-Za-z0-9_%+-]{1,40}(\.[A-Za-z0-9_%+-]{1,20})?@[A-Za-z0-9]{1,30}(-[A-Za-z0-9]{1,20})?(\.[A-Za-z]{2,10}){1,3}",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"{_OCTET}(\.{_OCTET}){{3}}",
    "uri": r"https?:\/\/[A-Za-z0-9]{1,30}(\.[A-Za-z0-9]{1,30}){0,4}(:[0-9]{1,4})?(\/[A-Za-z0-9_.~-]{1,40}){0,8}\/?",
}
WORDS = ("minLength", "maxLength", "pattern", "format")


def branches(schema: Any, root: dict[str, Any], depth: int = MAX_REFS) -> list[dict[str, Any]]:
    """A schema as schemas of one type each, any of which a value may follow; what refers to itself without end allows none."""
    schema = resolved(schema, root)
    if schema is False or schema is None or not depth:
        return []
    if not isinstance(schema, dict):
        return [{}]
    for word in ("anyOf", "oneOf", "allOf"):
        of_word = schema.get(word)
        if isinstance(of_word, list) and of_word and (word != "allOf" or len(of_word) == 1):
            beside = {key: value for key, value in schema.items() if key != word}
            merged = [{**beside, **branch} for each in of_word if isinstance(branch := resolved(each, root), dict)]
            return [part for each in merged for part in branches(each, root, depth - 1)]
    if isinstance(schema.get("type"), list):
        return [part for name in schema["type"] for part in branches({**schema, "type": name}, root, depth - 1)]
    if isinstance(schema.get("enum"), list) and "type" not in schema:
        texts = [value for value in schema["enum"] if isinstance(value, str)]
        rest = [value for value in schema["enum"] if not isinstance(value, str)]
        return [{**schema, "enum": values} for values in (texts, rest) if values]
    if isinstance(schema.get("enum"), list):
        values = [value for value in schema["enum"] if schema["type"] in types_of(value)]
        return [{**schema, "enum": values}] if values else []
    return [schema]


def is_string(branch: dict[str, Any]) -> bool:
    """Whether one of `branches` is of strings. What has no type is: its values are taken for strings."""
    if "type" in branch:
        return bool(branch["type"] == "string")
    values = branch.get("enum") or ([branch["const"]] if "const" in branch else [])
    return not any(word in branch for word in ("anyOf", "oneOf", "allOf", "not")) and all(
        isinstance(value, str) for value in values
    )


def looks_like_json(text: str) -> bool:
    """Whether a text may be read as a value that is no string."""
    return _LOOKS_LIKE_JSON.fullmatch(text) is not None


def text_body(composer: Composer, free: str, schema: dict[str, Any], place: str, *, is_mixed: bool) -> str:
    """A terminal of the texts in `free` that a schema of strings allows; with `is_mixed` none that may be another value.

    Raises:
        GrammarError: the schema cannot be followed in a text without quotes.
    """
    bodies = [free]
    if is_mixed:
        bodies.append(f"~({_JSON_TERMINAL})")
    low, high = schema.get("minLength"), schema.get("maxLength")
    if low is not None or high is not None:
        bodies.append(rf"/(.|\n){{{low or 0},{'' if high is None else high}}}/")
    if (pattern := schema.get("pattern")) is not None:
        bodies.append(f"/{_anywhere(pattern, place)}/")
    if (form := schema.get("format")) is not None:
        if form not in _FORMATS:
            raise GrammarError(f"this model's format cannot hold a string to the format {str(form)[:100]!r}", place)
        bodies.append(f"/{_FORMATS[form]}/")
    return free if len(bodies) == 1 else composer.terminal(" & ".join(bodies))


def _anywhere(pattern: Any, place: str) -> str:
    """A pattern that may be found anywhere, as one that all of a text has."""
    if not isinstance(pattern, str):
        raise GrammarError("it must be a string", f"{place}.pattern")
    inner = pattern.removeprefix("^")
    ends = inner.endswith("$") and not inner.endswith("\\$")
    inner = inner[:-1] if ends else inner
    is_anchored = ends or pattern.startswith("^")
    bare = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "", inner)
    if re.search(r"[$^]", bare) or (is_anchored and "|" in re.sub(r"\([^()]*\)", "", bare)):
        raise GrammarError("this model's format cannot hold a string to such a pattern", f"{place}.pattern")
    inner = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", inner).replace("\n", "\\n")
    before = "" if pattern.startswith("^") else r"(.|\n)*"
    return f"{before}({inner}){'' if ends else '(.|' + chr(92) + 'n)*'}"
