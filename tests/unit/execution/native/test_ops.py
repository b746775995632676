"""Norms, activations, rotation and soft caps against float64, bit for bit the same on both instruction sets."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
ACTIVATIONS = ["silu", "gelu_tanh", "gelu"]
EPS = 1e-5
some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
lengths = st.integers(1, 100) | st.sampled_from([576, 1000, 1536, 4096])
sizes = st.sampled_from([1e-3, 1.0, 10.0, 300.0])


def numbers(n: int, seed: int, size: float = 1.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(n) * size).astype(np.float32)


def rms_norm(x: NDArray[np.floating], weight: Floats) -> Doubles:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean() + EPS) * weight


def activate(name: str, x: Doubles) -> Doubles:
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x])


@some
@given(n=lengths, seed=st.integers(0, 10**6), size=sizes, with_delta=st.booleans(), with_delta_norm=st.booleans())
def test_add_norm_agrees_with_float64(
    native: ModuleType, isa: str, n: int, seed: int, size: float, with_delta: bool, with_delta_norm: bool
) -> None:
    states, weight = numbers(n, seed, size), numbers(n, seed + 1)
    delta = numbers(n, seed + 2, size) if with_delta else None
    delta_weight = numbers(n, seed + 3) if with_delta_norm else None
    expected = states.astype(np.float64)
    if delta is not None:
        expected = expected + (delta if delta_weight is None else rms_norm(delta, delta_weight))
    out = native.add_norm(isa, states, delta, delta_weight, weight, EPS)
    np.testing.assert_allclose(states, expected, rtol=0, atol=1e-6 * max(size, np.abs(expected).max()))
    np.testing.assert_allclose(out, rms_norm(states, weight), rtol=3e-6, atol=1e-30)


@some
@given(activation=st.sampled_from(ACTIVATIONS), n=lengths, seed=st.integers(0, 10**6), size=sizes)
def test_gates_agree_with_float64(native: ModuleType, isa: str, activation: str, n: int, seed: int, size: float) -> None:
    gate, up = numbers(n, seed, size), numbers(n, seed + 1)
    with np.errstate(over="ignore"):
        expected = activate(activation, gate.astype(np.float64)) * up
    np.testing.assert_allclose(native.gate(isa, activation, gate, up), expected, rtol=4e-6, atol=2e-7)


def test_activations_are_good_to_float_precision_over_their_whole_range(native: ModuleType, isa: str) -> None:
    x = np.linspace(-12, 12, 100_001).astype(np.float32)
    for activation in ACTIVATIONS:
        found = native.gate(isa, activation, x, np.ones_like(x))
        expected = activate(activation, x.astype(np.float64))
        np.testing.assert_allclose(found[x >= -1], expected[x >= -1], rtol=8e-7)
        np.testing.assert_allclose(found[x < 0], expected[x < 0], rtol=0, atol=2.5e-7)


@some
@given(head_dim=st.sampled_from([16, 48, 64, 80, 128, 256]), seed=st.integers(0, 10**6), with_norm=st.booleans(), size=sizes)
def test_norm_and_rotation_agree_with_complex_numbers(
    native: ModuleType, isa: str, head_dim: int, seed: int, with_norm: bool, size: float
) -> None:
    head = numbers(head_dim, seed, size)
    weight = numbers(head_dim, seed + 1) if with_norm else None
    angles = np.random.default_rng(seed).uniform(0, 7, head_dim // 2)
    expected = head.astype(np.float64) if weight is None else rms_norm(head, weight)
    expected = (expected.view(np.complex128) * np.exp(1j * angles)).view(np.float64)
    cos_sin = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32).ravel()
    native.norm_rotate(isa, head, weight, EPS, cos_sin)
    np.testing.assert_allclose(head, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@some
@given(n=lengths, seed=st.integers(0, 10**6), size=sizes, cap=st.sampled_from([1.0, 30.0, 50.0]))
def test_scale_and_softcap_agree_with_float64(native: ModuleType, isa: str, n: int, seed: int, size: float, cap: float) -> None:
    values = numbers(n, seed, size)
    capped, scaled = values.copy(), values.copy()
    native.softcap(isa, capped, cap)
    np.testing.assert_allclose(capped, cap * np.tanh(values.astype(np.float64) / cap), rtol=5e-7)
    native.scale(isa, scaled, 24.5)
    np.testing.assert_array_equal(scaled, values * np.float32(24.5))


@some
@given(n=lengths, seed=st.integers(0, 10**6), size=sizes)
def test_both_instruction_sets_give_the_same_bits(
    native: ModuleType, both_isas: tuple[str, str], n: int, seed: int, size: float
) -> None:
    def everything(isa: str) -> list[Floats]:
        states, delta, weight = numbers(n, seed, size), numbers(n, seed + 1, size), numbers(n, seed + 2)
        made = [native.add_norm(isa, states, delta, weight, weight, EPS), states]
        made += [native.gate(isa, activation, states, weight) for activation in ACTIVATIONS]
        head, cos_sin = numbers(64, seed, size), numbers(64, seed + 4)
        native.norm_rotate(isa, head, numbers(64, seed + 5), EPS, cos_sin)
        native.softcap(isa, delta, 20.0)
        return [*made, head, delta]

    for first, second in zip(everything(both_isas[0]), everything(both_isas[1]), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 100])
def test_all_finite_finds_one_that_is_not(native: ModuleType, isa: str, bad: float, n: int) -> None:
    largest = np.full(n, np.finfo(np.float32).max, dtype=np.float32)
    assert native.all_finite(isa, largest)
    for place in {0, n // 2, n - 1}:
        values = largest.copy()
        values[place] = bad
        assert not native.all_finite(isa, values)


@pytest.mark.parametrize("n", [3, 16, 40])
def test_nan_stays_nan(native: ModuleType, isa: str, n: int) -> None:
    values, fine = numbers(n, 1), numbers(n, 2)
    values[1] = np.nan
    for activation in ACTIVATIONS:
        assert np.isnan(native.gate(isa, activation, values, fine)[1])
        assert np.isnan(native.gate(isa, activation, fine, values)[1])
    assert np.isnan(native.add_norm(isa, values.copy(), None, None, fine, EPS)).all()
    assert np.isnan(native.add_norm(isa, fine.copy(), values, None, fine, EPS)).all()
    assert np.isnan(native.add_norm(isa, fine.copy(), values, fine, fine, EPS)).all()
    native.softcap(isa, values, 30.0)
    assert np.isnan(values[1])
    head = numbers(16, 3)
    head[1] = np.nan
    native.norm_rotate(isa, head, numbers(16, 4), EPS, numbers(16, 5))
    assert np.isnan(head).all()
