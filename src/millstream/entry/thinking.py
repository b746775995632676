"""Thinking: what a call wants of the model's thought, and how the model is told: by its template, or by a budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from millstream.errors import RequestError
from millstream.parsing.reasoning import ReasoningFormat

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS = get_args(Effort)
SWITCHES = ("enable_thinking", "thinking")  # variables of templates that switch it on and off
EFFORT = "reasoning_effort"  # the variable of templates that take an effort
BUDGETS = {"minimal": 512, "low": 2_048, "medium": 8_192}  # tokens, where the template takes no effort; above: no limit


@dataclass(frozen=True, kw_only=True)
class Thinking:
    """What a call says of it; None: nothing. `budget`: the most tokens of thought. `param` is the field that said so."""

    is_enabled: bool | None = None
    effort: Effort | None = None
    budget: int | None = None
    param: str = EFFORT

    @property
    def is_asked_for(self) -> bool:
        """Whether it asks for something that a model without thoughts does not do anyway."""
        wants = self.is_enabled or self.effort not in (None, "none") or self.budget not in (None, 0)
        return bool(wants)


@dataclass(frozen=True)
class Told:
    """How the model is told: variables of its template, and the most tokens of its thought (None: as many as it likes)."""

    kwargs: dict[str, Any]
    budget: int | None = None


def tell(thinking: Thinking, reasoning: ReasoningFormat | None, variables: frozenset[str]) -> Told:
    """How to tell the served model, whose template has these variables.

    Raises:
        RequestError: it has no thoughts.
    """
    if reasoning is None:
        if thinking.is_asked_for:
            raise RequestError(
                f"`{thinking.param}` is refused: this model has no reasoning that the server knows; see --reasoning-parser.",
                param=thinking.param,
                code="unsupported_parameter",
            )
        return Told({})
    kwargs: dict[str, Any] = {}
    effort, budget = thinking.effort, thinking.budget
    is_enabled = thinking.is_enabled
    if effort is not None and EFFORT in variables:
        lowest = "low" if reasoning.frames is not None else effort  # what gpt-oss was taught begins there
        kwargs[EFFORT] = lowest if effort in ("none", "minimal") else effort
    elif effort is not None and budget is None:
        budget = BUDGETS.get(effort)
    if is_enabled is None and effort is not None:
        is_enabled = effort != "none"
    switches = [name for name in SWITCHES if name in variables]
    if is_enabled is not None:
        kwargs |= dict.fromkeys(switches, is_enabled)
    if is_enabled is False and not switches:
        budget = 0
    return Told(kwargs, budget)
