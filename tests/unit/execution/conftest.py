"""The embedded model on torch, loaded once a session: for its own tests, and for those that compare with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.checkpoint.locate import resolve_model
from millstream.execution.torch.runner import TorchExecutor
from tests.unit.execution.torch.steps import load


@pytest.fixture(scope="session")
def embedded() -> Iterator[TorchExecutor]:
    executor = load(resolve_model("embedded"), threads=0, max_total_tokens=4096)
    yield executor
    executor.close()
