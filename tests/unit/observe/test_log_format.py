"""Logs for programs: one JSON object a line, whatever happens; levels that change while the server runs."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from millstream.messages import ServerState, SetLogLevel, Shutdown, Timing
from millstream.observe.log import JsonFormatter, RequestEnd, heed, log_request_end

END = RequestEnd("r1", "chat", "m", "stop", 20, 16, 5, Timing(received=1.0, prefilled=1.2, written=2.0), 9.0, "req_1")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [json.loads(JsonFormatter("entry-0").format(record)) for record in caplog.records]


def test_a_request_s_end_has_its_numbers_by_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="millstream.request"):
        log_request_end(END)
    (line,) = lines(caplog)
    assert line.pop("time") and str(line.pop("message")).startswith("request r1 ")
    assert line == {
        "level": "info", "process": "entry-0", "logger": "millstream.request", "rid": "r1", "api": "chat", "model": "m",
        "cause": "stop", "prompt_tokens": 20, "cached_tokens": 16, "completion_tokens": 5, "request_id": "req_1",
        "trace_id": None, "ttft_ms": 200.0, "total_ms": 1000.0,
    }  # fmt: skip


def test_texts_are_there_where_they_are_given(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="millstream.request"):
        log_request_end(END, texts=("ein\nSatz", "Ja."))
    (line,) = lines(caplog)
    assert (line["prompt_text"], line["answer_text"]) == ("ein\nSatz", "Ja.")
    assert r"prompt_text='ein\nSatz' answer_text='Ja.'" in caplog.records[0].getMessage()


def test_an_exception_stays_within_its_line(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("millstream").exception("it failed")
    formatted = JsonFormatter("scheduler").format(caplog.records[0])
    assert "\n" not in formatted
    assert "ValueError: two\nlines" in json.loads(formatted)["exception"]


@pytest.mark.parametrize(
    "how", ["raise KeyError('x')", "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()"]
)
def test_errors_that_nobody_catches_are_json_too(how: str) -> None:
    code = f"from millstream.observe.log import configure_logging; configure_logging('entry-0', 'info', 'json'); {how}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    (line,) = [json.loads(each) for each in result.stderr.splitlines()]
    assert (line["level"], line["process"]) == ("critical", "entry-0")
    assert "Error" in line["exception"]


def test_a_child_follows_the_supervisor_s_level() -> None:
    root = logging.getLogger()
    before = root.level
    try:
        assert not heed([SetLogLevel("error"), ServerState(processes={})])
        assert root.level == logging.ERROR
        assert heed([SetLogLevel("debug"), Shutdown()])
        assert root.level == logging.DEBUG
    finally:
        root.setLevel(before)
