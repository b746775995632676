"""Embeddings in place of a prompt's ids: what is taken, what is refused by name, and whose prefixes they share."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from millstream.entry.input_embeds import is_batch, parse_input_embeds
from millstream.entry.prompt_encoder import INLINE_CHARS
from millstream.entry.sampling import cache_namespace
from millstream.errors import ContextLengthExceeded, InvariantError, RequestError
from millstream.messages import AdmissionOutput, LedgerQuery, TokenizedGenerateReqInput
from tests.support.asgi import run, until
from tests.support.engine import CONTEXT_LENGTH, HIDDEN_SIZE, engine_info
from tests.unit.entry.harness import make, request, submit

ROW = [0.25 * number for number in range(HIDDEN_SIZE)]


async def parse(value: Any) -> Any:
    manager, _ = make()
    return await parse_input_embeds(manager.prompts, engine_info(), value)


@pytest.mark.parametrize("num_rows", [1, 3, INLINE_CHARS], ids=str)  # the last is read in a thread
def test_numbers_become_float32_ids_of_zeros_and_a_namespace(num_rows: int) -> None:
    async def scenario() -> None:
        rows = [[number, *ROW[1:]] for number in range(min(num_rows, CONTEXT_LENGTH))]
        (read,) = await parse(rows)
        assert read.data == np.array(rows, np.float32).tobytes()
        assert read.input_ids == [0] * len(rows)
        assert read.namespace == f"embeds:{sha256(read.data).hexdigest()}:"
        assert not is_batch(rows)
        assert is_batch([rows, rows])
        assert await parse([rows, rows[:1]]) == [read, *(await parse(rows[:1]))]

    run(scenario())


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([], "input_embeds"),
        ("text", "input_embeds"),
        ([ROW[:-1]], "input_embeds[0]"),
        ([ROW, [*ROW, 1.0]], "input_embeds[1]"),
        ([ROW, []], "input_embeds[1]"),
        ([ROW, "row"], "input_embeds[1]"),
        ([ROW, [ROW]], "input_embeds[1]"),
        ([1.0], "input_embeds[0]"),
        ([[]], "input_embeds[0]"),
        ([ROW, [None, *ROW[1:]]], "input_embeds[1]"),
        ([ROW, [True, *ROW[1:]]], "input_embeds[1]"),
        ([ROW, ["1", *ROW[1:]]], "input_embeds[1]"),
        ([ROW, [1e39, *ROW[1:]]], "input_embeds[1]"),
        ([ROW, [10**400, *ROW[1:]]], "input_embeds"),
        ([[ROW], []], "input_embeds[1]"),
        ([[ROW], ROW], "input_embeds[1][0]"),
        ([[ROW], [ROW, ROW[:-1]]], "input_embeds[1][1]"),
        ([[ROW], "x"], "input_embeds[1]"),
    ],
)
def test_anything_else_is_refused_by_the_name_of_its_place(value: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        run(parse(value))
    assert caught.value.param == param
    assert param in caught.value.message


def test_more_positions_than_the_context_and_models_without_embeddings_are_refused() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        run(parse([ROW] * (CONTEXT_LENGTH + 1)))
    assert str(CONTEXT_LENGTH) in caught.value.message

    async def scenario() -> None:
        manager, _ = make()
        info = engine_info()
        info = type(info)(**{name: getattr(info, name) for name in info.__struct_fields__ if name != "hidden_size"})
        with pytest.raises(RequestError) as refused:
            await parse_input_embeds(manager.prompts, info, [ROW])
        assert refused.value.param == "input_embeds"

    run(scenario())


def test_no_salt_of_a_client_comes_to_the_namespace_of_embeddings() -> None:
    (read,) = run(parse([ROW]))
    for salt in (read.namespace, read.namespace[:-1], "embeds:", f"0:{read.namespace}"):
        for namespace in (cache_namespace(salt, ""), cache_namespace("", salt), cache_namespace(salt, salt)):
            assert not namespace.startswith("embeds:")


def test_embeddings_without_their_namespace_are_our_bug_and_are_not_sent() -> None:
    async def scenario() -> None:
        manager, engine = make()
        (read,) = await parse([ROW])
        for wrong in ({"input_embeds": read.data, "cache_namespace": "x"}, {"cache_namespace": read.namespace}):
            with pytest.raises(InvariantError):
                await submit(manager, request(input_ids=[0], **wrong))
        assert engine.requests == []
        assert manager.live_requests == 0

    run(scenario())


def test_their_bytes_stand_in_the_ledger_until_the_scheduler_has_them_and_come_to_it_whole() -> None:
    async def scenario() -> None:
        manager, engine = make()
        (read,) = await parse([ROW] * 300)
        held: list[int] = []

        def look(sent: TokenizedGenerateReqInput) -> None:
            held.append(manager.ledger.totals().get("input_embeds", 0))
            engine.handle(AdmissionOutput(accepted=[sent.slot]))

        engine.answer = look
        obj = request(input_ids=read.input_ids, input_embeds=read.data, cache_namespace=read.namespace + "4:mine")
        registered = manager.registry.register

        def register(*parts: Any) -> Any:
            generation = registered(*parts)
            held.append(manager.ledger.totals()["input_embeds"])
            return generation

        manager.registry.register = register  # type: ignore[method-assign]
        generation = await submit(manager, obj)
        assert held == [300 * HIDDEN_SIZE * 4, 0]
        (sent,) = engine.requests
        assert (sent.input_embeds, sent.cache_namespace) == (read.data, read.namespace + "4:mine")
        assert obj.input_embeds is None
        manager.release(generation)

    run(scenario())


def test_a_request_that_ends_before_it_is_sent_gives_its_embeddings_back() -> None:
    async def scenario() -> None:
        manager, engine = make()
        (read,) = await parse([ROW])
        embeds = request("e", input_ids=[0], input_embeds=read.data, cache_namespace=read.namespace)
        long = request("r", text="ab " * 150_000)  # it is encoded in a thread meanwhile, and refused
        with pytest.raises(ContextLengthExceeded):
            await submit(manager, long, embeds, rid="call")
        await until(lambda: not manager.ledger.book(LedgerQuery()).held)
        assert engine.requests == []

    run(scenario())
