"""TurnPlan: all that the grammar of a whole answer is made of. Travels as the `source` of a `GrammarSpec` of kind `turn`."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from millstream.grammar.writing import Frame, Writing
from millstream.messages.grammar import GrammarSpec

MAX_CALLS = 32  # in one answer that is held to a grammar: a small model goes on for ever


class PlannedTool(Struct, frozen=True):
    """A tool that may be called; `where` is the path of its schema in the request."""

    name: str
    parameters: dict[str, Any] | None
    where: str


class PlannedCalls(Struct, frozen=True, kw_only=True):
    """Calls: `writings` are the ways to write them, of which the vocabulary decides; all of `markers` may open one in a text.

    With `bare_starts` they stand at the very beginning, and no other text begins so. `is_required`: there is nothing but calls.
    """

    writings: tuple[Writing, ...]
    markers: tuple[str, ...]
    bare_starts: str = ""
    tools: tuple[PlannedTool, ...]
    max_calls: int = MAX_CALLS
    is_required: bool


class PlannedThought(Struct, frozen=True, kw_only=True):
    """The thought before the answer. `place`: the prompt ended within it, or the model may open one, or it is over."""

    frame: Frame
    place: Literal["open", "possible", "over"]


class TurnPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A thought, then calls, or content in the given form (None: any text), or what of the two the model likes."""

    thought: PlannedThought | None = None
    calls: PlannedCalls | None = None
    form: GrammarSpec | None = None
