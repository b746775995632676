"""Fixtures that several kinds of tests share: real servers, started once a session and only where a test asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from tests.support.server import running_server

# how long an example takes depends on what else the machine does
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session")
def model_server() -> Iterator[str]:
    """URL of a server of the embedded model."""
    with running_server() as url:
        yield url


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[str]:
    """URL of a scripted server that reads its script from each prompt."""
    with running_server("--executor", "scripted", "--script", "inline") as url:
        yield url


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--pictures`: tests that take pictures of the page put them where the docs show them."""
    parser.addoption("--pictures", action="store_true", help="write docs/images anew")


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole servers that die, browsers and benchmarks take seconds each: none of them is part of the quick run."""
    for item in items:
        if item.path.parent.name in ("lifecycle", "benchmarks", "browser"):
            item.add_marker(pytest.mark.long)
