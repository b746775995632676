"""The page of a server with keys: it asks for one, keeps it for the tab, and shows an admin what others do not see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser import ask, opened_page, show
from tests.support.server import Server

pytestmark = pytest.mark.timeout(300)
USER, ADMIN = "a-user-key", "an-admin-key"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    options = ("--executor", "scripted", "--script", "inline", "--api-key", USER, "--admin-api-key", ADMIN)
    with Server(*options) as server:
        yield server.wait_ready()
        assert server.stop() == 0
        assert USER not in server.log() + server.output
        assert ADMIN not in server.log() + server.output


def give(page: Page, key: str) -> None:
    """Answer the dialog."""
    page.fill("#key-dialog[open] #key-input", key)
    page.press("#key-input", "Enter")


def test_the_page_asks_for_a_key_until_it_has_the_right_one_and_keeps_it_for_the_tab(browser: Browser, url: str) -> None:
    with opened_page(browser, url, until="#key-dialog[open]") as page:
        give(page, "wrong")
        page.wait_for_selector("#key-dialog[open] #key-why:text('not correct')")
        give(page, USER)
        page.wait_for_selector("body[data-model=scripted]")
        ask(page, '<script>{"pieces": ["fine"]}</script>')
        assert page.evaluate("[Object.values(sessionStorage), Object.values(localStorage).includes('" + USER + "')]") == [
            [USER],
            False,
        ]
        page.reload(wait_until="commit")
        page.wait_for_selector("body[data-model=scripted]")
        show(page, "live")
        page.wait_for_selector("#live[data-state=error] [role=alert]")
        assert "admin" in page.inner_text("#live [role=alert]")
        page.click("#key")
        give(page, ADMIN)
        page.wait_for_selector("#live[data-state=shown]")
        show(page, "tree")
        page.wait_for_selector("#tree[data-state=shown]")


def test_who_gives_no_key_is_told_and_left_alone(browser: Browser, url: str) -> None:
    with opened_page(browser, url, until="#key-dialog[open]") as page:
        page.click("#key-dialog button[value=cancel]")
        page.wait_for_selector("body[data-model='no key']")
        show(page, "ledger")
        page.wait_for_selector("#ledger[data-state=error]")
        assert page.locator("#key-dialog[open]").count() == 0
        assert "API key" in page.inner_text("#ledger [role=alert]")
