"""Turn: what a call wants of its answer (tools, thinking, form), whatever its API: what of that the served model can do, what
its template is told, and how the answer is read and held.

An API puts what it read of its own fields into a `Wish` and calls `plan`; what is wrong is named as the API names it. Once
there is a prompt, `Turn.after` says how the answer to it is read and which grammar binds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from millstream.entry.service import Service
from millstream.entry.thinking import Thinking, Told, tell
from millstream.entry.tools import OfferedTool, tools_of
from millstream.errors import RequestError
from millstream.grammar.plan import MAX_CALLS, PlannedCalls, PlannedThought, PlannedTool, TurnPlan
from millstream.grammar.thought import ThoughtMeter
from millstream.messages import GenerateReqInput
from millstream.messages.grammar import GrammarSpec, ThoughtBudget, ThoughtMarks
from millstream.parsing.draft import Tools
from millstream.parsing.pipeline import Reading
from millstream.parsing.reasoning import ReasoningFormat
from millstream.parsing.stage import ToolFormat

TAIL_TOKENS = 32  # more than any tag has

Place = Literal["open", "possible", "over"]  # of an answer's beginning: within a thought, before one that may be, or behind


@dataclass(frozen=True, kw_only=True)
class Fields:
    """What an API calls the fields that a refusal may name."""

    tools: str = "tools"
    tool_choice: str = "tool_choice"
    separate_reasoning: str = "separate_reasoning"


@dataclass(frozen=True)
class ToolChoice:
    """Whether tools are to be called: not at all, as the model likes, or in any case. `names`: of these only; None: of all."""

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a call wants of its answer. `form` is the grammar that its content is to have."""

    fields: Fields = Fields()
    tools: tuple[OfferedTool, ...] = ()
    choice: ToolChoice = ToolChoice()
    parallel: bool = True  # otherwise one call at most
    thinking: Thinking = Thinking()
    separate_reasoning: bool = True  # otherwise it stays in the content, tags and all
    form: GrammarSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How the answer to one prompt is read (None: all of it is content), what it is held to, and what in it is thought."""

    reading: Reading | None
    grammar: GrammarSpec | None
    marks: ThoughtMarks | None

    def bind(self, requests: list[GenerateReqInput]) -> None:
        """Hold requests, which are not sent yet, to the grammar, and let them keep the special tokens that markers may be."""
        shows_all = self.reading is not None and self.reading.needs_special_tokens
        for request in requests:
            sampling = msgspec.structs.replace(request.sampling, grammar=self.grammar)
            request.sampling = msgspec.structs.replace(sampling, skip_special_tokens=False) if shows_all else sampling

    def meter(self) -> ThoughtMeter | None:
        """What counts the tokens of thought in one choice; None where there are none."""
        return None if self.marks is None else ThoughtMeter(self.marks)


@dataclass(frozen=True, kw_only=True)
class Calling:
    """The tools that may be called, and how: as the model likes, held to a form, or in any case."""

    format: ToolFormat
    tools: Tools
    offered: tuple[OfferedTool, ...]
    is_held: bool
    is_required: bool


class Turn:
    """A wish that the served model can follow. Made by `plan`."""

    def __init__(self, wish: Wish, service: Service, calling: Calling | None, told: Told) -> None:
        self._wish = wish
        self._service = service
        self._calling = calling
        self._told = told

    @property
    def template_tools(self) -> list[dict[str, Any]] | None:
        """What the chat template gets as `tools`, in OpenAI's form; None: no tools are offered."""
        return None if self._calling is None else [tool.given for tool in self._wish.tools]

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the chat template. What the client itself gives under the same names comes before."""
        return self._told.kwargs

    def after(self, prompt: str | list[int]) -> Answer:
        """The answer to `prompt`, which the template made with the tools and variables above."""
        reasoning = self._service.text.parsers.reasoning
        place = "over" if reasoning is None else self._place(prompt, reasoning)
        marks = None
        if reasoning is not None:
            marks = ThoughtMarks(
                begin=reasoning.begin, end=reasoning.end, is_open=place == "open", is_anywhere=reasoning.frames is not None
            )
        return Answer(reading=self._reading(reasoning, place), grammar=self._grammar(reasoning, place, marks), marks=marks)

    def _place(self, prompt: str | list[int], reasoning: ReasoningFormat) -> Place:
        if not isinstance(prompt, str):
            prompt = self._service.text.tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special_tokens=False)
        if reasoning.opened_by(prompt):
            return "open"
        return "over" if reasoning.closed_by(prompt) else "possible"

    def _reading(self, reasoning: ReasoningFormat | None, place: Place) -> Reading | None:
        calling = self._calling
        if not self._wish.separate_reasoning:
            reasoning = None
        if reasoning is None and calling is None:
            return None
        return Reading(
            reasoning=reasoning,
            tool_format=None if calling is None else calling.format,
            tools=Tools({}) if calling is None else calling.tools,
            is_open=place == "open" and reasoning is not None,
        )

    def _grammar(self, reasoning: ReasoningFormat | None, place: Place, marks: ThoughtMarks | None) -> GrammarSpec | None:
        wish, calling = self._wish, self._calling
        tokens = None if place == "over" else self._told.budget
        is_held = calling is not None and (calling.is_held or tokens is not None)
        if not is_held and tokens is None and (wish.form is None or reasoning is None):
            return wish.form
        calls = self._planned(calling) if calling is not None and is_held else None
        thought = None if reasoning is None else PlannedThought(frame=reasoning.frame, place=place)
        plan = TurnPlan(thought=thought, calls=calls, form=wish.form)
        budget = None
        if tokens is not None and marks is not None:
            end_ids = self._service.text.tokenizer.encode(marks.end, add_special_tokens=False)
            budget = ThoughtBudget(marks=marks, tokens=tokens, end_ids=tuple(end_ids))
        return GrammarSpec("turn", msgspec.json.encode(plan).decode(), self._param, budget=budget)

    @property
    def _param(self) -> str:
        """The field that most asks for a grammar."""
        wish, calling = self._wish, self._calling
        if calling is not None and calling.is_required:
            return wish.fields.tool_choice
        if wish.form is not None:
            return wish.form.param
        return wish.fields.tools if calling is not None and calling.is_held else wish.thinking.param

    def _planned(self, calling: Calling) -> PlannedCalls:
        form = calling.format
        any_object = {"type": "object"}
        return PlannedCalls(
            writings=form.written,
            markers=(*form.opens, *(form.section or ())),
            bare_starts=form.bare_starts if form.bare is not None else "",
            tools=tuple(
                PlannedTool(tool.name, tool.parameters if calling.is_required or tool.strict else any_object, tool.where)
                for tool in calling.offered
            ),
            max_calls=MAX_CALLS if self._wish.parallel else 1,
            is_required=calling.is_required,
        )


def plan(wish: Wish, service: Service) -> Turn:
    """See what the served model can do of `wish`.

    Raises:
        RequestError: something is wrong, or it cannot; names the field.
    """
    _check_choice(wish)
    has_tools = bool(wish.tools) and wish.choice.mode != "none"
    variables = service.chat.template_for(has_tools=has_tools).variables
    reasoning = service.text.parsers.reasoning
    told = tell(wish.thinking, reasoning, variables)
    return Turn(wish, service, _calling(wish, service, told) if has_tools else None, told)


def _calling(wish: Wish, service: Service, told: Told) -> Calling:
    fields, choice = wish.fields, wish.choice
    if not service.chat.template_for(has_tools=True).uses_tools:
        raise RequestError(
            f"`{fields.tools}` is refused: this model's chat template has no place for them.", param=fields.tools
        )
    tool_format = service.text.parsers.tools
    if tool_format is None:
        raise RequestError(
            f"`{fields.tools}` is refused: this server does not know how the model writes calls; start it with "
            "--tool-call-parser.",
            param=fields.tools,
        )
    if not wish.separate_reasoning and service.text.parsers.reasoning is not None:  # which may speak of calls
        name = fields.separate_reasoning
        raise RequestError(f"{name} must not be false where there are tools.", param=name)
    offered = tuple(tool for tool in wish.tools if choice.names is None or tool.name in choice.names)
    is_required = choice.mode == "required"
    is_held = is_required or wish.form is not None or any(tool.strict for tool in offered)
    if (is_held or told.budget is not None) and not tool_format.written:
        name = fields.tool_choice if is_required else fields.tools
        raise RequestError(
            f"`{name}` is refused: the format `{tool_format.name}` does not say how calls are written, so that none can be "
            "held to a form.",
            param=name,
            code="unsupported_parameter",
        )
    return Calling(
        format=tool_format,
        tools=tools_of(offered, max_calls=None if wish.parallel else 1),
        offered=offered,
        is_held=is_held,
        is_required=is_required,
    )


def _check_choice(wish: Wish) -> None:
    name, choice = wish.fields.tool_choice, wish.choice
    known = {tool.name for tool in wish.tools}
    for tool in choice.names or ():
        if tool not in known:
            raise RequestError(f"{name} names {tool[:100]!r}, which is not among {wish.fields.tools}.", param=name)
    if choice.mode == "required" and not wish.tools:
        raise RequestError(f"{name} needs {wish.fields.tools}.", param=name)
