"""No count goes back, whichever process dies and whichever worker answers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.faults import DEADLINE_S, body, pids_of, running
from tests.support.streams import Stream

pytestmark = pytest.mark.long


def counts(url: str) -> dict[tuple[str, ...], float]:
    """The counters of one scrape; empty where the server cannot tell now. CPU time is each process's own, and ends with it."""
    answer = httpx.get(f"{url}/metrics", timeout=60)
    assert answer.status_code in (200, 503), answer.text
    found: dict[tuple[str, ...], float] = {}
    if answer.status_code == 200:
        for family in text_string_to_metric_families(answer.text):
            if family.type in ("counter", "histogram") and "cpu" not in family.name:
                for each in family.samples:
                    found[each.name, *each.labels.values()] = each.value
    return found


def test_no_count_goes_back(tmp_path: Path) -> None:
    with running(tmp_path, "--entry-workers", "2") as (_, url):
        for _ in range(4):
            assert Stream(url, body(20)).wait_end() == "done"
        seen = counts(url)
        assert seen["millstream:completion_tokens_total",] >= 80
        pids = pids_of(url)
        for victim in ("entry-0", "scheduler", "detokenizer"):
            os.kill(pids[victim], signal.SIGKILL)
            kind = victim.partition("-")[0]
            key, deadline = ("millstream:process_restarts_total", kind), time.monotonic() + DEADLINE_S
            while True:
                found = counts(url)
                for name, value in found.items():
                    assert value >= seen.get(name, 0.0), (victim, name)
                seen.update(found)
                if seen.get(key) == 1 and httpx.get(f"{url}/ready", timeout=60).status_code == 200:
                    break
                assert time.monotonic() < deadline, found
        deadline = time.monotonic() + DEADLINE_S
        while Stream(url, body(20)).wait_end() != "done":  # its worker may not know yet what the one that was asked did
            assert time.monotonic() < deadline
        while not (found := counts(url)):
            assert time.monotonic() < deadline
        assert found["millstream:completion_tokens_total",] >= 100
