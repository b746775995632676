"""The pictures of the docs, taken of what the page shows. With `--pictures` they are kept; nobody compares them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser import ask, opened_page, show
from tests.support.server import running_server

pytestmark = pytest.mark.timeout(300)
IMAGES = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES = 200_000
QUESTION = "What does a radix cache do?"
PIECES = [
    "A **radix cache** keeps the KV of prompts ", "that were read before, ", "in a tree:\n\n", "- prompts that begin alike ",
    "share the pages of what they share,\n", "- a new prompt is read from where it differs,\n",
    "- what nobody uses makes room, ", "the least recently used first.\n\n", "So a long system prompt is ",
    "read once. Costs: 0 ", {"bytes": "e282"}, {"bytes": "ac"}, ".",
]  # fmt: skip
SYSTEM = "You are the patient guide of a mill by a stream. Explain in short sentences, with an example from the mill. "


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    rules = tmp_path_factory.mktemp("script") / "rules.json"
    rules.write_text(json.dumps({"rules": [{"pieces": PIECES, "step_ms": 15}]}))
    with running_server("--executor", "scripted", "--script", str(rules), "--max-total-tokens", "4096") as url:
        yield url


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where pictures go."""
    folder = IMAGES if request.config.getoption("--pictures") else tmp_path
    folder.mkdir(exist_ok=True)
    return folder


def take(page: Page, path: Path) -> None:
    page.screenshot(path=path, animations="disabled", caret="hide")
    assert 5_000 < path.stat().st_size < MAX_BYTES


def test_the_pictures_of_the_docs(browser: Browser, url: str, folder: Path) -> None:
    for question in ("What is a page of KV?", "What is a prefix?", "Who turns the wheel?", "Who turns the stone?"):
        messages = [{"role": "system", "content": SYSTEM * 3}, {"role": "user", "content": question}]
        httpx.post(f"{url}/v1/chat/completions", json={"messages": messages}, timeout=120).raise_for_status()
    size = {"width": 1120, "height": 700}
    with opened_page(browser, url, viewport=size) as page:
        page.click("#settings summary")
        page.fill("#setting-system", SYSTEM * 3)
        page.click("#settings summary")
        ask(page, QUESTION)
        take(page, folder / "page-chat.png")
        show(page, "tokens")
        page.locator(".token[data-at]", has_text="‹e2›").click()
        take(page, folder / "page-tokens.png")
        show(page, "tree")
        page.locator("[role=treeitem]").first.click()
        take(page, folder / "page-tree.png")
        show(page, "chat")
        page.click(".message.assistant .end >> text=timeline")
        page.wait_for_selector("#why")
        take(page, folder / "page-request.png")
    with opened_page(browser, url, viewport=size, color_scheme="dark") as page:
        show(page, "live")
        page.wait_for_selector("[data-histogram=e2e_request_latency_seconds]")
        page.wait_for_selector("#tile-hits .number:has-text('%')")
        take(page, folder / "page-live.png")
