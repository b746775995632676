"""The sandbox that chat templates run in: Jinja set up as `transformers` sets it up, and a budget that ends what does not end.

Used by `ChatTemplate` alone. A template cannot be stopped from outside, since it runs in a thread of ours: every turn of a loop
and every call it makes is counted, and what it writes is measured. A template comes from the model or the operator, never
from a request, but how long it runs follows from what a request holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 2_000_000  # turns of loops and calls; of 95 published templates none takes more than 13 for a message
MAX_TEXT_CHARS = 64 * 1024 * 1024  # of the prompt, and of any text or list a template makes by joining or repeating
ITEM_CHARS = 64  # what an item of a list counts as
MAX_SECONDS = 20.0
STEPS_PER_LOOK = 256  # between two looks at the clock

# what a template can raise on a conversation it was not written for
RENDER_ERRORS = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError),
)


class TemplateTooLong(Exception):
    """A template took more steps or time, or made more text, than it may."""


class Budget:
    """What one rendering may take; it is spent by what the template does.

    `clock` tells seconds.
    """

    def __init__(self, *, max_steps: int = MAX_STEPS, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps = 0
        self._max_steps = max_steps
        self._clock = clock
        self._end = clock() + MAX_SECONDS

    def step(self) -> None:
        """Count one step.

        Raises:
            TemplateTooLong: it is one too many, or time is up.
        """
        self.steps += 1
        if self.steps > self._max_steps:
            raise TemplateTooLong(f"it took more than {self._max_steps:,} steps")
        if self.steps % STEPS_PER_LOOK == 0 and self._clock() > self._end:
            raise TemplateTooLong(f"it took more than {MAX_SECONDS:.0f} seconds")


_BUDGET: ContextVar[Budget] = ContextVar("budget")


def compile_template(source: str) -> tuple[jinja2.Template, nodes.Template]:
    """Compile a template; returned with its syntax tree, as it was written.

    Raises:
        TemplateSyntaxError: it is not valid; `lineno` says where.
        RecursionError: it is nested too deeply.
    """
    environment = _Environment()
    counted = environment.parse(source)
    _Counting().visit(counted)
    return environment.from_string(counted), environment.parse(source)


def run_template(template: jinja2.Template, variables: Mapping[str, Any], budget: Budget) -> str:
    """Render within `budget`.

    Raises:
        TemplateTooLong: it did not end within it.
        RENDER_ERRORS: the template is not made for these variables.
    """
    token = _BUDGET.set(budget)
    pieces, size = [], 0
    try:
        for piece in template.generate(variables):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_TEXT_CHARS:
                _check_size(size)
    finally:
        _BUDGET.reset(token)
    return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    """Counts calls, and looks at the operators that make something large out of something small."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        self.filters["tojson"] = _to_json
        self.filters[_Counting.LOOP] = _counted
        self.filters[_Counting.JOIN] = _joined
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # the template's own arguments may be called `self`
        _BUDGET.get().step()
        if isinstance(__obj, LoopContext) and args:  # `loop(children)`, in a recursive loop
            args = (_counted(args[0]), *args[1:])
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if type(left) is str and type(right) is str:  # nearly always
                text = left + right  # no more than twice what passed already
                if len(text) > MAX_TEXT_CHARS:
                    _check_size(len(text))
                return text
            if isinstance(left, str | list) and isinstance(right, str | list):
                _check_size(_size(left) + _size(right))
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int):
                    _check_size(_size(one) * other)
        elif operator == "**" and isinstance(right, int) and isinstance(left, int):
            _check_size(left.bit_length() * right)
        return super().call_binop(context, operator, left, right)


class _Counting(NodeTransformer):
    """Rewrites a template so that each loop counts its turns and each `~` measures what it joins."""

    LOOP = "counted by the budget"  # no template can write these names
    JOIN = "joined within the budget"

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, self.LOOP, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, self.JOIN, [], [], None, None, lineno=node.lineno)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training: here it is its body alone."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Read the block and leave its body in place."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    step = _BUDGET.get().step
    for item in items:
        step()
        yield item


def _joined(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _size(value: str | list[Any] | tuple[Any, ...]) -> int:
    return len(value) if isinstance(value, str) else ITEM_CHARS * len(value)


def _check_size(size: int) -> None:
    if size > MAX_TEXT_CHARS:
        raise TemplateTooLong(f"it made a text of more than {MAX_TEXT_CHARS:,} characters")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # not Jinja's own: that one escapes HTML and sorts keys, and models were trained on neither
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
