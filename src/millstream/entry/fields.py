"""Honoured or refused: how a request body becomes a typed struct, and what happens to every other field.

Each API declares one `FieldRules`; docs are made from it. A field is honoured (a member of the struct), without effect, or
refused by name. Null equals absent for all of them, and a name on no list is refused too: a typo must not pass in silence.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from millstream.errors import RequestError

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")
Json = dict[str, Any]  # a JSON object

UNUSED: tuple[Any, ...] = (None, [], {}, "")  # clients send earlier answers back whole, with every field they did not use

_PATH = re.compile(r"^(?P<text>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_LIMIT = re.compile(r"^Expected `(?P<type>\w+)`(?P<length> of length)? (?P<sign>[<>]=?) (?P<limit>\S+)$")
_SIGNS = {">=": "at least", "<=": "at most", ">": "greater than", "<": "less than"}
_ITEMS = {"str": "characters", "array": "items", "object": "entries"}
_MISSING = re.compile(r"missing required field `([^`]+)`")


@dataclass(frozen=True)
class Refused:
    """A field we know and do not implement. `neutral` values ask for nothing and pass; `why` is told to the client."""

    why: str = "it is not supported by this server"
    neutral: tuple[Any, ...] = ()


@dataclass(frozen=True)
class FieldRules(Generic[T]):
    """The fields of one API: members of `honoured` work; `without_effect` says why each needs none; `refused` are 400.

    `forms` are the types of fields without effect, where those have one: what is wrong is said all the same.
    `parts` has the rules of honoured fields that are objects with fields of their own, or lists of such; several where they
    are of several types. Their owners apply them. Fields in `for_admins` take an admin's key; the handler asks `needs_admin`.
    """

    honoured: type[T]
    without_effect: dict[str, str] = field(default_factory=dict)
    forms: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, Refused] = field(default_factory=dict)
    parts: dict[str, FieldRules[Any] | tuple[FieldRules[Any], ...]] = field(default_factory=dict)
    for_admins: tuple[str, ...] = ()
    example: dict[str, Any] | None = None
    """A small body that is answered, or a small object within one."""

    def parts_of(self, name: str) -> tuple[FieldRules[Any], ...]:
        """The rules of the objects that the field may hold."""
        rules = self.parts.get(name, ())
        return rules if isinstance(rules, tuple) else (rules,)

    def needs_admin(self, request: T) -> bool:
        """Whether a field of the request asks for what only admins may do."""
        return any(getattr(request, name) for name in self.for_admins)

    def check_names(self, value: dict[str, Any], where: str) -> None:
        """Check the names in an object at the path `where`, of whose values somebody else takes care.

        Raises:
            RequestError: one is not known, and has a value.
        """
        known = (*self.honoured.__struct_fields__, *self.without_effect)
        check_names(value, known, where)

    def parse(self, body: dict[str, Any]) -> T:
        """Turn a decoded body into the struct.

        Raises:
            RequestError: a field is refused, unknown, missing or of the wrong type; `param` names it.
        """
        known = {}
        for name, value in body.items():
            if value is None:
                continue
            if name in self.without_effect:
                _converted(value, self.forms.get(name, Any), name)
            elif name in self.honoured.__struct_fields__:
                known[name] = value
            elif (rule := self.refused.get(name)) is None:
                shown = name[:100]  # a client's word, of any length
                raise RequestError(f"Unrecognized request argument: `{shown}`.", param=shown, code="unknown_parameter")
            elif not any(value == neutral and type(value) is type(neutral) for neutral in rule.neutral):
                raise refusal(name, rule.why)
        return _converted(known, self.honoured)


def check_names(value: dict[str, Any], known: Collection[str], where: str) -> None:
    """Check that an object at the path `where` has values under the names in `known` only.

    Raises:
        RequestError: it has another.
    """
    for name, member in value.items():
        if name not in known and member not in UNUSED:
            path = f"{where}.{name[:100]}"  # a client's word, of any length
            raise RequestError(
                f"Unrecognized or unsupported field `{name[:100]}` in {where}.", param=path, code="unknown_parameter"
            )


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Check that the field `name` is from `low` to `high`, for what its type does not say.

    Raises:
        RequestError: it is not.
    """
    if not low <= value <= high:  # NaN fails it
        raise RequestError(f"{name} is {value}; it must be from {low} to {high}.", param=name)


def check_count(name: str, count: int, most: int, things: str = "items") -> None:
    """Check that the field `name` has at most so many `things`.

    Raises:
        RequestError: it has more.
    """
    if count > most:
        raise RequestError(f"{name} has {count} {things}; at most {most} are allowed.", param=name)


def refusal(name: str, why: str) -> RequestError:
    """The error for a field that asks for what this server does not do."""
    return RequestError(f"`{name}` is refused: {why}.", param=name, code="unsupported_parameter")


def _converted(value: Any, form: type[V], name: str = "") -> V:
    """`value`, which is the field `name` or the whole body, as a `form`.

    Raises:
        RequestError: it is none.
    """
    try:
        return msgspec.convert(value, form, str_keys=True)
    except msgspec.ValidationError as error:
        raise _request_error(error, name) from None


def _request_error(error: msgspec.ValidationError, name: str) -> RequestError:
    """The validation error in a client's terms, with the field's path."""
    match = _PATH.match(str(error))
    assert match is not None  # the pattern matches every string
    path, text = f"{name}{match['path'] or ''}" or None, match["text"]
    if missing := _MISSING.search(text):
        path = f"{path}.{missing[1]}" if path else missing[1]
        return RequestError(f"`{path}` is required.", param=path, code="missing_required_parameter")
    if limit := _LIMIT.search(text):
        must = f"{_SIGNS[limit['sign']]} {limit['limit'].removesuffix('.0')}"
        must = f"have {must} {_ITEMS.get(limit['type'], 'items')}" if limit["length"] else f"be {must}"
        return RequestError(f"{path} must {must}.", param=path, code="invalid_value")
    return RequestError(f"{path or 'The body'} is wrong: {text}.", param=path, code="invalid_type")
