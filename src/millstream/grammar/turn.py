"""The grammar of a whole answer: a thought, then calls as the model's family writes them, or content. For the worker alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from millstream.grammar.arguments import python_arguments, tagged_arguments
from millstream.grammar.compose import Composer, one_of, quoted
from millstream.grammar.errors import GrammarError
from millstream.grammar.plan import PlannedCalls, PlannedThought, PlannedTool, TurnPlan
from millstream.grammar.widths import check_width
from millstream.grammar.writing import Writing
from millstream.messages.grammar import GrammarSpec

Convert = Callable[[GrammarSpec], str]


def grammar_of(plan: TurnPlan, specials: Mapping[str, int], convert: Convert) -> str:
    """The grammar of `plan`; `convert` makes that of a form.

    Raises:
        GrammarError: there is none; `place` is the field of the request.
    """
    composer = Composer(specials)
    answer, after = "", ""
    if plan.thought is not None:
        answer = composer.literal(plan.thought.frame.answer)
        after = _thought(composer, plan.thought)
    ways: list[str] = []
    if plan.calls is not None:
        ways += _Calls(composer, plan.calls, writing_of(plan.calls, specials), convert).ways(
            answer, has_form=plan.form is not None
        )
    if plan.form is not None:
        try:
            ways.append(f"{answer} {composer.part(convert(plan.form))}")
        except GrammarError as error:
            place = f"{plan.form.param}.{error.place}" if error.place else plan.form.param
            raise GrammarError(error.message, place) from None
    if not ways:
        ways.append(f"{answer} ANY")
    return composer.finish(f"{after} {one_of(ways)}")


def writing_of(calls: PlannedCalls, specials: Mapping[str, int]) -> Writing:
    """How calls are written over this vocabulary."""
    return next(way for way in calls.writings if not way.needs or way.needs in specials)


def parts_of(plan: TurnPlan) -> Iterator[GrammarSpec]:
    """What clients wrote of it, each by itself, to see which is wrong."""
    for tool in () if plan.calls is None else plan.calls.tools:
        yield GrammarSpec("json_schema", json.dumps(arguments_schema(tool)), tool.where)
    if plan.form is not None:
        yield plan.form


def arguments_schema(tool: PlannedTool) -> dict[str, Any]:
    """The schema that the arguments of a call follow: of an object, with no members but those that the tool names, if it does.

    Raises:
        GrammarError: they are no object.
    """
    schema = tool.parameters
    if schema is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if schema.get("type", "object") != "object":
        raise GrammarError("the arguments of a tool are an object", f"{tool.where}.type")
    closed = {"additionalProperties": False} if "properties" in schema and "patternProperties" not in schema else {}
    return {"type": "object", **closed, **schema}


def _thought(composer: Composer, thought: PlannedThought) -> str:
    """A thought that the model may leave out, unless it is under way."""
    if thought.place == "over":
        return ""
    frame = thought.frame
    free = composer.without((frame.end,))
    space = composer.terminal("/[ \\n]{0,4}/")
    body = f"{composer.up_to(free, frame.end)} {composer.literal(frame.after) or space}"
    if thought.place == "open":
        return composer.rule(body)
    return f"{composer.rule(f'{composer.literal(frame.begin)} {body}')}?"


class _Calls:
    """The calls of one answer."""

    def __init__(self, composer: Composer, plan: PlannedCalls, writing: Writing, convert: Convert) -> None:
        self._composer = composer
        self._convert = convert
        self._plan = plan
        self._writing = writing

    def ways(self, answer: str, *, has_form: bool) -> list[str]:
        """What an answer may be: calls, and, where they are not required and content has no form of its own, text."""
        composer, plan, writing = self._composer, self._plan, self._writing
        named = composer.rule(one_of([self._named(tool) for tool in plan.tools]))
        begin = composer.literal(writing.begin)
        most = min(plan.max_calls, 1 if writing.is_single else plan.max_calls)
        more = f"({composer.literal(writing.between)} {begin} {named}){{0,{most - 1}}}" if most > 1 else ""
        rest = f"{named} {more} {composer.literal(writing.closing)}"
        calls = composer.rule(f"{composer.literal(writing.opening)} {begin} {rest}")
        if plan.is_required or has_form:
            return [calls]
        free = composer.without(plan.markers)
        first = writing.opening + writing.begin
        marker = max((each for each in plan.markers if first.startswith(each)), key=len, default="")
        if answer:
            return [calls, f"{answer} {free}"]
        if not marker:
            starts = composer.terminal(f"{free} & ~(/[ \\t\\r\\n]*/ ({' | '.join(map(quoted, plan.bare_starts))}) ANY)")
            return [calls, starts]
        lead = composer.up_to(free, marker)
        return [f"{lead} {composer.literal(first[len(marker) :])} {rest}", free]

    def _named(self, tool: PlannedTool) -> str:
        """A call from its name on."""
        composer, writing = self._composer, self._writing
        name = quoted(tool.name)[1:-1] if writing.in_string else tool.name
        number = f"{quoted(':')} {composer.terminal('/[0-9]{1,2}/')}" if writing.numbered else ""
        if number:
            head = f"{composer.literal(name)} {number} {composer.literal(writing.after_name)}"
        else:
            head = composer.literal(name + writing.after_name)
        return f"{head} {self._arguments(tool)} {composer.literal(writing.end)}"

    def _arguments(self, tool: PlannedTool) -> str:
        schema = arguments_schema(tool)
        try:
            check_width(schema)
        except GrammarError as error:
            raise GrammarError(error.message, f"{tool.where}.{error.place}" if error.place else tool.where) from None
        match self._writing.style:
            case "json":
                return self._json(schema)
            case "tagged":
                return tagged_arguments(self._composer, self._writing, schema, tool.where, self._json)
            case "python":
                return python_arguments(self._composer, schema, tool.where, self._json)

    def _json(self, schema: dict[str, Any]) -> str:
        return self._composer.part(self._convert(GrammarSpec("json_schema", json.dumps(schema))))
