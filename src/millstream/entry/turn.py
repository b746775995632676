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
from millstream.entry.tools import OfferedTool, tools_of
from millstream.errors import RequestError
from millstream.messages import GenerateReqInput
from millstream.messages.grammar import GrammarSpec
from millstream.parsing.draft import Tools
from millstream.parsing.pipeline import Reading
from millstream.parsing.stage import ToolFormat

TAIL_TOKENS = 32  # more than any tag has


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
    separate_reasoning: bool = True  # otherwise it stays in the content, tags and all
    form: GrammarSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How the answer to one prompt is read (None: all of it is content) and what it is held to."""

    reading: Reading | None
    grammar: GrammarSpec | None

    def bind(self, requests: list[GenerateReqInput]) -> None:
        """Hold requests, which are not sent yet, to the grammar, and let them keep the special tokens that markers may be."""
        shows_all = self.reading is not None and self.reading.needs_special_tokens
        for request in requests:
            sampling = msgspec.structs.replace(request.sampling, grammar=self.grammar)
            request.sampling = msgspec.structs.replace(sampling, skip_special_tokens=False) if shows_all else sampling


class Turn:
    """A wish that the served model can follow. Made by `plan`."""

    def __init__(self, wish: Wish, service: Service, tools: Tools | None, tool_format: ToolFormat | None) -> None:
        self._wish = wish
        self._service = service
        self._tools = tools
        self._tool_format = tool_format

    @property
    def template_tools(self) -> list[dict[str, Any]] | None:
        """What the chat template gets as `tools`, in OpenAI's form; None: no tools are offered."""
        return None if self._tools is None else [tool.given for tool in self._wish.tools]

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the chat template. What the client itself gives under the same names comes before."""
        return {}

    def after(self, prompt: str | list[int]) -> Answer:
        """The answer to `prompt`, which the template made with the tools and variables above."""
        return Answer(reading=self._reading(prompt), grammar=self._wish.form)

    def _reading(self, prompt: str | list[int]) -> Reading | None:
        if self._wish.form is not None:
            return None  # it binds all of the answer, which has no reasoning then
        reasoning = self._service.text.parsers.reasoning if self._wish.separate_reasoning else None
        if reasoning is None and self._tools is None:
            return None
        is_open = reasoning is not None and reasoning.opened_by(self._tail(prompt))
        return Reading(reasoning=reasoning, tool_format=self._tool_format, tools=self._tools or Tools({}), is_open=is_open)

    def _tail(self, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._service.text.tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special_tokens=False)


def plan(wish: Wish, service: Service) -> Turn:
    """See what the served model can do of `wish`.

    Raises:
        RequestError: something is wrong, or it cannot; names the field.
    """
    fields, choice = wish.fields, wish.choice
    _check_choice(wish)
    if not wish.tools or choice.mode == "none":
        return Turn(wish, service, None, None)
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
    if wish.form is not None:
        raise RequestError(f"{fields.tools} cannot be offered where a grammar binds the answer.", param=fields.tools)
    if not wish.separate_reasoning and service.text.parsers.reasoning is not None:  # which may speak of calls
        name = fields.separate_reasoning
        raise RequestError(f"{name} must not be false where there are tools.", param=name)
    callable_ = [tool for tool in wish.tools if choice.names is None or tool.name in choice.names]
    return Turn(wish, service, tools_of(callable_, max_calls=None if wish.parallel else 1), tool_format)


def _check_choice(wish: Wish) -> None:
    name, choice = wish.fields.tool_choice, wish.choice
    known = {tool.name for tool in wish.tools}
    for tool in choice.names or ():
        if tool not in known:
            raise RequestError(f"{name} names {tool[:100]!r}, which is not among {wish.fields.tools}.", param=name)
    if choice.mode == "required":
        if not wish.tools:
            raise RequestError(f"{name} needs {wish.fields.tools}.", param=name)
        raise RequestError(
            f"{name} is refused but for `none` and `auto`: a call cannot be enforced by this server.",
            param=name,
            code="unsupported_parameter",
        )
