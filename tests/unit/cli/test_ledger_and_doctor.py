"""`millstream ledger`, and `millstream doctor` of a running server: a stand-in says things, the commands what they mean."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from millstream.cli import doctor, main
from millstream.cli.ledger import age, ledger_table

CLEAN: dict[str, Any] = {"held": [], "left_out": 0, "totals": {}, "released": {}, "mismatches": 0}
INFO: dict[str, Any] = {
    "version": "1.2",
    "model": "tiny",
    "processes": {"entry": {"pid": 7, "state": "READY"}, "scheduler": {"pid": 8, "state": "READY"}},
    "stream_mismatch_total": 0,
}


def held(rid: str, process: str, kind: str, amount: int = 1) -> dict[str, Any]:
    return {"rid": rid, "process": process, "kind": kind, "amount": amount, "since_s": 3.25}


def holding(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    totals: dict[str, int] = {}
    for each in entries:
        totals[each["kind"]] = totals.get(each["kind"], 0) + each["amount"]
    return {**CLEAN, "held": list(entries), "totals": totals, **more}


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[str]:
    """A server with fixed answers: bodies, pairs of status and body, or functions that make them."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path, (404, {"error": {"message": "nothing here"}}))
            answer = answer() if callable(answer) else answer
            status, body = answer if isinstance(answer, tuple) else (200, answer)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def run(*arguments: str) -> int:
    return main.run(list(arguments))


def free_url() -> str:
    """Where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_the_table_shows_who_holds_what_for_whom_since_when() -> None:
    text = ledger_table(holding(held("r1", "scheduler", "pages", 1200), held("", "entry", "encoding"), left_out=3))
    assert text.splitlines() == [
        "request  process    what      amount  for",
        "r1       scheduler  pages     1,200   3.2 s",
        "-        entry      encoding  1       3.2 s",
        "... and 3 more",
        "",
        "in all: encoding 1, pages 1,200",
        "mismatches: 0",
    ]
    assert ledger_table(CLEAN) == "nothing is held\nmismatches: 0\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0124, "12 ms"), (59.94, "59.9 s"), (600, "10 min"), (9000, "2.5 h")], ids=["ms", "s", "min", "h"]
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_the_ledger_of_a_server_is_shown_whole_or_for_one_request(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"/debug/ledger": holding(held("r1", "entry", "state")), "/debug/ledger?rid=a+b%26c": CLEAN}
    with serving(answers) as url:
        assert run("ledger", "--url", url) == 0
        assert "r1" in capsys.readouterr().out
        assert run("ledger", "--url", url, "--rid", "a b&c") == 0
        assert "nothing is held" in capsys.readouterr().out
        assert run("ledger", "--url", url, "--json") == 0
        assert json.loads(capsys.readouterr().out) == answers["/debug/ledger"]


@pytest.mark.parametrize("command", ["ledger", "doctor"])
@pytest.mark.parametrize("url", [None, "ftp://x", "http://", "http://127.0.0.1:99999999"])
def test_a_url_where_no_server_can_be_is_an_error_with_a_hint(
    command: str, url: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "--url", url or free_url()) == 1
    assert "hint: " in capsys.readouterr().err


def test_something_else_at_the_url_is_no_server_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/health": b"<html>", "/debug/ledger": b"<html>"}) as url:
        assert run("ledger", "--url", url) == 1
        assert run("doctor", "--url", url) == 1
    assert capsys.readouterr().err.count("not a Millstream server") == 2


def test_a_clean_server_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/health": {}, "/server_info": INFO, "/debug/ledger": CLEAN}) as url:
        assert run("doctor", "--url", url) == 0
        out = capsys.readouterr().out
        assert "Millstream 1.2 serves tiny: entry 7, scheduler 8" in out
        assert "nothing is held" in out
        assert out.endswith("all is well\n")
        assert run("doctor", "--port", url.rsplit(":", 1)[1], "--json") == 0  # found without a URL
        found = json.loads(capsys.readouterr().out)
        assert (found["ok"], [check["name"] for check in found["checks"]]) == (True, ["ready", "ledger", "text"])


def test_what_live_requests_hold_and_what_a_slow_reader_is_still_owed_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    found = holding(held("r1", "entry", "state"), held("r1", "scheduler", "pages", 3), held("over", "entry", "stream", 9))
    with serving({"/health": {}, "/server_info": INFO, "/debug/ledger": found}) as url:
        assert run("doctor", "--url", url) == 0
    assert "1 requests are live, and the engine holds nothing for any other" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        pytest.param({"/server_info": (503, {"error": {"message": "still loading"}})}, "still loading", id="not-ready"),
        pytest.param({"/debug/ledger": {**CLEAN, "mismatches": 2}}, "did not balance 2 times", id="mismatches"),
        pytest.param({"/debug/ledger": holding(held("r9", "scheduler", "pages"))}, "pages of r9 in the scheduler", id="orphan"),
        pytest.param({"/server_info": {**INFO, "stream_mismatch_total": 4}}, "4 answers were not the text", id="text"),
    ],
)
def test_what_is_amiss_is_said_and_fails(
    answers: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "REST_S", 0.0)
    with serving({"/health": {}, "/server_info": INFO, "/debug/ledger": CLEAN, **answers}) as url:
        assert run("doctor", "--url", url) == 1
    out = capsys.readouterr().out
    assert message in out
    assert "FAIL" in out


def test_what_a_request_that_has_just_ended_leaves_behind_gets_a_moment_to_go() -> None:
    looks: list[dict[str, Any]] = [CLEAN, holding(held("r", "detokenizer", "decode_status"))]
    with serving({"/health": {}, "/server_info": INFO, "/debug/ledger": looks.pop}) as url:
        assert all(check.ok for check in doctor.check_server(url))
    assert looks == []
