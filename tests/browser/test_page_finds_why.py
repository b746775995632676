"""Somebody who knows nothing but the page finds out why a request was slow: by its links, and by the words it shows."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser import ask, opened_page, show
from tests.support.server import running_server

pytestmark = pytest.mark.timeout(300)
POOL = 16_384  # tokens
LONG = 12_000  # tokens: some megabytes of events
HELPER = "You are a patient helper who answers in whole sentences, never guesses, and says where an answer comes from. " * 3


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose pool holds one long request, not two."""
    sizes = ("--max-total-tokens", str(POOL), "--max-unsent-bytes", "65536", "--write-timeout-s", "600")
    with running_server("--executor", "scripted", "--script", "inline", *sizes) as url:
        yield url


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with opened_page(browser, url) as page:
        yield page


def open_request(page: Page, rid: str) -> None:
    """From the list to one request, as it has ended."""
    show(page, "requests")
    page.click(f"#requests-list tr[data-rid='{rid}'][data-state=ended] a")
    page.wait_for_selector(f"#requests[data-shown='{rid}'] #why")


def reason(page: Page, kind: str) -> str:
    return page.inner_text(f"#why li[data-kind='{kind}']")


def test_a_request_that_was_retracted(page: Page, url: str) -> None:
    body: dict[str, Any] = {"prompt": "go", "max_tokens": 9000, "n": 2, "rid": "two-long-ones"}
    httpx.post(f"{url}/v1/completions", json=body, timeout=300).raise_for_status()
    found = httpx.get(f"{url}/v1/requests", timeout=120).json()["data"]
    retracted = [each["rid"] for each in found if each["retractions"]]
    assert retracted
    open_request(page, retracted[0])
    assert "KV pages had gone to others" in reason(page, "retraction")
    assert page.locator(".waterfall .wait[data-name=retraction]").count() >= 1
    show(page, "live")
    page.wait_for_selector("#tile-retractions .number:not(:text-is('0'))")


def test_a_cache_miss_by_a_time_in_the_system_prompt(page: Page) -> None:
    page.click("#settings summary")
    for time in ("10:00:00", "10:05:30"):
        page.fill("#setting-system", f"{HELPER} It is {time} now. {HELPER}")
        page.click("#clear")
        ask(page, '<script>{"pieces": ["fine"]}</script>')
    page.click(".message.assistant .end >> text=timeline")
    page.wait_for_selector("#why")
    assert "goes on otherwise than the nearest prompt before it" in reason(page, "cache-diverged")
    assert page.inner_text("#divergence [aria-label='This prompt'] mark").startswith("5:30 now.")
    assert page.inner_text("#divergence [aria-label='The other prompt'] mark").startswith("0:00 now.")
    assert page.inner_text("#divergence [aria-label='This prompt']").rstrip().find("It is 10:0") >= 0


def test_a_client_that_reads_slowly(page: Page, url: str) -> None:
    address = urlsplit(url)
    messages = [{"role": "user", "content": "go"}]
    data = json.dumps({"messages": messages, "max_tokens": LONG, "stream": True, "rid": "sleepy"}).encode()
    head = f"Host: test\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(120)
        client.connect((address.hostname, address.port))
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + head + data)
        show(page, "live")
        page.wait_for_selector("#tile-paused .number:text-is('1')")
        show(page, "requests")
        page.wait_for_selector("#requests-list tr[data-rid=sleepy][data-state=paused]")
        response = http.client.HTTPResponse(client)
        response.begin()
        assert response.read().endswith(b"data: [DONE]\n\n")
    open_request(page, "sleepy")
    assert "its client did not read" in reason(page, "slow_reader")
    assert page.locator(".waterfall .wait[data-name=slow_reader]").count() >= 1
