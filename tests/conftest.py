"""Fixtures that several kinds of tests share: real servers, started once a session and only where a test asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import running_server


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
