"""A headless Chromium, and a page of it that fails a test for any error in its console and any word to another host.

`/usr/bin/chromium` or, where there is none, the one that `make browser` unpacked beside the virtual environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Error, Page, Route, sync_playwright

PATIENCE_MS = 120_000  # of every wait: the machine may be busy
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
SYSTEM = Path("/usr/bin/chromium")
FETCHED = Path(sys.prefix) / "browser" / "unpacked"  # by scripts/unpack_browser.py


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser; skips where none starts. Playwright runs a loop of its own in this thread meanwhile."""
    with sync_playwright() as playwright:
        reasons = []
        for program in (SYSTEM, FETCHED / "chromium"):
            if not program.exists():
                reasons.append(f"there is no {program}")
                continue
            environment = dict(os.environ)  # noqa: TID251  # handed on, with the libraries that came with it
            if program.parent == FETCHED:
                environment["LD_LIBRARY_PATH"] = str(FETCHED / "lib")
            try:
                browser = playwright.chromium.launch(executable_path=program, args=FLAGS, env=environment, timeout=PATIENCE_MS)
            except Error as error:
                reasons.append(f"{program} does not start: {error.message.splitlines()[0]}")
                continue
            try:
                yield browser
            finally:
                browser.close()
            return
        pytest.skip("; ".join(reasons))


@contextmanager
def opened_page(browser: Browser, url: str, *, until: str = "body[data-model]", **context: Any) -> Iterator[Page]:
    """The server's page, once it has met the server. `faults` of what went wrong must be empty at the end.

    A refusal that a test asks for shows in the console as a failed load; those are not faults.
    """
    faults: list[str] = []
    own = urlsplit(url).netloc
    page_context = browser.new_context(reduced_motion="reduce", **({"viewport": {"width": 1100, "height": 800}} | context))
    page_context.set_default_timeout(PATIENCE_MS)
    page = page_context.new_page()

    def guard(route: Route) -> None:
        if urlsplit(route.request.url).netloc == own:
            route.fallback()
        else:
            faults.append(f"asked for {route.request.url}")
            route.abort()

    page_context.route("**/*", guard)
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("console", lambda message: faults.append(f"console: {message.text}") if _is_fault(message) else None)
    try:
        page.goto(url + "/", wait_until="commit")
        page.wait_for_selector(until)
        yield page
        assert faults == []
    finally:
        page_context.close()


def _is_fault(message: Any) -> bool:
    return message.type in ("error", "warning") and not message.text.startswith("Failed to load resource")


def show(page: Page, view: str) -> None:
    """Go to a view by its link."""
    page.click(f'#views a[href="#{view}"]')
    page.wait_for_selector(f"body[data-view={view}]")


def ask(page: Page, text: str, *, state: str = "done") -> None:
    """Send a message, and wait until its answer has come to `state`."""
    page.fill("#prompt", text)
    page.click("#send")
    page.wait_for_selector(f"#chat[data-state={state}]")
