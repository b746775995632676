"""Embeddings through the scheduler: the state of a prompt's end goes out, and embeddings that came in stand for ids."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from millstream.execution.interface import ForwardBatch, ForwardOutput
from millstream.messages import Abort, LedgerQuery, Length, Received, Replay, ReplayReq, StatsReq
from tests.unit.scheduler.harness import HIDDEN_SIZE, CheckingExecutor, Desk, assert_nothing_held, desk

PROMPT = list(range(10, 30))  # five pages


def made_embeds(count: int = 20, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).random((count, HIDDEN_SIZE), dtype=np.float32).tobytes()


def state(embedding: bytes | None) -> list[float]:
    assert embedding is not None
    return np.frombuffer(embedding, np.float32).tolist()


def embedding(at: Desk, rid: str) -> list[float]:
    (row,) = at.rows(rid)
    assert row.details is not None
    assert (row.finish, row.token_ids) == (Length(0), [])
    return state(row.details.embedding)


def test_the_state_of_the_prompt_s_last_token_comes_with_the_final_row() -> None:
    at, executor = desk(chunked_prefill_size=8)
    at.submit("r", PROMPT, max_new=0, wants_embedding=True)
    at.submit("again", PROMPT, max_new=0, wants_embedding=True)
    at.run()
    assert embedding(at, "r") == embedding(at, "again") == [29, 20]
    assert at.rows("again")[0].usage.cached_tokens == 16  # the last token is always computed: its state is wanted
    assert len(executor.batches) == 4
    assert_nothing_held(at)


def test_a_step_that_fails_as_a_whole_costs_no_embedding() -> None:
    at, executor = desk()
    for rid in ("a", "b"):
        at.submit(rid, [ord(rid), *PROMPT], max_new=0, wants_embedding=True)
    executor.fail_with = RuntimeError("once")
    at.run()
    assert [embedding(at, rid) for rid in ("a", "b")] == [[29, 21], [29, 21]]


class BrokenExecutor(CheckingExecutor):
    """Gives no state, or one that is not finite."""

    def __init__(self, states: dict[int, NDArray[np.float32]]) -> None:
        super().__init__(num_pages=16, page_size=4)
        self._states = states

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        output = super().forward(batch)
        output.hidden = self._states
        return output


@pytest.mark.parametrize("states", [{}, {0: np.array([1.0, np.nan], np.float32)}], ids=["none", "NaN"])
def test_a_state_that_is_missing_or_not_finite_ends_the_request_with_an_error(states: dict[int, NDArray[np.float32]]) -> None:
    at = Desk(BrokenExecutor(states))
    at.submit("r", PROMPT, max_new=0, wants_embedding=True)
    at.run()
    end = at.finish("r")
    assert isinstance(end, Abort)
    assert end.cause == "engine_error"
    assert at.rows("r")[0].details is None
    assert at.stats().pages_cached == 0  # nobody knows what is in the pages
    assert_nothing_held(at)


def test_an_embedding_is_replayed_to_the_next_detokenizer() -> None:
    at, _ = desk()
    at.submit("r", PROMPT, max_new=0, wants_embedding=True)
    at.run()
    at.to_detokenizer.connection = 2
    at.scheduler.handle(ReplayReq([Received("r", 0, 0)], at.to_detokenizer.receiver_pid))
    replay = at.to_detokenizer.sent[-1]
    assert isinstance(replay, Replay)
    details = replay.requests[0].row.details
    assert details is not None
    assert state(details.embedding) == [29, 20]


def test_input_embeds_stand_for_ids_in_every_chunk_and_after_a_retraction() -> None:
    # the executor checks what lies in its pages
    at, executor = desk(num_pages=7, page_size=4, chunked_prefill_size=8, share_prefixes=False)
    at.submit("first", [5] * 4, max_new=12, ignore_eos=True)
    at.step()
    at.submit("r", [0] * 12, max_new=8, input_embeds=made_embeds(12), namespace="x", ignore_eos=True)
    at.run()
    assert at.stats().retractions > 0
    assert sum(row[:2] == ("r", 0) for batch in executor.batches for row in batch) == 2  # computed again from its beginning
    assert at.finish("r") == Length(8)
    assert_nothing_held(at)


def test_equal_ids_with_other_embeddings_share_nothing_and_equal_ones_do() -> None:
    at, _ = desk()
    for rid, seed in (("a", 1), ("b", 2), ("c", 1)):
        at.submit(rid, [0] * 20, max_new=1, input_embeds=made_embeds(seed=seed), namespace=f"embeds {seed}")
        at.run()
    at.submit("ids", [0] * 20, max_new=1)
    at.run()
    assert [at.rows(rid)[-1].usage.cached_tokens for rid in ("a", "b", "c", "ids")] == [0, 0, 16, 0]


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_prompts_of_one_call_with_equal_ids_and_other_embeddings_are_no_family(share_prefixes: bool) -> None:
    at, executor = desk(share_prefixes=share_prefixes)
    for number in range(4):
        embeds = made_embeds(10, seed=number // 2)
        at.submit(f"c-{number}", [0] * 10, max_new=2, call="c", input_embeds=embeds, namespace=f"embeds {number // 2}")
    at.run()
    assert executor.num_copies == 2  # a fork of each
    assert [at.rows(f"c-{number}")[-1].usage.cached_tokens for number in range(4)] == [0, 9, 0, 9]
    assert_nothing_held(at)


def test_the_bytes_of_input_embeds_stand_in_the_ledger_until_the_request_ends() -> None:
    at, _ = desk()
    at.submit("r", [0] * 20, max_new=4, input_embeds=made_embeds(), namespace="x", ignore_eos=True)
    at.step()
    at.scheduler.handle(StatsReq(1, LedgerQuery()))
    assert at.to_detokenizer.sent.pop().books[0].totals["input_embeds"] == 20 * HIDDEN_SIZE * 4
    at.abort("r")
    assert_nothing_held(at)


def test_embeddings_of_another_shape_are_refused() -> None:
    at, _ = desk()
    at.submit("r", [0] * 20, input_embeds=made_embeds(19), namespace="x")
    at.step()
    assert [refused.param for refused in at.rejected()] == ["input_embeds"]


def test_a_model_without_embeddings_refuses_both_ways() -> None:
    at, _ = desk(hidden_size=0)
    at.submit("r", PROMPT, input_embeds=made_embeds(), namespace="x")
    at.submit("s", PROMPT, max_new=0, wants_embedding=True)
    at.step()
    assert [refused.status for refused in at.rejected()] == [400, 400]
