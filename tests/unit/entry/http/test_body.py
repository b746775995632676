"""Large bodies: weighed before they are decoded, decoded off the event loop, refused by count and not by their bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.entry.http import body as body_module
from millstream.entry.http.body import INLINE_BYTES, MAX_CONTAINERS, MAX_STRINGS, MAX_VALUES, check_weight, decode_body
from millstream.errors import RequestError
from tests.support.asgi import post, run
from tests.support.engine import Entry

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.sampled_from(['\\"', "\\\\", ',[{"', "[,]"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


def count(value: Any, is_one: Callable[[Any], bool]) -> int:
    """How many values and names, itself among them, are of a kind."""
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return is_one(value) + sum(count(each, is_one) for each in inner)


@given(st.dictionaries(st.text(), values, max_size=5))
def test_the_weight_is_exact_for_strings_arrays_and_objects_and_never_too_high_for_values(value: dict[str, Any]) -> None:
    data = msgspec.json.encode(value)
    containers = count(value, lambda each: isinstance(each, list | dict))
    strings = count(value, lambda each: isinstance(each, str))
    with patch.multiple(
        body_module, MAX_STRINGS=strings, MAX_CONTAINERS=containers, MAX_VALUES=count(value, lambda each: True)
    ):
        check_weight(data)
    with patch.object(body_module, "MAX_STRINGS", strings - 1), pytest.raises(RequestError):
        check_weight(data)
    with patch.object(body_module, "MAX_CONTAINERS", containers - 1), pytest.raises(RequestError):
        check_weight(data)


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":[' + b"[]," * MAX_CONTAINERS + b"[]]}",
        b'{"prompt":[' + b"7," * MAX_VALUES + b"7]}",
        b'{"stop":[' + b'"",' * MAX_STRINGS + b'""]}',
        b"{" + b'"":0,' * MAX_STRINGS + b'"":0}',
        b"[" * (INLINE_BYTES + 1),
    ],
    ids=["arrays", "numbers", "strings", "names", "depth"],
)
def test_a_body_of_too_many_values_is_refused_undecoded(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "decode_object", lambda body: pytest.fail("decoded"))

    async def scenario() -> None:
        response = await post(Entry().app, "/v1/completions", body)
        assert (response.status, response.error["code"]) == (400, "body_too_complex")

    if len(body) <= INLINE_BYTES:
        pytest.fail("the body is too small for this test")
    run(scenario())


def test_a_large_body_is_decoded_in_a_thread_to_the_same_object() -> None:
    threads = []

    def decode(body: bytes) -> dict[str, Any]:
        threads.append(threading.current_thread())
        value: dict[str, Any] = msgspec.json.decode(body)
        return value

    async def scenario() -> None:
        large = {"text": 'a,"[]{}\\' * 200_000, "ids": list(range(100_000))}
        with patch.object(body_module, "decode_object", decode):
            assert await decode_body(msgspec.json.encode(large)) == large
            assert await decode_body(b'{"a":1}') == {"a": 1}

    run(scenario())
    assert threads[0] is not threading.main_thread()
    assert threads[1] is threading.main_thread()


def test_a_lone_surrogate_is_not_called_an_early_end_alone() -> None:
    async def scenario() -> None:
        for body in (b'{"prompt":"bad \\ud83d end"}', b'{"prompt":"x'):
            response = await post(Entry().app, "/v1/completions", body)
            assert (response.status, response.error["code"]) == (400, "invalid_json")
            assert "valid Unicode" in response.error["message"]
            assert "surrogate" in response.error["message"]

    run(scenario())


def test_an_error_quotes_only_the_beginning_of_what_was_sent() -> None:
    async def scenario() -> None:
        for body in ({"prompt": "x", "a" * 100_000: 1}, {"prompt": "x", "model": "a" * 100_000}):
            assert len((await post(Entry().app, "/v1/completions", body)).content) < 2000

    run(scenario())


def depth(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(st.dictionaries(st.text(), values, max_size=5))
def test_nesting_is_measured_exactly_whatever_strings_hold(value: dict[str, Any]) -> None:
    data = msgspec.json.encode(value)
    with patch.object(body_module, "MAX_DEPTH", depth(value)):
        assert run(decode_body(data)) == value
        check_weight(data)
    if depth(value) > 1:
        with patch.object(body_module, "MAX_DEPTH", depth(value) - 1):
            with pytest.raises(RequestError, match="nested more than"):
                check_weight(data)
            with pytest.raises(RequestError, match="nested more than"):
                run(decode_body(data))


@pytest.mark.parametrize("count", [101, 1000, 200_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b"[", b""), (b"[}", b"{]")])
def test_endless_nesting_is_the_client_s_error(count: int, opening: bytes, closing: bytes) -> None:
    with pytest.raises(RequestError):
        run(decode_body(b'{"x":' + opening * count + b"1" + closing * count + b"}"))


@pytest.mark.parametrize("count", [101, 100_000, 1_000_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"[{"])
def test_what_is_opened_and_never_closed_does_not_reach_the_decoder(count: int, opening: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        run(decode_body(b'{"x":' + opening * count))
    assert caught.value.code == "body_too_complex"
