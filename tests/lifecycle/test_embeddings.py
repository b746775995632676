"""An embedding through all processes, in one thread: a detokenizer that dies costs it nothing, and nothing is left anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from millstream.config import ServerConfig
from millstream.messages import LedgerQuery
from tests.support.asgi import Call
from tests.support.whole import WholeServer
from tests.unit.scheduler.harness import CheckingExecutor


@pytest.fixture
def server() -> Iterator[WholeServer]:
    server = WholeServer(CheckingExecutor(num_pages=64, page_size=4), ServerConfig(), share_prefixes=True, chunk=8)
    yield server
    server.close()


def ask(server: WholeServer) -> Call:
    body = {"input": [[*range(10, 30)], [7, 8]]}
    return server.in_loop(lambda: Call(server.app, "/v1/embeddings", body))


def check(server: WholeServer, call: Call) -> None:
    """The answer is whole, and nothing is held for it."""
    response = server.finished(call.response())
    made = [item["embedding"] for item in response.body["data"]]
    expected = [np.array(state, np.float32) / np.hypot(*state) for state in ([29, 20], [8, 2])]
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    server.run_dry()
    assert all(not ledger.book(LedgerQuery()).held for ledger in server.ledgers.values())


def test_states_travel_with_the_final_rows(server: WholeServer) -> None:
    call = ask(server)
    server.run_dry()
    check(server, call)


@pytest.mark.parametrize("num_steps", range(5))
def test_a_detokenizer_that_dies_at_any_moment_costs_nothing(server: WholeServer, num_steps: int) -> None:
    call = ask(server)
    while len(server.links["requests"]):
        server.deliver("requests")
    for _ in range(num_steps):
        server.scheduler.step()
    server.replace_detokenizer()
    server.run_dry()
    check(server, call)


def test_a_scheduler_that_dies_ends_the_call_with_an_error(server: WholeServer) -> None:
    call = ask(server)
    server.deliver("requests")
    server.kill_scheduler()
    response = server.finished(call.response())
    assert (response.status, response.error["code"]) == (503, "engine_error")
