"""`continuous_usage_stats`: the usage of each chunk counts the tokens sent up to it, however rows wait and merge."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.messages import Length
from tests.support.asgi import Call, run
from tests.support.engine import Entry
from tests.support.short_way import ShortWay

N = 3
READ, STALL, TURN = "read", "stall", "turn"  # what the client and the event loop do between rows


def counts(chunks: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """For each chunk with usage: what it counts, and the ids in all chunks up to it."""
    found, num_ids = [], 0
    for chunk in chunks:
        num_ids += sum(len(choice.get("token_ids") or ()) for choice in chunk["choices"])
        if chunk.get("usage"):
            found.append((chunk["usage"]["completion_tokens"], num_ids))
    return found


@given(
    rows=st.lists(st.tuples(st.integers(0, N - 1), st.integers(1, 3)) | st.sampled_from([READ, STALL, TURN]), max_size=30),
    has_short_way=st.booleans(),
)
def test_usage_never_runs_ahead_of_the_ids_that_were_sent(rows: list[Any], has_short_way: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        short = ShortWay() if has_short_way else None
        options = {"continuous_usage_stats": True, "include_usage": True}
        body = {"prompt": "x", "rid": "r", "n": N, "stream": True, "stream_options": options, "return_token_ids": True}
        call = Call(entry.app, "/v1/completions", body, direct=short)
        if short is not None:
            short.call = call
        await call.until(b"prompt_token_ids")
        for row in rows:
            if row == TURN:
                await asyncio.sleep(0)
            elif isinstance(row, str):
                (call.read_on if row == READ else call.stop_reading)()
                if short is not None:
                    short.is_open = row == READ
            else:
                index, size = row
                entry.engine.row(f"r-{index}", "x" * size, ids=[40] * size)
        call.read_on()
        for index in range(N):
            entry.engine.row(f"r-{index}", "end", finish=Length(1))
        found = counts((await call.response()).chunks)
        assert found
        assert all(counted == sent for counted, sent in found), found

    run(scenario())
