"""A process dies in the moment in which a call is admitted: its answer goes on, and nothing of it is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.entry.http.routes import ROUTES
from millstream.messages import LedgerQuery, Length, TokenizedGenerateReqInput
from millstream.messages.details import Logprobs, RowDetails
from tests.support.asgi import Call, run
from tests.support.engine import Entry, state

TURNS = 40  # of the event loop: more than any chain of tasks here is long
PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/score"),
    "/generate",
)
EXAMPLES = {route.path: route.rules.example for route in ROUTES if route.path in PATHS and route.rules is not None}
STREAMED = {path for path in PATHS if path not in ("/v1/embeddings", "/v1/score")}
CASES = [*EXAMPLES.items()] + [(path, {**(body or {}), "stream": True}) for path, body in EXAMPLES.items() if path in STREAMED]


def test_every_route_that_generates_is_tried() -> None:
    assert set(EXAMPLES) == set(PATHS)


@pytest.mark.parametrize(("path", "body"), CASES)
def test_a_detokenizer_that_dies_on_admission_leaves_no_reader_behind(path: str, body: dict[str, Any]) -> None:
    async def scenario() -> None:
        entry = Entry()

        def answer(sent: TokenizedGenerateReqInput) -> None:
            entry.engine.accept(sent.rid)
            entry.service.update(state(detokenizer="FAILED"))

        entry.engine.answer = answer
        call = Call(entry.app, path, body)
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        entry.service.update(state())
        for sent in entry.engine.requests:
            num_asked = 0 if sent.logprobs is None else len(sent.logprobs.token_ids)
            details = RowDetails(logprobs=Logprobs([-1.0], [[]], [[]], [[-1.0] * num_asked])) if num_asked else None
            entry.engine.row(sent.rid, "a", finish=Length(1), details=details)
        assert (await call.response()).status == 200
        assert entry.manager.ledger.book(LedgerQuery()).held == []

    run(scenario())
