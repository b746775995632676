"""A browser for each module: Playwright's loop would be in the way of other modules' `asyncio.run`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser import opened_page, running_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, scripted_server: str) -> Iterator[Page]:
    """The page of the scripted server."""
    with opened_page(browser, scripted_server) as page:
        yield page
