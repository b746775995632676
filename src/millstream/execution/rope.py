"""rotary_frequencies: rotary position embedding as numbers. Called by executors when they load a model.

Sources: Su et al. 2021 (RoFormer); linear stretching, Chen et al. 2023; Llama 3.1's stretching by wavelength, as its model card
publishes it; YaRN, Peng et al. 2023, section 3.2.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from millstream.checkpoint.config import RopeConfig


def rotary_frequencies(rope: RopeConfig, head_dim: int) -> NDArray[np.float64]:
    """Return `[head_dim / 2]` angles in radians a position, the fastest first."""
    plain: NDArray[np.float64] = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.divisors:
        return plain / np.asarray(rope.divisors, dtype=np.float64)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    if rope.kind == "yarn":
        return _yarn(plain, rope, head_dim)
    return plain


def _llama3(plain: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    # rotations within the original context: few -> stretched, many -> kept, between -> a blend
    rotations = rope.original_context * plain / (2 * math.pi)
    kept = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return kept * plain + (1.0 - kept) * plain / rope.factor


def _yarn(plain: NDArray[np.float64], rope: RopeConfig, head_dim: int) -> NDArray[np.float64]:
    def dimension(rotations: float) -> float:
        """Where along the head a pair makes this many rotations within the original context."""
        return head_dim * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a ramp of no width
    stretched: NDArray[np.float64] = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)
    return stretched * plain / rope.factor + (1.0 - stretched) * plain
