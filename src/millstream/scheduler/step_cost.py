"""StepCost: what a step costs, learned from each one, and so how much of a prompt fits beside running requests within a bound.

Fed by the scheduler with each step; asked by the policy for the prompt tokens of the next. A step is taken to cost
a + b * decode tokens + c * prompt tokens, fitted by least squares in which a step counts less the longer ago it was. What the
latest steps say nothing about, such as the price of a prompt's token while none is computed, stays as it was known last.
"""

from __future__ import annotations

import math

MIN_PREFILL_TOKENS = 32  # that a step always has room for: prompts get on whatever decodes cost
_HEADROOM = 0.9  # of the bound is planned with: steps vary, and later parts of a prompt cost more
_MEMORY = 0.95  # weight of a step against the one after it: some twenty count
_PRIOR = 1e-3  # weight of what was known before, against that of one step
_FIT_EVERY = 8  # steps, and whenever somebody asks; much later, what a rare step said would be forgotten
_OUTLIER = 4.0  # a step that takes so much longer than expected counts as so much: it may have been the machine's neighbours
_DECODE_UNIT, _PREFILL_UNIT = 16.0, 128.0  # tokens: the three parts of a step's cost are then of one order


class StepCost:
    """The cost of steps, and the tokens that fit. Without a bound everything fits and nothing is learned."""

    def __init__(self, bound_s: float | None) -> None:
        self._bound_s = bound_s
        self._price = (0.0, 0.0, 0.0)  # seconds: of a step, of a unit of decode tokens, of a unit of prompt tokens
        self._products = [0.0] * 6  # sums of x_i * x_j, weighted: 00 01 02 11 12 22
        self._sums = [0.0] * 3  # sums of x_i * seconds, weighted
        self._num_since_fit = 0
        self._most = (0.0, 0.0)  # units of either kind that a step has had

    def note_step(self, decode_tokens: int, prefill_tokens: int, seconds: float) -> None:
        """Learn from a step."""
        if self._bound_s is None:
            return
        x, y = decode_tokens / _DECODE_UNIT, prefill_tokens / _PREFILL_UNIT
        if x <= self._most[0] and y <= self._most[1]:  # beyond that, what is expected is no more than a guess
            seconds = min(seconds, self._most_likely(x, y, seconds))
        self._most = (max(x, self._most[0]), max(y, self._most[1]))
        self._products = [
            _MEMORY * old + new for old, new in zip(self._products, (1.0, x, y, x * x, x * y, y * y), strict=True)
        ]
        self._sums = [_MEMORY * old + new for old, new in zip(self._sums, (seconds, x * seconds, y * seconds), strict=True)]
        self._num_since_fit += 1
        if self._num_since_fit == _FIT_EVERY:
            self._fit()

    def prefill_tokens(self, decode_tokens: int) -> int:
        """The prompt tokens that a step has room for beside so many tokens of decodes, `MIN_PREFILL_TOKENS` at least."""
        if self._bound_s is None or not decode_tokens:
            return 1 << 30
        self._fit()
        step, decode, prefill = self._price
        left_s = _HEADROOM * self._bound_s - step - decode * decode_tokens / _DECODE_UNIT
        if left_s <= 0:
            return MIN_PREFILL_TOKENS
        units = left_s / prefill if prefill > 0 else math.inf
        return max(MIN_PREFILL_TOKENS, int(min(units * _PREFILL_UNIT, 1 << 30)))

    def _most_likely(self, x: float, y: float, seconds: float) -> float:
        most = _OUTLIER * self._expected(x, y)
        if seconds > most and self._num_since_fit:
            self._fit()
            most = _OUTLIER * self._expected(x, y)
        return most

    def _expected(self, x: float, y: float) -> float:
        return self._price[0] + self._price[1] * x + self._price[2] * y

    def _fit(self) -> None:
        """Solve the normal equations, with the last prices as a weak prior, by Cramer's rule."""
        if not self._num_since_fit:
            return
        a, b, c, d, e, f = self._products
        a, d, f = a + _PRIOR, d + _PRIOR, f + _PRIOR
        u, v, w = (total + _PRIOR * price for total, price in zip(self._sums, self._price, strict=True))
        df, bf, be = d * f - e * e, b * f - c * e, b * e - c * d
        determinant = a * df - b * bf + c * be  # > 0: the prior makes it so
        vf, ve, wb = v * f - w * e, v * e - w * d, w * b - v * c
        price = (
            (u * df - b * vf + c * ve) / determinant,
            (a * vf - u * bf + c * wb) / determinant,
            (-a * ve - b * wb + u * be) / determinant,
        )
        self._price = (max(0.0, price[0]), max(0.0, price[1]), max(0.0, price[2]))
        self._num_since_fit = 0
