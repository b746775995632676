"""Paged attention against float64 numpy, and bit for bit against itself however the queries of a step are cut."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.execution.native.paged import Floats, Look, PagedRequest, attend, reference

KV_TYPES = ["fp16", "fp32", "int8"]
SUM_ERROR = (256 / 16 + 4) * 2.0**-24  # of the longest head: what a lane adds up, and then the lanes
some = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

looks = st.builds(
    Look,
    scale=st.sampled_from([0.125, 1.0, 0.3]),
    window=st.sampled_from([0, 0, 1, 5, 16, 40, 300]),
    softcap=st.sampled_from([0.0, 0.0, 2.0, 50.0]),
)
shapes = st.fixed_dictionaries(
    {
        "length": st.integers(1, 600) | st.sampled_from([15, 16, 17, 255, 256, 257, 512, 513]),
        "head_dim": st.sampled_from([16, 48, 64, 80, 96, 128, 256]),
        "kv_heads": st.integers(1, 3),
        "page_size": st.sampled_from([16, 32, 64, 256]),
        "seed": st.integers(0, 10**6),
        "size": st.sampled_from([1.0, 0.01, 10.0]),
        "kv_type": st.sampled_from(KV_TYPES),
    }
)


def make_request(
    native: ModuleType,
    isa: str,
    *,
    length: int,
    head_dim: int = 64,
    kv_heads: int = 1,
    page_size: int = 16,
    seed: int = 0,
    size: float = 1.0,
    kv_type: str = "fp16",
) -> PagedRequest:
    numbers = np.random.default_rng(seed)
    keys = (numbers.standard_normal((length, kv_heads, head_dim)) * size).astype(np.float32)
    values = (numbers.standard_normal((length, kv_heads, head_dim)) * size).astype(np.float32)
    return PagedRequest(native, keys, values, kv_type, page_size, isa, seed)


def make_queries(request: PagedRequest, count: int, group: int) -> Floats:
    numbers = np.random.default_rng(len(request.keys) + count)
    return numbers.standard_normal((count, group, request.keys.shape[-1])).astype(np.float32)


def assert_near(found: Floats, request: PagedRequest, q: Floats, position: int, head: int, look: Look) -> None:
    keys, values = request.as_read()
    keys = keys[: position + len(q), head].astype(np.float64)
    # a sum of products is off by so much of the sum of their absolute values, however they cancel
    error = SUM_ERROR * (np.abs(q) @ np.abs(keys).T) * look.scale
    if look.softcap:
        slope = 1 - np.tanh(q @ keys.T * look.scale / look.softcap) ** 2
        error = error * slope + 1e-6 * look.softcap
    tolerance = (2e-6 + 2 * error.max()) * np.abs(values).max()
    np.testing.assert_allclose(found, reference(request, q, position, head, look), rtol=0, atol=tolerance)


@some
@given(shape=shapes, look=looks, group=st.integers(1, 9), count=st.integers(1, 20), data=st.data())
def test_attention_agrees_with_float64(
    native: ModuleType, isa: str, shape: dict[str, Any], look: Look, group: int, count: int, data: st.DataObject
) -> None:
    request = make_request(native, isa, **shape)
    count = min(count, shape["length"])
    position = data.draw(st.integers(0, shape["length"] - count))
    head = data.draw(st.integers(0, shape["kv_heads"] - 1))
    q = make_queries(request, count, group)
    assert_near(attend(request, q, position, head, look), request, q, position, head, look)


@some
@given(shape=shapes, look=looks, group=st.integers(1, 5), count=st.integers(2, 24), data=st.data())
def test_a_query_has_the_same_bits_however_it_is_computed(
    native: ModuleType, isa: str, shape: dict[str, Any], look: Look, group: int, count: int, data: st.DataObject
) -> None:
    request = make_request(native, isa, **shape)
    count = min(count, shape["length"])
    position = shape["length"] - count
    q = make_queries(request, count, group)
    whole = attend(request, q, position, 0, look)

    cut = data.draw(st.integers(1, count))
    chunks = (
        [attend(request, q[:cut], position, 0, look), attend(request, q[cut:], position + cut, 0, look)]
        if cut < count
        else [whole]
    )
    np.testing.assert_array_equal(np.concatenate(chunks), whole)
    one_by_one = [attend(request, q[i : i + 1], position + i, 0, look) for i in range(count)]
    np.testing.assert_array_equal(np.concatenate(one_by_one), whole)
    by_head = [attend(request, np.ascontiguousarray(q[:, g : g + 1]), position, 0, look) for g in range(group)]
    np.testing.assert_array_equal(np.concatenate(by_head, axis=1), whole)
    np.testing.assert_array_equal(attend(request, q, position, 0, look, by_part=True), whole)


@some
@given(shape=shapes, look=looks, group=st.integers(1, 9), count=st.integers(1, 9))
def test_both_instruction_sets_give_the_same_bits(
    native: ModuleType, both_isas: tuple[str, str], shape: dict[str, Any], look: Look, group: int, count: int
) -> None:
    requests = [make_request(native, isa, **shape) for isa in both_isas]
    np.testing.assert_array_equal(requests[0].stored.memory, requests[1].stored.memory)
    count = min(count, shape["length"])
    q = make_queries(requests[0], count, group)
    outs = [attend(request, q, shape["length"] - count, 0, look) for request in requests]
    np.testing.assert_array_equal(outs[0], outs[1])


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("length", [1, 16, 40, 256, 300])
def test_scores_may_be_extreme(native: ModuleType, isa: str, kv_type: str, length: int) -> None:
    request = make_request(native, isa, length=length, kv_type=kv_type, size=1.0)
    q = make_queries(request, 1, 3) * np.float32(3e4)
    out = attend(request, q, length - 1, 0, Look(1.0))
    keys, values = request.as_read()
    winners = (q[0].astype(np.float64) @ keys[:, 0].T).argmax(axis=-1)
    np.testing.assert_allclose(out[0], values[winners, 0], rtol=1e-6)  # softmax of scores 10,000 apart picks one


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("in_keys", [False, True])
def test_what_is_not_finite_reaches_those_who_see_it_and_nobody_else(
    native: ModuleType, isa: str, kv_type: str, bad: float, in_keys: bool
) -> None:
    request = make_request(native, isa, length=290, kv_type=kv_type)
    q = np.abs(make_queries(request, 20, 3))
    looks_far, looks_near = Look(), Look(window=4)
    clean = {look: attend(request, q, 270, 0, look) for look in (looks_far, looks_near)}
    spoiled = np.where(np.arange(64) == 7, np.float32(bad), request.keys[275, 0])
    fine = request.values[275, 0]
    request.store(275, 0, spoiled if in_keys else fine, fine if in_keys else spoiled)
    for look in (looks_far, looks_near):
        out = attend(request, q, 270, 0, look)
        sees = np.array([token >= 5 and (not look.window or token < 5 + look.window) for token in range(20)])
        np.testing.assert_array_equal(out[~sees], clean[look][~sees])
        if in_keys and bad == -np.inf and kv_type != "int8":
            continue  # a score of -inf: not seen, rather than wrong
        assert not np.isfinite(out[sees]).all(axis=(1, 2)).any()


def test_a_query_reads_no_page_outside_what_it_sees(native: ModuleType, isa: str) -> None:
    request = make_request(native, isa, length=600)
    q = make_queries(request, 2, 3)
    look = Look(window=20)
    expected = attend(request, q, 400, 0, look)
    request.pages[:23] = -(2**30)  # positions 381 to 401 are seen: pages 23 to 25
    request.pages[26:] = -(2**30)
    np.testing.assert_array_equal(attend(request, q, 400, 0, look), expected)


@pytest.mark.parametrize("head_dim", [16, 64, 80])
def test_one_partition_alone_is_its_sum_over_its_weight(native: ModuleType, isa: str, head_dim: int) -> None:
    out = np.random.default_rng(1).standard_normal((1, head_dim)).astype(np.float32)
    merged = native.merge(isa, np.array([3.5], np.float32), np.array([7.0], np.float32), out)
    np.testing.assert_array_equal(merged, out[0] / np.float32(7.0))


def test_a_partition_of_which_nothing_is_seen_adds_nothing(native: ModuleType, isa: str) -> None:
    out = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
    out[[0, 2]] = 0
    largest, total = np.array([-np.inf, 2.0, -np.inf], np.float32), np.array([0.0, 3.0, 0.0], np.float32)
    np.testing.assert_array_equal(native.merge(isa, largest, total, out), out[1] / np.float32(3.0))


def test_int8_of_a_zero_or_tiny_vector_is_zero(native: ModuleType, isa: str) -> None:
    tiny = np.full((3, 1, 16), 1e-40, dtype=np.float32)
    request = PagedRequest(native, tiny, tiny, "int8", isa=isa)
    np.testing.assert_array_equal(attend(request, make_queries(request, 1, 1), 2, 0, Look()), 0)
