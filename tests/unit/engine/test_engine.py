"""Engine: what a server answers, in this process; its streams, its ends, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import millstream
from millstream import Engine
from millstream.errors import EngineDeadError, EngineError, RequestError, StartupError
from millstream.execution.interface import Capabilities, Executor, ForwardBatch, ForwardOutput
from millstream.text.tokenizer import load_scripted_tokenizer

GREEDY = {"temperature": 0, "max_new_tokens": 12}
BODIES: list[dict[str, Any]] = [
    {"text": "go", "sampling_params": GREEDY},
    {"text": ["go", "on"], "sampling_params": [GREEDY, {"max_new_tokens": 3, "seed": 5}]},
    {"input_ids": [40, 41, 42], "sampling_params": {**GREEDY, "n": 2}, "return_prompt_token_ids": True},
    {"text": "go", "sampling_params": {**GREEDY, "stop": [" "]}, "return_logprob": True, "top_logprobs_num": 2},
    {"text": "go", "sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0},
    {"text": '<script>{"pieces": ["a", ["b", "é"], {"bytes": "f09f"}]}</script>'},
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(executor="scripted", script="inline", strict_ledger=True) as engine:
        yield engine


def without_chance(answer: Any) -> Any:
    """An answer without what is never the same twice, or depends on what was asked before."""
    if isinstance(answer, list):
        return [without_chance(each) for each in answer]
    chance = ("id", "e2e_latency", "cached_tokens", "cached_tokens_details")
    return {**answer, "meta_info": {name: value for name, value in answer["meta_info"].items() if name not in chance}}


def parts(body: dict[str, Any]) -> dict[str, Any]:
    """A body as arguments of `generate`."""
    return {"prompt" if name == "text" else name: value for name, value in body.items()}


def live(engine: Engine) -> int:
    return engine.get_server_info()["live_requests"]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_it_answers_what_a_server_answers(engine: Engine, scripted_server: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{scripted_server}/generate", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    whole = engine.generate(**parts(body))
    assert without_chance(whole) == without_chance(answer.json())
    assert without_chance(asyncio.run(engine.async_generate(**parts(body)))) == without_chance(answer.json())
    last = {event.get("index", 0): event for event in engine.generate(**parts(body), stream=True)}
    assert without_chance([{**last[index], "index": index} for index in sorted(last)]) == without_chance(
        [{**each, "index": index} for index, each in enumerate(whole if isinstance(whole, list) else [whole])]
    )


def test_deltas_joined_are_the_answer_on_any_event_loop(engine: Engine) -> None:
    async def joined() -> str:
        events = await engine.async_generate("go", GREEDY, stream=True, incremental_streaming_output=True)
        return "".join([event["text"] async for event in events])

    whole = engine.generate("go", GREEDY)
    assert isinstance(whole, dict)
    assert asyncio.run(joined()) == asyncio.run(joined()) == whole["text"]


def test_threads_share_it(engine: Engine) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: engine.generate("go", {**GREEDY, "max_new_tokens": number}), range(1, 33)))
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == list(range(1, 33))  # type: ignore[call-overload]
    assert live(engine) == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"prompt": "a", "temperature": 1}, "temperature"),
        ({}, "text"),
        ({"prompt": "a", "input_ids": [1]}, "text"),
        ({"prompt": "a", "timeout": 0}, "timeout"),
        ({"prompt": "a", "image_data": "x"}, "image_data"),
        ({"prompt": "\ud800"}, None),
        ({"prompt": "a", "sampling_params": {"stop": "\ud800"}}, None),
        ({"prompt": "a", "cache_salt": "\ud800"}, None),
    ],
)
def test_what_is_wrong_is_said_with_its_name(engine: Engine, fields: dict[str, Any], param: str | None) -> None:
    for stream in (False, True):
        with pytest.raises(RequestError) as error:
            list(engine.generate(**fields, stream=stream))  # type: ignore[call-overload]
        assert error.value.param == param
    assert live(engine) == 0


def test_a_request_that_fails_takes_no_other_with_it(engine: Engine) -> None:
    slow = '<script>{"pieces": ["a"], "finish": "length", "step_ms": 20}</script>'  # it goes on for longer than the test
    other = engine.generate(slow, {"max_new_tokens": 8000}, stream=True)
    next(other)
    failing = '<script>{"pieces": ["a", "b"], "fault": {"kind": "error", "after": 1}}</script>'
    with pytest.raises(EngineError):
        engine.generate(failing)
    events = engine.generate(failing, stream=True)
    assert next(events)["text"] == "a"
    with pytest.raises(EngineError):
        next(events)
    assert next(other)["meta_info"]["finish_reason"] is None
    other.close()  # type: ignore[attr-defined]


def wait_for_no_life(engine: Engine) -> None:
    """Wait until the engine says that nothing is live: an abort has no answer of its own."""
    while live(engine):
        pass


def test_a_stream_that_is_left_aborts_its_request(engine: Engine) -> None:
    endless = {"max_new_tokens": 8000, "ignore_eos": True}
    closed = engine.generate("go", endless, stream=True)
    next(closed)
    closed.close()  # type: ignore[attr-defined]
    dropped = engine.generate("go", endless, stream=True)
    next(dropped)
    del dropped
    gc.collect()

    async def leave() -> None:
        async for _ in await engine.async_generate("go", endless, stream=True):
            break
        task = asyncio.create_task(engine.async_generate("go", endless))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    wait_for_no_life(engine)
    info = engine.get_server_info()
    assert info["pages_free"] == info["pages_total"]
    assert info["ledger_mismatch_total"] == info["stream_mismatch_total"] == 0


def test_requests_are_aborted_by_their_rid(engine: Engine) -> None:
    events = engine.generate("go", {"max_new_tokens": 8000, "ignore_eos": True}, stream=True, rid="mine")
    next(events)
    assert engine.abort_request("nobody") == []
    assert engine.abort_request("mine") == ["mine"]
    assert list(events)[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    with pytest.raises(RequestError):
        engine.abort_request()


def test_shut_down_it_ends_what_runs_and_refuses_what_comes() -> None:
    engine = Engine(executor="scripted", strict_ledger=True)
    threads = {thread.name for thread in threading.enumerate()}
    events = engine.generate("go", {"max_new_tokens": 8000, "ignore_eos": True}, stream=True)
    next(events)
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(EngineDeadError):
        list(events)
    with pytest.raises(EngineDeadError):
        engine.generate("go")
    with pytest.raises(EngineDeadError):
        engine.abort_request(abort_all=True)
    assert {"millstream-entry", "millstream-scheduler"} <= threads


def test_an_engine_that_nobody_has_any_more_is_shut_down() -> None:
    before = threading.active_count()
    engine = Engine(executor="scripted")
    core = engine._core
    assert threading.active_count() > before
    del engine
    gc.collect()
    for thread in core._threads:
        thread.join()


class Counting:
    """An executor of one's own: the next token is the last one and one more."""

    def __init__(self) -> None:
        tokenizer = load_scripted_tokenizer()
        self.capabilities = Capabilities(
            vocab_size=tokenizer.vocab_size, context_length=256, num_pages=64, page_size=16, eos_token_ids=frozenset()
        )
        self.is_broken = False
        self.is_closed = False

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        if self.is_broken:
            raise SystemError("out of order")
        return ForwardOutput([[row.token_ids[-1] + 1] if row.sample else [] for row in batch.rows])

    def close(self) -> None:
        self.is_closed = True


def scripted_engine(executor: Executor) -> Engine:
    return Engine(executor=executor, strict_ledger=True)


def test_an_executor_of_ones_own_is_plugged_in() -> None:
    executor = Counting()
    with scripted_engine(executor) as engine:
        answer = engine.generate(input_ids=[10, 20], sampling_params={"max_new_tokens": 4})
        assert answer["output_ids"] == [21, 22, 23, 24]  # type: ignore[call-overload]
        with pytest.raises(RequestError) as error:
            engine.generate("a", return_logprob=True)
        assert error.value.param == "return_logprob"
        executor.is_broken = True
        with pytest.raises(EngineError):
            engine.generate("a")
        executor.is_broken = False
        assert engine.generate(input_ids=[1], sampling_params={"max_new_tokens": 1})["output_ids"] == [2]  # type: ignore[call-overload]
    assert executor.is_closed


@pytest.mark.parametrize(
    "options", [{"port": 1}, {"no_such": 1}, {"page_size": 0}, {"model": "/nowhere"}, {"executor": "abacus"}, {"api_key": "x"}]
)
def test_options_that_an_engine_cannot_have_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(StartupError):
        Engine(**{"executor": "scripted" if "model" not in options else "native", **options})


def test_the_package_loads_no_engine_before_it_is_asked_for() -> None:
    assert millstream.Engine is Engine
    with pytest.raises(AttributeError):
        _ = millstream.Motor  # type: ignore[attr-defined]


def collect_in_its_thread(engine: Engine) -> None:
    """Run the garbage collector in the engine's own thread, as an allocation there may."""
    asyncio.run(_on_loop(engine))


async def _on_loop(engine: Engine) -> None:
    async def work() -> None:
        gc.collect()

    await asyncio.wait_for(asyncio.wrap_future(engine._core.run(work())), 30)


class Cycle:
    """Something only the garbage collector frees."""

    def __init__(self, held: object) -> None:
        self.held = held
        self.itself = self


def test_a_stream_that_the_engines_own_thread_collects_is_aborted(engine: Engine) -> None:
    stream = engine.generate("go", {"max_new_tokens": 8000, "ignore_eos": True}, stream=True)
    next(stream)
    gc.disable()
    try:
        Cycle(stream)
        del stream
        collect_in_its_thread(engine)
    finally:
        gc.enable()
    wait_for_no_life(engine)


def test_an_engine_that_its_own_thread_collects_is_shut_down() -> None:
    engine = Engine(executor="scripted")
    core = engine._core
    gc.disable()
    try:
        Cycle(engine)
        del engine
        core._loop.call_soon_threadsafe(gc.collect)
        for thread in core._threads:
            thread.join(30)
            assert not thread.is_alive()
    finally:
        gc.enable()


def test_a_fork_is_told_that_it_has_no_engine_and_ends(engine: Engine) -> None:
    stream = engine.generate("go", {"max_new_tokens": 8000, "ignore_eos": True}, stream=True)
    next(stream)
    child = os.fork()
    if not child:
        refused = False
        try:
            engine.generate("go", GREEDY)
        except EngineDeadError:
            del stream
            engine.shutdown()
            refused = True
        finally:
            os._exit(0 if refused else 1)
    watch = threading.Timer(30, os.kill, (child, signal.SIGKILL))
    watch.start()
    assert os.waitpid(child, 0)[1] == 0
    watch.cancel()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    wait_for_no_life(engine)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_executor_that_ends_its_thread_ends_the_engine_and_not_the_program(kind: type[BaseException]) -> None:
    class Quitter(Counting):
        def forward(self, batch: ForwardBatch) -> ForwardOutput:
            raise kind

    with scripted_engine(Quitter()) as engine:
        for _ in range(2):
            with pytest.raises(EngineDeadError):
                engine.generate(input_ids=[1])
