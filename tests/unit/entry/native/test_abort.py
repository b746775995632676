"""POST /abort_request: what it hits, what it leaves alone and what it says, in every phase of a request."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from millstream.messages import AbortReq, Stop, TokenizedGenerateReqInput
from tests.support.asgi import Call, post, run, until
from tests.support.engine import TOKENIZER, Entry

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def live(*rids: str) -> tuple[Entry, list[Call]]:
    """An entry with one admitted native request for each rid."""
    entry = Entry()
    entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
    calls = [Call(entry.app, "/generate", {"text": "a", "rid": rid}) for rid in rids]
    await entry.engine.wait_sent(TokenizedGenerateReqInput, len(rids))
    return entry, calls


@pytest.mark.parametrize(
    ("body", "answer", "aborted"),
    [
        pytest.param({"rid": "b1"}, {"aborted": ["b1"]}, ["b1"], id="one rid, exactly"),
        pytest.param(
            {"rid": ["b10", "nobody", "b1", "b1"]},
            {"aborted": ["b10", "b1"], "not_found": ["nobody"]},
            ["b10", "b1"],
            id="a list",
        ),
        pytest.param({"rid": "b1", "prefix": True}, {"aborted": ["b1", "b10"]}, ["b1", "b10"], id="a prefix"),
        pytest.param(
            {"rid": ["b1", "c", "d"], "prefix": True},
            {"aborted": ["b1", "b10", "c"], "not_found": ["d"]},
            ["b1", "b10", "c"],
            id="several prefixes",
        ),
        pytest.param({"abort_all": True, "rid": ""}, {"aborted": ["b1", "b10", "c"]}, ["b1", "b10", "c"], id="all"),
    ],
)
def test_an_abort_ends_what_it_names_and_nothing_else(body: Any, answer: Any, aborted: list[str]) -> None:
    async def scenario() -> None:
        entry, calls = await live("b1", "b10", "c")
        response = await post(entry.app, "/abort_request", body)
        assert (response.status, response.body) == (200, answer)
        assert entry.engine.aborts == [AbortReq(rid, "aborted") for rid in aborted]
        for call, rid in zip(calls, ("b1", "b10", "c"), strict=True):
            if rid in aborted:
                entry.engine.end(rid, "aborted")
            else:
                entry.engine.row(rid, "done", finish=Stop())
            kind = (await call.response()).body["meta_info"]["finish_reason"]["type"]
            assert kind == ("abort" if rid in aborted else "stop")
        assert entry.manager.live_requests == 0

    run(scenario())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"rid": []}, 400),
        ({"rid": ["b1", ""]}, 400),
        ({"rid": "", "prefix": True}, 400),
        ({"rid": ["x"] * 1025}, 400),
        ({"rid": 1}, 400),
        ({"rid": "b1", "abort_all": True}, 400),
        ({"rid": ["nobody", "b", "B1"]}, 404),
        ({"rid": "x", "prefix": True}, 404),
    ],
)
def test_an_abort_that_is_wrong_or_hits_nothing_aborts_nothing(body: Any, status: int) -> None:
    async def scenario() -> None:
        entry, calls = await live("b1")
        response = await post(entry.app, "/abort_request", body)
        assert (response.status, response.error["param"]) == (status, "rid")
        assert entry.engine.aborts == []
        entry.engine.row("b1", "done", finish=Stop())
        assert (await calls[0].response()).body["text"] == "done"

    run(scenario())


def test_an_abort_before_dispatch_ends_the_request_here() -> None:
    class SlowTokenizer:
        vocab_size = TOKENIZER.vocab_size
        go = threading.Event()

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            assert self.go.wait(10)
            return [5]

    async def scenario() -> None:
        entry = Entry(context_length=100_000, tokenizer=SlowTokenizer())
        call = Call(entry.app, "/v1/completions", {"prompt": "word " * 1000, "rid": "r"})
        await until(lambda: entry.manager.live_requests > 0)
        assert (await post(entry.app, "/abort_request", {"rid": "r"})).body == {"aborted": ["r"]}
        assert (await post(entry.app, "/abort_request", {"rid": "r"})).status == 404
        response = await call.response()  # at once: nobody waits for the tokenizer any more
        SlowTokenizer.go.set()
        assert (response.status, response.error["code"]) == (499, "aborted")
        assert (entry.engine.sent, entry.manager.live_requests) == ([], 0)

    run(scenario())


def test_an_abort_of_a_batch_ends_the_encoding_of_its_texts() -> None:
    class CountingTokenizer:
        vocab_size = TOKENIZER.vocab_size
        num_encoded = 0

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            self.num_encoded += 1
            return [5]

    async def scenario() -> None:
        tokenizer = CountingTokenizer()
        entry = Entry(tokenizer=tokenizer)
        call = Call(entry.app, "/generate", {"text": [f"{number} " + "word " * 300 for number in range(50)], "rid": "r"})
        await until(lambda: tokenizer.num_encoded > 2)
        assert (await post(entry.app, "/abort_request", {"rid": "r_7"})).body == {"aborted": ["r_7"]}
        assert not call.task.done()  # the others go on
        assert len((await post(entry.app, "/abort_request", {"rid": "r"})).body["aborted"]) == 50
        response = await call.response()
        assert (response.status, response.error["code"]) == (499, "aborted")
        assert tokenizer.num_encoded < 50
        assert (entry.engine.sent, entry.manager.live_requests) == ([], 0)

    run(scenario())


def test_an_abort_at_the_final_row_or_after_it_changes_nothing() -> None:
    async def scenario() -> None:
        entry, (call,) = await live("r")
        entry.engine.row("r", "done")
        assert (await post(entry.app, "/abort_request", {"rid": "r"})).body == {"aborted": ["r"]}
        assert (await post(entry.app, "/abort_request", {"rid": "r"})).body == {"aborted": ["r"]}  # it has not ended yet
        entry.engine.row("r", ".", finish=Stop())  # it was on its way when the abort was sent
        assert (await call.response()).body["text"] == "done."
        assert (await post(entry.app, "/abort_request", {"rid": "r"})).status == 404
        entry.engine.row("r", "late")
        assert entry.engine.aborts == [AbortReq("r", "aborted")]
        assert (entry.manager.live_requests, entry.manager.late_rows_dropped) == (0, 1)

    run(scenario())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/chat/completions", {**CHAT, "n": 3}, id="a choice of n"),
        pytest.param("/v1/completions", {"prompt": ["a", "b", "c"]}, id="a member of a batch"),
    ],
)
def test_an_abort_of_one_choice_leaves_the_others_alone(path: str, body: dict[str, Any], stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: (entry.engine.accept(sent.rid), entry.engine.row(sent.rid, "so"))
        call = Call(entry.app, path, {**body, "rid": "r", "stream": stream})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 3)
        await until(lambda: all(state.accepted for state, _ in entry.manager.registry.by_rid.values()))
        assert (await post(entry.app, "/abort_request", {"rid": "r-1"})).body == {"aborted": ["r-1"]}
        entry.engine.end("r-1", "aborted")
        for rid in ("r-0", "r-2"):
            entry.engine.row(rid, "me", finish=Stop())
        response = await call.response()
        assert response.status == 200
        if stream:
            assert response.events[-1].data == "[DONE]"
            choices = [choice for chunk in response.chunks for choice in chunk["choices"]]
        else:
            choices = response.body["choices"]
        ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
        assert ends == {0: "stop", 1: "abort", 2: "stop"}
        texts = ["", "", ""]
        for choice in choices:
            texts[choice["index"]] += choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get(
                "content", ""
            )
        assert texts == ["some", "so", "some"]
        assert entry.engine.aborts == [AbortReq("r-1", "aborted")]
        assert entry.manager.live_requests == 0

    run(scenario())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("body", "rids", "aborted"),
    [
        pytest.param({"text": ["a", "b", "c"], "rid": "r"}, {"rid": "r_1"}, [1], id="a member of a batch"),
        pytest.param({"text": ["a", "b", "c"], "rid": ["x", "y", "z"]}, {"rid": ["z", "x"]}, [2, 0], id="two of a batch"),
        pytest.param({"text": "a", "rid": "r", "sampling_params": {"n": 3}}, {"rid": "r_2"}, [2], id="a choice of n"),
        pytest.param({"text": ["a", "b"], "rid": ["x", "y"], "sampling_params": {"n": 2}},
                     {"rid": "x_", "prefix": True}, [0, 1], id="all choices of a prompt"),
        pytest.param({"text": ["a", "b", "c"], "rid": "r"}, {"rid": "r"}, [0, 1, 2], id="the whole call"),
        pytest.param({"text": ["a", "b"]}, {"abort_all": True}, [0, 1], id="everybody"),
    ],
)  # fmt: skip
def test_an_abort_within_a_native_batch_is_the_end_of_that_part_and_of_no_other(
    body: dict[str, Any], rids: dict[str, Any], aborted: list[int], stream: bool
) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: (entry.engine.accept(sent.rid), entry.engine.row(sent.rid, "so"))
        call = Call(entry.app, "/generate", {**body, "stream": stream})
        await until(lambda: bool(entry.manager.live_requests))
        count = entry.manager.live_requests
        await until(lambda: all(state.accepted for state, _ in entry.manager.registry.by_rid.values()))
        sent = [request.rid for request in entry.engine.requests]
        response = await post(entry.app, "/abort_request", rids)
        assert response.body["aborted"] == [sent[index] for index in aborted]
        for index in range(count):
            if index in aborted:
                entry.engine.end(sent[index], "aborted")
            else:
                entry.engine.row(sent[index], "me", finish=Stop())
        answer = await call.response()
        assert answer.status == 200
        if stream:
            assert answer.events[-1].data == "[DONE]"
            parts = [[chunk for chunk in answer.chunks if chunk["index"] == index][-1] for index in range(count)]
        else:
            parts = answer.body
        for index, part in enumerate(parts):
            kind, text = ("abort", "so") if index in aborted else ("stop", "some")
            assert (part["meta_info"]["finish_reason"]["type"], part["text"]) == (kind, text)
        assert len(entry.engine.aborts) == len(aborted)
        assert entry.manager.live_requests == 0

    run(scenario())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_whose_every_choice_was_aborted_has_failed(stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, "/v1/chat/completions", {**CHAT, "n": 2, "rid": "r", "stream": stream})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 2)
        assert (await post(entry.app, "/abort_request", {"rid": "r"})).body == {"aborted": ["r-0", "r-1"]}
        entry.engine.end("r-0", "aborted")
        entry.engine.end("r-1", "aborted")
        response = await call.response()
        if stream:
            assert response.events[-1].data["error"]["code"] == "aborted"
            assert b"[DONE]" not in response.content
        else:
            assert (response.status, response.error["code"]) == (499, "aborted")

    run(scenario())
