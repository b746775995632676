"""From what a client wrote to a grammar in the library's words. Runs in the worker alone: converting is work, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from millstream.grammar.errors import GrammarError
from millstream.grammar.numbers import bounded
from millstream.grammar.plan import TurnPlan
from millstream.grammar.turn import grammar_of
from millstream.grammar.widths import check_width
from millstream.messages.grammar import GrammarSpec

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# Between the parts of JSON: nothing, a space, or a line break with its indentation. Unbounded white space is what a small model
# at a loss writes until its limit.
JSON_OPTIONS: JsonCompileOptions = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r"(\n[ \t]{0,40}| )",
    "lenient": False,  # what is not implemented is an error, and never ignored
    "coerce_one_of": False,
}
ANY_TEXT = r"(.|\n)*"
NO_SPECIALS: Mapping[str, int] = MappingProxyType({})


def convert(spec: GrammarSpec, specials: Mapping[str, int] = NO_SPECIALS) -> str:
    """The grammar of `spec`, not checked. `specials` are the ids of the vocabulary's special tokens, by their text.

    Raises:
        GrammarError: it cannot be read.
    """
    match spec.kind:
        case "json_object":
            return of_schema({"type": "object"})
        case "json_schema":
            return of_schema(_read(spec))
        case "regex":
            return str(LLMatcher.grammar_from_regex(spec.source))
        case "ebnf":
            return _of_ebnf(spec.source)
        case "choice":
            return _of_choice(_read(spec))
        case "structural_tag":
            return _of_tags(_read(spec))
        case "turn":
            plan = msgspec.json.decode(spec.source, type=TurnPlan)
            return grammar_of(plan, specials, lambda part: convert(part, specials))


def of_schema(schema: Any) -> str:
    """The grammar of the JSON that a schema allows.

    Raises:
        GrammarError: it is no object, or too wide.
    """
    if not isinstance(schema, dict):
        raise GrammarError("a schema must be an object")
    check_width(schema)
    return str(LLMatcher.grammar_from_json_schema(_written(schema), overrides=JSON_OPTIONS))


def _read(spec: GrammarSpec) -> Any:
    try:
        return json.loads(spec.source)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is no JSON: {error}") from None


def _of_ebnf(text: str) -> str:
    try:
        return str(LLMatcher.grammar_from_lark(any_to_lark(text)))
    except Exception as error:  # noqa: BLE001  the converter says what is wrong by many kinds of exception
        raise GrammarError(f"it cannot be read: {error}") from None


def _of_choice(choices: Any) -> str:
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise GrammarError("it must be a list of strings that are not empty")
    return str(LLMatcher.grammar_from_lark("start: " + " | ".join(map(_quoted, choices))))


def _of_tags(form: Any) -> str:
    """Free text in which each trigger begins one of the structures: `begin`, JSON by `schema`, `end`."""
    if not isinstance(form, dict) or form.get("type", "structural_tag") != "structural_tag" or "structures" not in form:
        raise GrammarError('only the form {"type": "structural_tag", "structures": [...], "triggers": [...]} is supported')
    if unknown := form.keys() - {"type", "structures", "triggers"}:
        raise GrammarError("unknown field", min(unknown))
    structures, triggers = form["structures"], form.get("triggers")
    if not isinstance(structures, list) or not structures:
        raise GrammarError("it must be a list with a structure at least", "structures")
    if not isinstance(triggers, list) or not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise GrammarError("it must be a list of strings that are not empty", "triggers")
    names, rules = [], []
    for index, structure in enumerate(structures):
        begin, schema, end = _tag(structure, f"structures[{index}]")
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise GrammarError("it begins with none of the triggers", f"structures[{index}].begin")
        names.append(f"tag_{index}")
        rules.append(f"trigger_{index}[lazy]: TEXT {_quoted(trigger)}")
        rest = _quoted(begin[len(trigger) :]) if len(begin) > len(trigger) else ""
        close = _quoted(end) if end else ""
        rules.append(f"tag_{index}: trigger_{index} {rest} %json {_written(_with_options(schema))} {close}")
    lines = [f"start: ({' | '.join(names)})* TEXT", f"TEXT: /{ANY_TEXT}/", *rules]
    return str(LLMatcher.grammar_from_lark("\n".join(lines) + "\n"))


def _tag(structure: Any, place: str) -> tuple[str, dict[str, Any], str]:
    if not isinstance(structure, dict) or structure.keys() - {"begin", "schema", "end"}:
        raise GrammarError("it must be an object of `begin`, `schema` and `end`", place)
    begin, end = structure.get("begin"), structure.get("end", "")
    if not isinstance(begin, str) or not begin:
        raise GrammarError("it must be a string that is not empty", f"{place}.begin")
    if not isinstance(end, str):
        raise GrammarError("it must be a string", f"{place}.end")
    if not isinstance(schema := structure.get("schema", {}), dict):
        raise GrammarError("a schema must be an object", f"{place}.schema")
    try:
        check_width(schema)
    except GrammarError as error:
        raise GrammarError(error.message, f"{place}.schema.{error.place}" if error.place else f"{place}.schema") from None
    return begin, schema, end


def _written(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(bounded(schema), allow_nan=False)
    except ValueError:
        raise GrammarError("a number in it is too large, or none") from None
    except RecursionError:
        raise GrammarError("it is too deep") from None


def _with_options(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "x-guidance": JSON_OPTIONS}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
