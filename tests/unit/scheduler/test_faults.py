"""Faults that stay where they are: of a step, a row, a message or the pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.errors import InvariantError
from millstream.execution.interface import ForwardBatch, ForwardOutput
from millstream.messages import Abort, Length
from millstream.observe.ledger import Ledger
from tests.unit.scheduler.harness import assert_nothing_held, desk


@pytest.mark.parametrize(
    ("broken", "ended"),
    [
        pytest.param(lambda rids: len(rids) > 1, "", id="together only: nobody ends"),
        pytest.param(lambda rids: "a" in rids, "a", id="by one request: it ends, the others go on"),
        pytest.param(lambda rids: rids != ["c"], "ab", id="for all of the step: they end, the next goes on"),
    ],
)
def test_a_failed_step_ends_only_requests_that_fail_alone_and_the_loop_goes_on(
    broken: Callable[[list[str]], bool], ended: str, caplog: pytest.LogCaptureFixture
) -> None:
    at, executor = desk(max_running_requests=2)
    whole, alone = executor.forward, desk()[0]
    for rid in "abc":
        for each in (at, alone):
            each.submit(rid, range(300, 309), max_new=3, ignore_eos=True)
    at.step()
    at.step()

    def fail(batch: ForwardBatch) -> ForwardOutput:
        if broken([row.rid for row in batch.rows]):
            raise RuntimeError("no more memory")
        return whole(batch)

    executor.forward = fail  # type: ignore[method-assign]
    at.run()
    alone.run()
    for rid in "abc":
        if rid in ended:
            assert at.finish(rid) == Abort("engine_error", "The engine failed: no more memory", 500)
        else:
            assert (at.finish(rid), at.tokens(rid)) == (Length(3), alone.tokens(rid))
    assert "a step of 2 requests failed" in caplog.text
    assert_nothing_held(at)


def test_a_bad_row_ends_alone() -> None:
    at, executor = desk()
    for rid in "ab":
        at.submit(rid, max_new=3, ignore_eos=True)
    executor.fail_rids = {"a"}
    at.run()
    assert at.finish("a") == Abort("engine_error", "bad row", 500)
    assert at.finish("b") == Length(3)


def test_an_answer_of_the_wrong_length_is_a_failed_step(caplog: pytest.LogCaptureFixture) -> None:
    at, executor = desk()
    at.submit("r")
    executor.forward = lambda batch: type("Output", (), {"token_ids": [], "errors": {}})()  # type: ignore[method-assign]
    at.run()
    assert isinstance(at.finish("r"), Abort)
    assert "failed" in caplog.text


def test_tokens_that_cannot_be_settled_end_one_request(caplog: pytest.LogCaptureFixture) -> None:
    at, _ = desk()
    for rid in "ab":
        at.submit(rid, max_new=3, ignore_eos=True)

    def fail(new_ids: object, count: int) -> None:
        raise ValueError("unreadable")

    at.scheduler._live["a"].end_rule.settle = fail  # type: ignore[assignment,method-assign]
    at.run()
    assert at.finish("a") == Abort("engine_error", "The engine failed: unreadable", 500)
    assert at.finish("b") == Length(3)
    assert "could not be settled" in caplog.text


def test_a_message_that_breaks_ends_its_own_request_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, _ = desk()
    at.submit("a", max_new=2, ignore_eos=True)

    def fail(**options: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("millstream.scheduler.scheduler.EndRule", fail)
    at.submit("b")
    monkeypatch.undo()
    at.run()
    (refused,) = at.rejected()
    assert (refused.rid, refused.status, refused.type) == ("b", 500, "server_error")
    assert at.finish("a") == Length(2)
    assert "request b could not be taken on" in caplog.text


def test_a_page_that_leaks_is_noticed_when_nothing_runs() -> None:
    at, _ = desk()
    at.pool.grow(at.pool.open(Ledger("other").open("ghost"), "", [1]), 1)
    with pytest.raises(InvariantError):
        at.scheduler.step()
