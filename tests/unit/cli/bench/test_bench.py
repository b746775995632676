"""`millstream bench` against a stand-in: what it asks, what it counts, and that nothing a server does stops it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.cli import main
from millstream.cli.bench.load import Load, Run, drive
from millstream.cli.bench.wire import Target
from millstream.cli.bench.workload import Range, Session, Shape, make_sessions
from tests.support.sse_server import Answer, deltas, openai_stand_in

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
SHAPE = Shape(kind="random", prompt_words=Range(3, 3), max_tokens=Range(2, 2), prefix_words=1, prefixes=1, turns=3)


def answer(body: dict[str, Any]) -> Answer:
    return deltas("a", "b", usage=USAGE)


def bench(capsys: pytest.CaptureFixture[str], answers: Callable[[dict[str, Any]], Answer], *arguments: str, **more: Any) -> Any:
    """Status, report and the bodies that were asked."""
    with openai_stand_in(answers, **more) as server:
        status = main.run(["bench", "--url", server.url, "--json", "--warmup", "0", *arguments])
    return status, json.loads(capsys.readouterr().out), server.bodies


def test_a_closed_loop_asks_everything_and_counts_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--requests", "7", "--concurrency", "3", "--extra-body", '{"temperature": 0}')
    status, report, bodies = bench(capsys, answer, *arguments)
    assert status == 0
    found = report["figures"]
    assert found["requests"] == {"ended": 7, "succeeded": 7, "failed": 0}
    assert found["tokens"] == {"prompt": 63, "cached": 21, "output": 14, "counted_by": "usage"}
    assert all(found[name]["max"] >= found[name]["p50"] >= 0 for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"))
    assert report["load"] == {"concurrency": 3, "rate": None, "duration_s": None}
    assert len({body["messages"][0]["content"] for body in bodies}) == 7
    for body in bodies:  # nothing but OpenAI's own
        assert body.keys() == {"model", "messages", "stream", "stream_options", "max_tokens", "temperature"}
        assert (body["model"], body["max_tokens"]) == ("tiny", 64)


def test_an_open_loop_waits_for_no_answer() -> None:
    all_there = threading.Barrier(5, timeout=60.0)

    def patient(body: dict[str, Any]) -> Iterator[Any]:
        all_there.wait()  # no answer begins before all have asked
        yield from deltas("a")

    with openai_stand_in(patient) as server:
        run = Run()
        target = Target(url=server.url, model="tiny", key=None, timeout_s=60.0, extra={})
        load = Load(concurrency=None, rate=1000.0, duration_s=None, seed=1)
        asyncio.run(drive(make_sessions(SHAPE, 5, 0), target, load, run, lambda _: None))
    assert [record.error for record in run.records] == [None] * 5


def test_conversations_carry_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    status, report, bodies = bench(
        capsys, answer, "--workload", "multi-turn", "--turns", "3", "--requests", "3", "--concurrency", "1"
    )
    assert (status, report["workload"]["turns"]) == (0, 3)
    assert [[each["role"] for each in body["messages"]] for body in bodies] == [
        ["user"], ["user", "assistant", "user"], ["user", "assistant", "user", "assistant", "user"],
    ]  # fmt: skip
    assert bodies[1]["messages"][1]["content"] == "ab"


@pytest.mark.parametrize(
    ("failing", "kind"),
    [
        pytest.param((429, {"error": {"message": "busy"}}), "HTTP 429", id="refused"),
        pytest.param([{"error": {"message": "it died"}}], "error event", id="error event"),
        pytest.param(["data: {x\n\n"], "not OpenAI", id="no JSON"),
        pytest.param([{"choices": 7}], "not OpenAI", id="no choices"),
        pytest.param((200, {"choices": []}), "not OpenAI", id="no stream"),
    ],
)
def test_failures_are_counted_by_kind(failing: Answer, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([answer({}), failing, answer({})])
    status, report, _ = bench(capsys, lambda _: next(answers), "--requests", "3", "--concurrency", "1")
    assert status == 1
    assert report["figures"]["requests"] == {"ended": 3, "succeeded": 2, "failed": 1}
    assert {name: each["count"] for name, each in report["figures"]["errors"].items()} == {kind: 1}


def test_a_stream_without_its_end_was_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    status, report, _ = bench(capsys, lambda _: deltas("a"), "--requests", "1", done=False)
    assert (status, list(report["figures"]["errors"])) == (1, ["cut off"])


def test_a_server_that_hangs_costs_its_time_limit_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    over = threading.Event()

    def hanging(body: dict[str, Any]) -> Iterator[Any]:
        yield deltas("a")[0]
        over.wait(60.0)

    with openai_stand_in(hanging) as server:
        status = main.run(["bench", "--url", server.url, "--json", "--warmup", "0", "--requests", "2", "--timeout", "0.2"])
        over.set()
    assert status == 1
    assert json.loads(capsys.readouterr().out)["figures"]["errors"]["timeout"]["count"] == 2


def test_where_nobody_listens_any_more_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--url", "http://127.0.0.1:1", "--model", "tiny", "--requests", "2", "--json"]
    assert main.run(arguments) == 1
    assert json.loads(capsys.readouterr().out)["figures"]["errors"]["connection"]["count"] == 2
    assert main.run(["bench", "--url", "http://127.0.0.1:1"]) == 1  # and for its list of models
    assert "no server answers" in capsys.readouterr().err


def test_the_report_goes_to_files_and_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json_file, picture = tmp_path / "a.json", tmp_path / "a.svg"
    with openai_stand_in(answer) as server:
        arguments = ["bench", "--url", server.url, "--requests", "2", "--output", str(json_file), "--picture", str(picture)]
        assert main.run(arguments) == 0
    assert "2 succeeded, 0 failed" in capsys.readouterr().out
    assert json.loads(json_file.read_text())["model"] == "tiny"
    assert picture.read_text().startswith("<svg ")
    assert len(server.bodies) == 3  # one to warm up


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--concurrency", "2", "--rate", "3"), 1, "name one"),
        (("--requests", "0"), 1, "--requests is 0"),
        (("--rate", "nan"), 1, "--rate is nan"),
        (("--extra-body", "[]"), 1, "--extra-body"),
        (("--file", "no/such"), 1, "cannot be read"),
        (("--prompt-words", "9-3"), 1, "--prompt-words"),
        (("--workload", "file"), 2, "random"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(
    arguments: tuple[str, ...], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["bench", "--model", "tiny", *arguments]) == status
    assert message in capsys.readouterr().err


def test_a_duration_begins_nothing_after_it() -> None:
    run = Run()
    target = Target(url="http://127.0.0.1:1", model="tiny", key=None, timeout_s=60.0, extra={})
    sessions: Iterator[Session] = make_sessions(SHAPE, None, 0)
    for load in (
        Load(concurrency=2, rate=None, duration_s=0.05, seed=1),
        Load(concurrency=None, rate=200.0, duration_s=0.05, seed=1),
    ):
        asyncio.run(drive(sessions, target, load, run, lambda _: None))  # it ends, though sessions do not
    assert run.in_flight == 0


def test_an_interrupted_run_reports_what_it_has(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    press: list[Callable[[], object]] = []
    asked = 0

    def counting(body: dict[str, Any]) -> Answer:
        nonlocal asked
        asked += 1
        if asked == 3:  # one warmed up, one is over
            press[0]()
        return answer(body)

    def interrupted(job: Any) -> None:
        async def some() -> None:
            task, pressed = asyncio.ensure_future(job), asyncio.Event()
            loop = asyncio.get_running_loop()
            press.append(lambda: loop.call_soon_threadsafe(pressed.set))
            await pressed.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        with asyncio.Runner() as runner:
            runner.run(some())
        raise KeyboardInterrupt

    with openai_stand_in(counting) as server:
        monkeypatch.setattr("millstream.cli.bench.command.asyncio.run", interrupted)
        assert main.run(["bench", "--url", server.url, "--json", "--concurrency", "1", "--requests", "500"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert report["interrupted"]
    assert 1 <= report["figures"]["requests"]["succeeded"] < 500
