"""What the tests of whole servers share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory with a short path: a server has its sockets there, whose paths have about a hundred bytes at most."""
    directory = Path(tempfile.mkdtemp(prefix="ms-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
